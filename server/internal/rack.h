// The rack, for its own sources: rack.cc has its session with the parent, rack_tasks.cc what it
// makes of the parent's tasks, rack_sums.cc its sums on their way up.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/node_base.h"
#include "server/rack_rounds.h"
#include "server/uplink.h"

namespace tributary::server {

// What a rack keeps of its parent's deadline for forwarding, before it has measured any.
inline constexpr absl::Duration kFirstForwardGuess = absl::Milliseconds(500);

class Rack final : public NodeBase, public UplinkHandler {
 public:
  explicit Rack(Options options);
  ~Rack() override;
  absl::Status Open() { return OpenPorts(); }

  // UplinkHandler: all of it goes to the loop.
  void OnParentJoined(v1::Joined joined) override;
  void OnParentTask(v1::Task task) override;
  void OnParentOutcome(v1::Outcome outcome) override;
  void OnParentCollect(uint64_t round) override;
  void OnParentClaims(v1::ClaimsAnswer answer) override;
  void OnParentVerdicts(v1::Verdicts verdicts) override;
  void OnParentStop(v1::Stop stop) override;
  void OnParentRefused(std::string reason) override;
  void OnParentGoingAway() override;
  void OnModel(std::shared_ptr<const ModelVersion> model) override;
  void OnForwarded(uint64_t round, absl::Status status, double seconds) override;
  void OnReleased(uint64_t forward) override;

 private:
  // rack.cc
  void Begin() override;
  void MembersChanged() override;
  void Joined(const v1::Joined& joined);
  bool SameRound(const v1::RoundSpec& spec) const;
  void Take(const v1::Task& task);
  void Collect(uint64_t round);
  void Buffered(uint64_t clients) override;
  void Decline(const v1::RoundSpec& spec, const std::string& why);
  void Claim(const v1::Claims& claims) override;
  void Inquire(const v1::Inquiry& inquiry) override;
  uint64_t LinkRetransmits() const override;
  void ShutdownAsked() override;
  bool WorthFinishing() const;
  void CloseIfAlone();
  void EndShutdown();

  // rack_tasks.cc
  void BeginPending();
  void BeginCollecting(const v1::RoundSpec& spec, const aggregation::Grid& grid,
                       const std::shared_ptr<const ModelVersion>& model);
  void BeginOwn(const aggregation::Grid& grid, absl::Duration collecting);
  void OwnClosed(CollectedRound round);
  void OwnStepped(const absl::Status& status);
  void RoundClosed(CollectedRound round) override;
  void GiveUp(const std::string& why);
  // The forwarder may read the sum for a moment yet: no round begins on it until it is let go.
  void Recall() { lent_to_ = uplink_->Abandon(); }

  // rack_sums.cc
  void SumClosed(CollectedRound round);
  void SecondClosed(CollectedRound round);
  // The parent's name for the second sum: it may be the first that it gets.
  uint32_t Sent() const { return round_.result.clients > 0 ? 1 : 0; }
  void SayEmpty();  // nothing goes up
  void SendUp();
  void SendPart(const CollectedRound& collected, const aggregation::ExactAccumulator* sum,
                uint32_t part);
  void Forwarded(uint64_t round, const absl::Status& status, double seconds);
  void TakeEarlyOutcome();
  // `whole`: it is the outcome itself, and not what the parent remembers of it.
  void Outcome(const v1::Outcome& outcome, bool whole = true);
  void Add(const CollectedRound& second);

  const Config& c_;
  const int64_t epoch_;
  std::string run_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::shared_ptr<const ModelVersion> model_;
  std::optional<v1::RoundSpec> pending_;
  v1::RoundSpec parent_spec_;        // of the round that runs, as the parent sent it
  std::unique_ptr<RackRounds> own_;  // null: the parent's round is the rack's own
  aggregation::Grid grid_;           // of own_
  std::optional<v1::Outcome> early_outcome_;
  bool early_whole_ = true;
  bool waiting_outcome_ = false;
  bool shutting_down_ = false;
  uint64_t lent_to_ = 0;  // the given up forward that still reads the sum; 0: none
  CollectedRound round_;
  bool first_in_ = false;       // the parent has taken it
  bool first_refused_ = false;  // or will not
  std::optional<CollectedRound> second_;
  absl::Duration round_started_;
  absl::Duration forward_time_ = kFirstForwardGuess;
  std::unique_ptr<Uplink> uplink_;
  JobThread jobs_;  // the last member: it ends before what its jobs use
};

}  // namespace tributary::server
