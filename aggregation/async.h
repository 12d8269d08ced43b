// Asynchronous aggregation as a pure state machine (FedBuff: Nguyen et al., "Federated Learning
// with Buffered Asynchronous Aggregation", 2022; with a buffer of one, FedAsync: Xie et al., 2019).
// No threads, sockets, files or clock inside: events in, actions out; the same for a root and a
// rack, for real sockets and virtual time.
//
// Clients train on whatever model was the newest when they began; their updates are added to a
// buffer as they come, and when the updates in the buffers of a root and its racks together are K
// the root collects the racks' sums and applies all of it: a new version, a new buffer. Where a
// round waits for its members, a buffer waits for nobody.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "aggregation/outcome_log.h"
#include "aggregation/round.h"

namespace tributary::aggregation {

struct AsyncPlan {
  // K: clients' updates, those in the racks' buffers among them, that close the buffer. 0: it is
  // closed only when told (a rack, by its parent), or when no more weight has room.
  uint64_t buffer = 10;
  uint64_t max_staleness = 20;  // versions; an update of an older model is STALE
  uint64_t concurrency = 0;     // most of this node's own clients that train at once; 0: all
  // From Open: what is there then is applied, however little; where nothing is, it is waited as
  // long again.
  absl::Duration flush_after = absl::Minutes(1);
  absl::Duration collect_within = absl::Seconds(10);  // for racks to send what they are asked for
  absl::Duration task_limit = absl::Minutes(10);  // a task without an answer frees its place then
  uint64_t max_weight = 1 << 20;                  // W_max of this node's buffer
  uint64_t max_client_weight = 1 << 20;           // of one update, before its staleness
  // Counts the buffers on one version, where one could not be committed: a rack's sum is for one of
  // them.
  uint64_t attempt = 0;
};

// One update in a sum. (id, base) is what makes it one: it counts once, ever.
struct Contribution {
  std::string id;
  uint64_t base = 0;       // the version that it was trained from
  uint64_t staleness = 0;  // versions that were made since
  uint64_t weight = 0;     // as it was folded: StaleWeight of what it brought
  bool operator==(const Contribution&) const = default;
};

struct AsyncAction {
  enum class Kind {
    kTask,     // send `member` the task to train from the newest model (a rack: to collect)
    kCollect,  // ask the rack `member` for its sum
    kAbort,    // cancel what comes in with `ticket`: it would be of no use any more
    kStarved,  // the flush time has passed and the buffer is empty: for the log
    kClosed,   // nothing more is folded: Result() is final until Settle
  };
  Kind kind;
  std::string member{};
  uint64_t ticket = 0;
};

enum class BufferClosedBy { kNotYet, kFull, kFlush, kWeight, kEveryone, kTold };

struct AsyncResult {
  std::vector<Contribution> contributions;   // ascending by (id, base)
  uint64_t weight = 0;                       // their sum
  std::vector<std::string> children;         // direct members whose contribution is in, ascending
  std::map<std::string, uint64_t> rejected;  // by reason, those reported below too
  uint64_t stale = 0;                        // updates refused as too old, below too
  BufferClosedBy closed_by = BufferClosedBy::kNotYet;
};

// Not thread-safe. `now` is monotonic and never goes back. After every call but the const ones
// NextTimer() may have changed. Calls with tickets or epochs that mean nothing any more are
// ignored. A client has one update under way at a time: it gets its next task when the fate of its
// last is known, so that residuals of error feedback stay exact.
class AsyncMachine {
 public:
  using Actions = std::vector<AsyncAction>;
  struct Member {
    std::string id;
    bool aggregator = false;
    uint64_t epoch = 0;  // of its session
  };

  AsyncMachine() = default;
  AsyncMachine(const AsyncMachine&) = delete;
  AsyncMachine& operator=(const AsyncMachine&) = delete;

