// What roots and racks share: the loop, the children's side, the ports, and how they end.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "server/collector.h"
#include "server/node.h"

namespace tributary::server {

class NodeBase : public Node {
 public:
  absl::Status Run() override;
  void Shutdown() override;
  int port() const override { return door_->port(); }

 protected:
  explicit NodeBase(Options options);
  ~NodeBase() override;
  // Front door and links; the collector answers joins only once it is opened.
  absl::Status OpenPorts();

  // On the loop:
  virtual void Begin() = 0;  // once, at the start
  virtual void MembersChanged() = 0;
  virtual void RoundClosed(CollectedRound round) = 0;
  virtual void ShutdownAsked() = 0;                        // the first time
  virtual void Buffered(uint64_t /*clients*/) {}           // asynchronous runs: are in the sum
  virtual void Claim(const v1::Claims& /*claims*/) {}      // racks: to the parent
  virtual void Inquire(const v1::Inquiry& /*inquiry*/) {}  // likewise
  // Segments that this node has sent again on its links, since its start.
  virtual uint64_t LinkRetransmits() const;
  // Tells all members, waits for them to hang up (at most two seconds), and ends Run with `result`.
  void End(v1::Stop::Kind kind, const std::string& reason, absl::Status result);
  bool ending() const { return ending_; }
  // "file:line:column" of a key ("node.listen"), for errors found after the config was read.
  std::string Where(const std::string& key) const;
  void Publish(RoundReport report);
  void Passed(uint64_t round, const char* phase) const {
    if (options_.on_phase) options_.on_phase(round, phase);
  }

  Options options_;
  RealClock clock_;
  EventLoop loop_{&clock_};
  std::unique_ptr<RoundsFile> rounds_file_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<TierLinks> tier_;
  std::unique_ptr<transport::Fabric> to_parent_;  // racks: for the uplink, once they are open
  std::unique_ptr<FrontDoor> door_;

 private:
  void Hangup(absl::Duration until);
  void WriteParticipation() const;
  // At the root: of the clients of the whole tree.
  aggregation::Participation tree_;
  uint64_t retransmits_told_ = 0;  // in reports so far
  bool ending_ = false;
  absl::Status result_;
  std::atomic<int> shutdowns_{0};
};

}  // namespace tributary::server
