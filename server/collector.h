// The children's side of a node, the same for roots and racks: who is there, and one round at a
// time.
//
// Everything but the FrontDoorHandler and TierHandler methods runs on the node's event loop; those
// post to it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "aggregation/accumulator.h"
#include "aggregation/async.h"
#include "aggregation/fold_pool.h"
#include "aggregation/outcome_log.h"
#include "aggregation/round.h"
#include "aggregation/sketches.h"
#include "server/config.h"
#include "server/event_loop.h"
#include "server/front_door.h"
#include "server/grant_pacer.h"
#include "server/memory_budget.h"
#include "server/model_version.h"
#include "server/partial_fold.h"
#include "server/stragglers.h"
#include "server/tier_links.h"

namespace tributary::server {

// Where a round's time went at this node, in seconds. Phases overlap where clients differ in speed.
struct Phases {
  double announce = 0;    // first to last task handed to gRPC
  double download = 0;    // mean over downloads of a model that was fetched; 0: none was
  double train_wait = 0;  // last task sent to first upload or partial sum seen
  double upload = 0;      // first upload seen to last one whole
  double fold = 0;        // CPU of the fold workers
  double forward =
      0;  // racks: sending the partial sum; root: receiving them, first header to last chunk
  double apply = 0;   // root: division, optimizer, hash
  double commit = 0;  // root: checkpoint
};

struct ByteCounts {
  uint64_t from_clients = 0;      // encoded updates
  uint64_t from_aggregators = 0;  // packed partial sums
  uint64_t below = 0;             // encoded updates taken in by the tiers below
  uint64_t model_to_clients = 0;
  uint64_t model_to_aggregators = 0;
  uint64_t saved_to_clients = 0;  // by sending steps in place of whole models
  uint64_t saved_to_aggregators = 0;

  // What another collection has sent down.
  void AddModels(const ByteCounts& other) {
    model_to_clients += other.model_to_clients;
    model_to_aggregators += other.model_to_aggregators;
    saved_to_clients += other.saved_to_clients;
    saved_to_aggregators += other.saved_to_aggregators;
  }
};

struct CollectedRound {
  aggregation::RoundResult result;
  google::protobuf::RepeatedPtrField<v1::MetricSum> metrics;
  Phases phases;
  ByteCounts bytes;
  WaitReport wait;     // of a TRAIN round
  double seconds = 0;  // start to close
  // Of asynchronous runs: what is in the sum, ascending by (id, base).
  std::vector<aggregation::Contribution> contributions;
};

int FoldWorkers(const LimitsConfig& limits);  // [limits] fold_workers, or one a core

class Collector final : public FrontDoorHandler, public TierHandler {
 public:
  struct Callbacks {
    std::function<void()> members_changed;
    std::function<void(CollectedRound)> closed;
    std::function<void(const char*)> passed = [](const char*) {};  // see Node::Options::on_phase
    // Asynchronous runs: how many clients' updates are in the sum of the spec's round.
    std::function<void(uint64_t)> buffered = nullptr;
    // Racks: to the parent. Null: there is none, and clients that come within a round just join it.
    std::function<void(const v1::Claims&)> claim = nullptr;
    // Racks: asks the parent. Null: there is none.
    std::function<void(const v1::Inquiry&)> inquire = nullptr;
  };
  Collector(EventLoop* loop, const LimitsConfig& limits, Callbacks callbacks);
  ~Collector() override;

  ModelShelf* shelf() { return &shelf_; }
  void AttachTier(TierLinks* tier) { tier_ = tier; }
  void AttachDoor(const FrontDoor* door) { door_ = door; }

  // Joins are answered from here on; those that came before have waited.
  void Open(const std::string& run, std::shared_ptr<const aggregation::ModelLayout> layout);
  bool opened() const { return layout_ != nullptr; }
  const std::string& run() const { return run_; }
  // What a resumed run knows of its last commit: whose contribution is in it, and the clients
  // behind them.
  void SetLastOutcome(uint64_t round, std::map<std::string, uint32_t> children,
                      std::span<const std::string> clients);