  // From a checkpoint of model `version`, before the first Open: all that was counted, or voided,
  // of updates from version `from` on. Older ones are STALE, whatever the plan says: nobody knows
  // whether they count already.
  void Restore(const std::vector<Contribution>& counted, uint64_t version = 0, uint64_t from = 0,
               const std::vector<Contribution>& voided = {});
  // A buffer opens on model `version`; what was admitted and not folded is offered again by Commit.
  Actions Open(const AsyncPlan& plan, uint64_t version, absl::Duration now);
  // The closed buffer's fate: its sum is in a committed model (which is a later version), or is
  // lost, and its clients may train again. `over`: the version is, with this sum or without.
  void Settle(bool applied) { Settle(applied, applied); }
  void Settle(bool applied, bool over);

  Actions Joined(const Member& member, absl::Duration now);  // again too: a task of before is void
  Actions Left(const std::string& id, uint64_t epoch, absl::Duration now);
  // It will not send what it was asked for.
  Actions Declined(const std::string& id, uint64_t epoch, absl::Duration now);
  // A rack says how many clients' updates its buffer on `version` has.
  Actions Buffered(const std::string& id, uint64_t epoch, uint64_t version, uint64_t clients,
                   absl::Duration now);

  // An update wants in, at any time. Admission's reasons: kStale "staleness", kReject "session",
  // "round" (from a model that is not made yet) or "weight"; kDuplicate where (id, base) counts
  // already.
  Admission Offer(const std::string& id, uint64_t epoch, uint64_t base, int64_t weight,
                  absl::Duration now);
  // A rack's sum wants in. kStale "round": not of this version, or too late; kReject "session",
  // "malformed" (contributions out of order, not of this run's past, or of another weight),
  // "staleness", "duplicate_clients" or "full".
  Admission OfferSum(const std::string& id, uint64_t epoch, uint64_t version, uint64_t attempt,
                     uint64_t weight, const std::vector<Contribution>& contributions,
                     absl::Duration now);
  // It is received and valid. kFold: fold it, with `weight`; it counts from here. kWait: the buffer
  // is closed; ask again after the next Open. kStale, kDuplicate: drop it, its ticket is gone.
  struct Verdict {
    enum class Kind { kFold, kWait, kStale, kDuplicate } kind = Kind::kStale;
    uint64_t weight = 0;
    uint64_t staleness = 0;
  };
  Verdict Commit(uint64_t ticket);
  Actions Folded(uint64_t ticket, absl::Duration now);
  Actions Aborted(uint64_t ticket, absl::Duration now);  // broke off: it may be offered again
  Actions Refused(uint64_t ticket, const std::string& reason, absl::Duration now);  // for good
  void CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t stale);

  // What became of the update of `id` from version `base`, as far as this node knows. Undecided too
  // while the buffer on that version is not over, or a rack has updates that may be it.
  Fate FateOf(const std::string& id, uint64_t base) const;
  // Its client has been told that it does not count: from here on it is refused. Nothing where no
  // such update could count anyway.
  void Void(const std::string& id, uint64_t base);

  Actions Timer(absl::Duration now);
  std::optional<absl::Duration> NextTimer() const;
  Actions Close(absl::Duration now);  // told: with what is there, racks' sums collected first

  bool open() const { return phase_ == Phase::kOpen || phase_ == Phase::kCollecting; }
  bool closed() const { return phase_ == Phase::kClosed; }
  uint64_t version() const { return version_; }
  uint64_t buffered() const;  // clients in this buffer and those of the racks
  uint64_t training() const { return busy_; }
  // A client that is neither training nor sending: may be asked for something else meanwhile.
  bool Idle(const std::string& id) const;
  bool Knows(const std::string& id) const { return members_.contains(id); }
  bool Holds(uint64_t ticket) const { return attempts_.contains(ticket); }
  AsyncResult Result() const;
  std::vector<Contribution> Counted() const;  // in models, of those from counted_from() on
  std::vector<Contribution> Voided() const;   // likewise
  uint64_t counted_from() const {
    return counted_from_;
  }                                             // the oldest version that updates may have
  std::vector<std::string> Collecting() const;  // racks whose sum is awaited, ascending

 private:
  enum class Phase { kIdle, kOpen, kCollecting, kClosing, kClosed };
  // Free: may get a task. Spent: had one of this version. Overdue: had one, and let its time pass.
  // Pending: its update is in the buffer.
  enum class Work { kFree, kSpent, kBusy, kOverdue, kPending };
  struct State {
    uint64_t epoch = 0;
    bool aggregator = false;
    Work work = Work::kFree;  // clients
    uint64_t order = 0;       // of its last task, or of its joining: who is next
    uint64_t base = 0;        // the version of that task
    absl::Duration due;       // kBusy
    bool tasked = false;      // aggregators: works on this version
    bool collecting = false;  // its sum is awaited
    bool missed = false;      // it did not send one in time, and has not been heard of since
    uint64_t buffered = 0;    // as it says
  };
  struct Attempt {
    std::string id;
    bool aggregator = false;
    bool folding = false;
    bool waits = false;   // client: whole, for the next buffer
    uint64_t base = 0;    // client
    uint64_t weight = 0;  // client: before its staleness
    std::vector<Contribution> sum{};
  };
  using Key = std::pair<uint64_t, std::string>;  // (base, id)

  State* Find(const std::string& id, uint64_t epoch);
  void SetWork(const std::string& id, State& state, Work work);
  void Freed(const std::string& id, State& state, uint64_t base);
  bool Counts(const Key& key) const;
  bool Voided(const Key& key) const;
  bool InBuffer(const std::string& id) const { return clients_in_buffer_.contains(id); }
  void Enter(const Contribution& contribution);
  void AbortSum(const std::string& id, Actions* actions);
  void Rejoined(const std::string& id, State& state, Actions* actions);
  std::string CheckSum(const std::vector<Contribution>& contributions, uint64_t weight,
                       std::string* reason) const;
  Verdict CommitSum(Attempt& attempt);
  Admission Reject(const std::string& reason, const std::string& message);
  void StartClosing(BufferClosedBy why, Actions* actions);
  void StopCollecting(Actions* actions);
  bool Everyone() const;
  void HandOut(Actions* actions);
  Actions Advance(absl::Duration now, Actions actions = {});

  AsyncPlan plan_;
  Phase phase_ = Phase::kIdle;
  uint64_t version_ = 0;
  absl::Duration now_ = absl::ZeroDuration();
  absl::Duration flush_at_ = absl::InfiniteDuration();
  absl::Duration collect_until_ = absl::InfiniteDuration();
  bool due_ = false;   // something to be done at once, by Timer
  bool full_ = false;  // no more weight has room
  BufferClosedBy closed_by_ = BufferClosedBy::kNotYet;

  absl::flat_hash_map<std::string, State> members_;
  std::set<std::string> aggregators_;
  std::set<std::pair<uint64_t, std::string>> free_, spent_;     // clients, by (order, id)
  std::set<std::pair<absl::Duration, std::string>> deadlines_;  // of those busy
  uint64_t busy_ = 0;
  uint64_t orders_ = 0;

  std::map<uint64_t, Attempt> attempts_;  // by ticket
  absl::flat_hash_map<std::string, uint64_t>
      receiving_;  // member -> its attempt, not yet committed
  uint64_t next_ticket_ = 1;
  uint64_t folding_ = 0;

  // The buffer: from Open to Settle.
  std::map<Key, Contribution> in_buffer_;
  std::set<std::string> clients_in_buffer_;
  std::set<std::string> children_;
  std::set<std::string> sums_in_;  // racks, this version
  uint64_t weight_ = 0;
  std::map<std::string, uint64_t> rejected_;
  uint64_t stale_ = 0;

  // As far back as an update may come from: in committed models (true), or voided.
  std::map<Key, bool> fates_;
  uint64_t counted_from_ = 0;
  uint64_t open_from_ = 0;  // the oldest version whose buffer is not over
};

}  // namespace tributary::aggregation