  // The same of an asynchronous run.
  struct AsyncFates {
    std::vector<aggregation::Contribution> counted, voided;  // of updates from version `from` on
    uint64_t from = 0;
  };
  // `newest`: of those counted what went into the newest version.
  void SetFates(uint64_t version, const AsyncFates& fates,
                const std::vector<aggregation::Contribution>& newest, uint64_t max_staleness);
  AsyncFates Fates() const;

  struct Census {
    uint64_t clients = 0;  // those below aggregators too
    uint64_t examples = 0;
    std::vector<std::string> ids;  // direct children
  };
  Census Count() const;

  // Begins a round (none may be running). `spec.deadline_ms` is this node's own; children get what
  // is left.
  absl::Status Begin(const v1::RoundSpec& spec, const aggregation::Grid& grid, uint32_t minimum,
                     absl::Duration rejoin_grace, std::shared_ptr<const ModelVersion> model);
  bool running() const { return machine_ != nullptr || buffering_; }
  const v1::RoundSpec& spec() const { return spec_; }
  std::vector<std::string> Awaited() const;
  void CloseNow();
  // How many chunks of this child's partial sum are folded without counting yet; for tests.
  uint64_t UncountedChunks(const std::string& child) const;
  // After `closed`: the sum, until Release. Null for an EVALUATE round.
  aggregation::ExactAccumulator* sum() { return sum_.get(); }
  aggregation::FoldPool* pool() { return &pool_; }
  struct Ending {
    bool committed = false;
    bool included = false;  // this node's sum is in it: a member's update is, when it is in the sum
    std::string why_not{};
    // Racks:
    uint32_t parts = aggregation::kMostParts;  // so many of its sums
    bool parent_included = true;
    bool known = true;  // false: given up without the parent's word
  };
  // Makes room for the next round, after telling the members of a TRAIN round how it ended.
  void Finish(const Ending& ending);

  // ---- collector_supplement.cc: clients that came within the round, and second sums for them
  void ClaimsAnswered(const v1::ClaimsAnswer& answer);
  void CollectSecond();  // the parent wants the second sum, if there is one
  void SecondDone();     // it is with the parent, or will never be
  // Whether the next rounds' clients may be claimed of the parent; from the beginning they may.
  void AllowClaims(bool allowed) { claims_allowed_ = allowed; }
  void ClaimAgain();  // to a parent that may know nothing of what was claimed

  // ---- collector_inquiries.cc: for clients that missed an outcome
  void ParentKnows(const v1::Verdicts& verdicts);
  // There is a parent, anew: it may know nothing of what was asked, or answer no inquiries at all.
  void AskAgain(bool answers) {
    parent_answers_ = answers;
    ResolveAll(true);
  }
  bool closed() const { return machine_ == nullptr || closed_reported_; }
  uint32_t part() const { return machine_ == nullptr ? 0 : machine_->part(); }
  // After `closed` of a second sum: the first.
  aggregation::ExactAccumulator* first_sum() {
    return first_sum_ != nullptr ? first_sum_.get() : sum_.get();
  }

  void StopAll(v1::Stop::Kind kind, const std::string& reason, uint64_t retry_after_ms);
  size_t session_count() const { return children_.size(); }
  const aggregation::Participation& participation() const { return stragglers_.participation(); }

  // FrontDoorHandler
  void OnJoin(std::shared_ptr<Session> session) override;
  void OnMessage(std::shared_ptr<Session> session, v1::SessionRequest message) override;
  void OnSessionEnd(std::shared_ptr<Session> session) override;
  void OnUploadStart(std::shared_ptr<Upload> upload) override;
  void OnUploadComplete(std::shared_ptr<Upload> upload,
                        std::shared_ptr<const aggregation::EncodedUpdate> update) override;
  void OnUploadFailed(std::shared_ptr<Upload> upload, aggregation::Refusal refusal) override;
  void OnDownloaded(const std::string& id, absl::Duration took) override;
  // TierHandler
  void OnPartialStart(std::shared_ptr<IncomingPartial> partial) override;
  void OnPartialComplete(std::shared_ptr<IncomingPartial> partial) override;
  void OnPartialBroken(std::shared_ptr<IncomingPartial> partial, absl::Status why) override;
  void OnPartialBad(const std::string& id, uint64_t epoch, std::shared_ptr<IncomingPartial> partial,
                    absl::Status why) override;
  void OnModelSent(const std::string& id, absl::Duration took) override;

 private:
  struct Child {
    std::shared_ptr<Session> session;
    bool aggregator = false;
    uint64_t epoch = 0;
    uint64_t examples = 0;
    uint64_t clients = 0;
    std::string held_sha256;
    // The closed round whose update it may still carry into the next; 0: none. Of this session
    // only: who was away may have been counted elsewhere.
    uint64_t owes = 0;
    uint64_t closed_round = 0;  // the last round that was closed while this session was there
    bool settled = false;       // see RoundMachine::Member
  };
  // What a ticket of the machine stands for: an upload or a partial sum.
  struct Ticket {
    std::shared_ptr<Upload> upload;
    std::shared_ptr<IncomingPartial> partial;
    std::shared_ptr<PartialFold> fold;  // the partial sum's, until it counts
    uint64_t reserved = 0;
    uint64_t ask = 0;  // of asks_, until the update is whole; 0: none
    google::protobuf::RepeatedPtrField<v1::MetricSum> metrics;  // once folding
    // Whole, but no buffer is open: it is folded into the next.
    std::shared_ptr<const aggregation::EncodedUpdate> waits;
    bool whole = false;      // it, or what is folded
    bool receiving = false;  // an upload, admitted and not yet whole
  };

  // An update that waits for its turn, or has it: offered over its session, and from then on until
  // it is whole an upload's.
  struct Ask {
    std::string id;
    uint64_t epoch = 0;
    uint64_t round = 0;
    uint64_t bytes = 0;
    uint64_t ticket = 0;            // of the upload; 0: there is none yet
    std::function<void()> admit{};  // lets the upload be read
    bool ready = false;             // it has its memory
    uint64_t reserved = 0;          // while no upload has it
    bool awaits_word = false;       // its client does not send before it has a Grant
    bool passed = false;            // is not in line any more, but for memory
    bool early = false;             // in line, and gRPC has what its stream's window lets it take
  };

  // Chunks of a partial sum that broke off. In the sum, and in memory, until its child goes on with
  // it or it is undone: before the round is closed at the latest.
  struct Half {
    std::shared_ptr<PartialFold> fold;
    uint64_t reserved = 0;
  };

  // An update: its client, and the round of its task.
  using Update = std::pair<std::string, uint64_t>;
  struct OpenQuestion {
    uint64_t round = 0;
    std::set<std::string> askers;         // children
    std::optional<absl::Duration> asked;  // of the parent, when last; none: not yet
  };
  void Inquired(const std::string& asker, const Child& child, const v1::Inquiry& inquiry);
  void Question(const std::string& asker, const Update& update);
  aggregation::Fate FateOf(const Update& update) const;
  void Resolve(const std::string& id, bool ask_again);  // answers, passes on, or leaves it
  void ResolveAll(bool ask_again);
  void PassOn(const Update& update, bool again, OpenQuestion* question);
  void SendInquiriesSoon();
  void SendInquiries();
  void TellFate(const std::string& asker, const Update& update, aggregation::Fate fate);

  void Join(std::shared_ptr<Session> session);
  void Welcome(const std::string& id, Child& child);
  uint64_t HeartbeatMillis() const {
    return static_cast<uint64_t>(limits_.session_timeout_s * 1000 / 3);
  }
  void Message(const std::shared_ptr<Session>& session, const v1::SessionRequest& message);
  void Report(const std::string& id, Child& child, const v1::Report& report);
  // `for_good`: it has said that it leaves, and need not be awaited.
  void End(const std::shared_ptr<Session>& session, bool for_good = false);
  void UploadStart(const std::shared_ptr<Upload>& upload);
  bool TakeUpload(const std::shared_ptr<Upload>& upload);  // false: answered, or held
  void UploadComplete(const std::shared_ptr<Upload>& upload,
                      std::shared_ptr<const aggregation::EncodedUpdate> update);
  void UploadFailed(const std::shared_ptr<Upload>& upload, const aggregation::Refusal& refusal);
  void PartialStart(const std::shared_ptr<IncomingPartial>& partial);
  void TakeIn(const std::shared_ptr<IncomingPartial>& partial);
  void PartialComplete(const std::shared_ptr<IncomingPartial>& partial);
  void PartialBroken(const std::shared_ptr<IncomingPartial>& partial, const absl::Status& why);
  void PartialBad(const std::string& id, uint64_t epoch,
                  const std::shared_ptr<IncomingPartial>& partial, const absl::Status& why);
  void Suspend(uint64_t ticket);            // its fold, if it has one, becomes a half
  void UndoHalf(const std::string& child);  // if there is one
  void UndoHalves();
  void Undo(const std::shared_ptr<PartialFold>& fold, uint64_t reserved);
  void Folded(uint64_t ticket);
  void Released(uint64_t ticket, uint64_t bytes);
  void FoldIfNoMoreComes();
  void AddMetrics(const google::protobuf::RepeatedPtrField<v1::MetricSum>& metrics);
  bool CheckUpload(const v1::UploadHeader& header, v1::UploadResponse* response);
  std::string CheckPartial(const v1::PartialSumHeader& header) const;  // what is wrong, or ""
  void Reserve(uint64_t ticket, uint64_t bytes, std::function<void()> granted);
  void Received(Ticket* ticket);                          // or not, but it is no longer on its way
  void Enter(const std::string& id, const Child& child);  // a round that runs
  bool MustClaim(const std::string& id, const Child& child) const;
  void Claim(const std::vector<std::string>& ids, bool late);
  void SendUp(v1::Claims claims);
  void ClaimLate(const std::vector<std::string>& ids);
  void ClaimedBelow(const std::string& id, const Child& child, const v1::Claims& claims);
  void AnswerClaims(const aggregation::Action& action);
  void SendClaims(const std::string& child, v1::ClaimsAnswer answer);
  void Granted(const std::string& id);
  void Admit(const std::string& id, bool late);
  void Taken(const std::string& id);
  void ClaimRefused(const std::string& id);
  void TellBelow();
  bool Reopen();
  void TellClaims();
  // As many as would ever be granted: more are not asked for, and not remembered.
  bool ClaimsFull() const { return claims_.clients.size() >= aggregation::kMostClaims; }
  bool MayClaim() const { return callbacks_.claim != nullptr && claims_allowed_; }
  bool AwaitsClaim(const v1::UploadHeader& header) const;
  // It came too late for the first sum, and may be in the second.
  bool MaySupplement(const std::string& id, uint64_t round) const;
  bool MaySupplement(const v1::UploadHeader& header) const {
    return MaySupplement(header.id(), header.round());
  }
  void TakeHeldOf(const std::string& id);
  // An update of a closed round that may count in the next: it waits for that, unread.
  bool MayCarry(const std::string& id, uint64_t epoch, uint64_t round) const;
  bool MayCarry(const v1::UploadHeader& header) const {
    return MayCarry(header.id(), header.epoch(), header.round());
  }
  void Hold(const std::shared_ptr<Upload>& upload);
  void TakeHeld();
  aggregation::RoundMachine::Member MemberOf(const std::string& id, const Child& child) const;
  aggregation::RoundPlan PlanOf(const v1::RoundSpec& spec, uint32_t minimum) const;
  // This node's clients' shares of the spec's cohort count, target, minimum and maximum, or a
  // child's.
  struct Shares {
    uint64_t count = 0;
    uint64_t target = 0;
    uint64_t minimum = 0;
    uint64_t maximum = 0;
  };
  void SplitCohort();
  void TakeShare(const std::string& id, v1::RoundSpec* spec) const;  // an aggregator's of the spec
  void Act(const std::vector<aggregation::Action>& actions);
  // collector_grants.cc: whose upload is read when.
  void Offered(const std::string& id, const Child& child, const v1::Offer& offer);
  void Receive(const std::shared_ptr<Upload>& upload, std::function<void()> admit);
  void PumpGrants();
  void SetEarly(Ask* ask, bool early);
  void CountEarly();
  void Granted(uint64_t key);
  void GrantTimer();
  void UploadRead(uint64_t ticket);        // whole: its ask has ended
  void EndAsk(uint64_t key);               // and frees what it keeps
  void Tell(Ask* ask);                     // its client that it may send
  void EndOfferOf(const std::string& id);  // one that is not an upload yet
  void SettleOffers();                     // the round has closed
  void TakeParkedOffers();                 // the next has begun, or the second sum
  uint64_t MostEncodedBytes() const;
  void SeenUpload();
  // collector_async.cc: an asynchronous run's buffers in place of its rounds. Where there is no
  // asynchronous machine, the first six go to the round's.
  aggregation::Admission OfferUpdate(const v1::UploadHeader& header);
  aggregation::Admission OfferPartial(const v1::PartialSumHeader& header);
  bool CommitPartial(uint64_t ticket);
  void SumRefused(const v1::PartialSumHeader& header);
  void AttemptAborted(uint64_t ticket);
  void AttemptRefused(uint64_t ticket, const std::string& reason);
  void AttemptFolded(uint64_t ticket);
  absl::Status BeginBuffer(const v1::RoundSpec& spec, const aggregation::Grid& grid,
                           std::shared_ptr<const ModelVersion> model);
  void ActAsync(const std::vector<aggregation::AsyncAction>& actions);
  void RearmAsync();
  void CloseBuffer();
  void StartMeasuring();                      // of a round or buffer: phases and bytes
  void Measure(CollectedRound* round) const;  // what was
  void FinishRound(const Ending& ending);
  void FinishBuffer(const Ending& ending);
  // False: the update is not to be folded now; it waits, or was answered. Else it has its weight.
  bool TakeIntoBuffer(uint64_t ticket, std::shared_ptr<const aggregation::EncodedUpdate>* update);
  uint64_t ConcurrencyOf(const std::string& aggregator) const;
  const v1::RoundSpec& train_spec() const { return async_ != nullptr ? async_spec_ : spec_; }
  void SendTask(const std::string& id);
  void Close();
  void Rearm();
  void Sweep();
  // Whether the ticket is this attempt's: those of a round that was given up are used again.
  bool Holds(uint64_t ticket, const std::shared_ptr<Upload>& upload) const;
  bool Holds(uint64_t ticket, const std::shared_ptr<IncomingPartial>& partial) const;
  void EndTicket(uint64_t ticket);  // forgets it, undoes what it folded, frees what it reserved
  void RefuseTicket(uint64_t ticket, const std::string& reason);
  v1::Outcome OutcomeFor(const std::string& id, uint32_t parts) const;

  EventLoop* loop_;
  LimitsConfig limits_;
  Callbacks callbacks_;
  ModelShelf shelf_;
  TierLinks* tier_ = nullptr;
  const FrontDoor* door_ = nullptr;
  MemoryBudget budget_;
  std::string run_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  absl::flat_hash_map<std::string, Child> children_;
  int aggregators_here_ = 0;  // of children_
  std::vector<std::shared_ptr<Session>> waiting_joins_;
  std::optional<v1::Stop> stopped_;

  // The round that runs, or was closed and not yet finished.
  std::unique_ptr<aggregation::RoundMachine> machine_;
  v1::RoundSpec spec_;
  aggregation::Grid grid_;
  std::shared_ptr<const ModelVersion> model_;
  std::shared_ptr<const aggregation::SketchedTensors> sketched_;  // of the round
  std::unique_ptr<aggregation::ExactAccumulator> sum_;
  std::unique_ptr<aggregation::ExactAccumulator> first_sum_;  // while a second is collected
  aggregation::FoldPool pool_;
  std::map<uint64_t, Ticket> tickets_;
  int receiving_ = 0;                   // of them; while there are any, whole updates are gathered
  std::map<std::string, Half> halves_;  // by child
  int undoing_ = 0;                     // the round is not closed before that is through
  google::protobuf::RepeatedPtrField<v1::MetricSum> metrics_;
  absl::Duration started_, deadline_, last_task_, first_upload_, last_upload_, first_partial_,
      last_partial_;
  double busy_at_start_ = 0;
  uint64_t downloads_at_start_ = 0;
  int64_t download_nanos_at_start_ = 0;
  uint64_t download_bytes_at_start_ = 0;
  uint64_t saved_bytes_at_start_ = 0;
  SentBytes models_sent_at_start_;
  ByteCounts bytes_;
  Stragglers stragglers_;
  GrantPacer pacer_;
  std::map<uint64_t, Ask> asks_;                       // by the pacer's key
  absl::flat_hash_map<std::string, uint64_t> offers_;  // of asks_, without an upload, by client
  // Offers of a closed round that may count in the next, or in the second sum.
  std::map<std::string, Ask> parked_;
  EventLoop::TimerId grant_timer_ = 0;
  uint64_t early_ = 0;                            // of asks_
  uint64_t most_early_ = 0;                       // at a time in this round
  uint64_t early_last_round_ = 0;                 // likewise, of the one before
  uint64_t offers_seen_ = 0, unused_grants_ = 0;  // in this round
  std::vector<std::shared_ptr<Upload>> held_;     // see MayCarry; one a client
  std::map<std::string, Shares> shares_;          // by aggregator; "": the clients here
  uint64_t spare_maximum_ = 0;                    // an aggregator's that has come since
  EventLoop::TimerId timer_ = 0;
  bool closed_reported_ = false;

  // What this node has claimed of its parent in this round.
  enum class ClaimState { kAsked, kGranted, kTaken, kRefused };
  struct Claims {
    std::map<std::string, ClaimState> clients;
    std::set<std::string> late;                       // of these, whom the parent does not wait for
    std::map<std::string, std::string> below;         // asked for an aggregator below: its id
    std::map<std::string, v1::ClaimsAnswer> answers;  // for them, not sent yet
    std::vector<std::string> grants;                  // come while the round was closing
    uint64_t granted = 0;                             // that the parent waits for
    uint64_t done_told = 0;
    bool open = false;  // a second sum is, or will be, on its way
    bool open_told = false;
  };
  Claims claims_;
  bool claims_allowed_ = true;

  // An asynchronous run: lives as long as the run. Rounds of machine_ are then evaluations only.
  std::unique_ptr<aggregation::AsyncMachine> async_;
  v1::RoundSpec async_spec_;  // of the newest buffer
  bool buffering_ = false;    // from BeginBuffer to FinishBuffer
  EventLoop::TimerId async_timer_ = 0;
  uint64_t buffered_told_ = 0;
  std::map<std::string, uint64_t> last_rounds_;  // of the updates in the last version, by client

  // The last finished TRAIN round, for those who were away.
  uint64_t last_round_ = 0;
  std::map<std::string, uint32_t> last_children_;  // and how many of their partial sums
  aggregation::OutcomeLog outcomes_;               // of rounds, not of an asynchronous run
  std::map<std::string, OpenQuestion> questions_;  // by client
  v1::Inquiry to_ask_;                             // of the parent, when this turn of the loop ends
  std::map<std::string, v1::Verdicts> to_tell_;    // likewise, by aggregator
  bool inquiries_posted_ = false;
  bool parent_answers_ = true;
};

}  // namespace tributary::server
