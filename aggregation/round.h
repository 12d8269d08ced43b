// A round as a pure state machine: who is in, who has sent, when it closes. No threads, sockets, files or
// clock inside: events in, actions out; the same for a root and a rack, for real sockets and virtual time.
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

namespace tributary::aggregation {

struct RoundPlan {
  uint64_t round = 0;
  uint64_t seed = 0;
  double cohort_fraction = 1;   // clients whose seeded hash is under it are in; aggregators always are
  double quorum = 1;            // share of the awaited members whose answer closes the round early; (0, 1]
  uint32_t minimum = 1;         // accepted clients (those behind partial sums count) for success
  uint32_t maximum = 0;         // most clients admitted; 0: no limit
  absl::Duration deadline = absl::Minutes(10);     // from Begin
  absl::Duration rejoin_grace = absl::Seconds(5);  // a member that left is awaited this long
  uint64_t max_weight = 1 << 20;         // W_max of this node
  uint64_t max_client_weight = 1 << 20;  // of one update
};

// Is this client in the round's cohort? Depends on nothing but (seed, round, id): the tree has no say.
bool InCohort(uint64_t seed, uint64_t round, const std::string& id, double fraction);

enum class Verdict { kAdmit, kDuplicate, kStale, kReject };

struct Admission {
  Verdict verdict = Verdict::kReject;
  std::string reason{};   // UploadResponse.reason's word, for kStale and kReject
  std::string message{};
  uint64_t ticket = 0;  // kAdmit: names this attempt in the calls that follow
  uint64_t replaces = 0;  // kAdmit: a ticket that this attempt supersedes, to be cancelled; 0: none
};

// How a member's part ended, for Outcome.
enum class Answer { kAwaited, kUploading, kFolding, kAccepted, kRejected, kDeclined, kGone };

struct RoundResult {
  bool success = false;        // accepted clients >= minimum
  std::string why_not;         // names the numbers
  uint64_t weight = 0;         // W
  uint64_t clients = 0;        // accepted, those behind partial sums among them
  std::vector<std::string> children;      // direct members whose contribution is in, ascending
  std::vector<std::string> contributors;  // client ids, ascending
  std::map<std::string, uint64_t> rejected;  // by reason, this node's own and those reported below
  uint64_t late = 0;
};

struct Action {
  enum class Kind {
    kTask,    // send the task to `member`
    kAbort,   // cancel the upload with `ticket`: the round has closed or a newer attempt is here
    kClosed,  // no more is admitted and nothing is in flight: Result() is final
  };
  Kind kind;
  std::string member{};
  uint64_t ticket = 0;
};

// Not thread-safe: the driver holds a lock. `now` is monotonic and never goes back.
class RoundMachine {
 public:
  struct Member {
    std::string id;
    bool aggregator = false;
    uint64_t epoch = 0;  // of its session
  };

  explicit RoundMachine(const RoundPlan& plan) : plan_(plan) {}

  // Starts with the members present. Those in the cohort get a task.
  std::vector<Action> Begin(const std::vector<Member>& members, absl::Duration now);

  // A member joined, or joined again with a larger epoch (its uploads in flight are aborted; when its
  // update is not in yet it gets the task again). Not in the cohort: ignored.
  std::vector<Action> Joined(const Member& member, absl::Duration now);
  // Its session ended: awaited for rejoin_grace, then given up. An older epoch than the current is ignored.
  std::vector<Action> Left(const std::string& id, uint64_t epoch, absl::Duration now);

  // An upload or a partial sum wants in. `clients`: ids behind it, for an aggregator; empty for a client.
  Admission Offer(const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
                  const std::vector<std::string>& clients, absl::Duration now);
  // It is received and valid, and now goes to the workers: from here it counts. False where the round has
  // closed meanwhile, or the ticket was replaced: drop it (STALE).
  bool Commit(uint64_t ticket);
  // The workers are through with it.
  std::vector<Action> Folded(uint64_t ticket, absl::Duration now);
  // It broke off or was damaged: what it reserved is free, and the member is awaited again.
  std::vector<Action> Aborted(uint64_t ticket, absl::Duration now);
  // It was refused for good, with a reason: the member is not awaited any more.
  std::vector<Action> Refused(uint64_t ticket, const std::string& reason, absl::Duration now);
  // The member answered without an update (declined, an empty rack, an evaluation report).
  // `clients`: client ids or count behind an evaluation report; 0 for a decline.
  std::vector<Action> Reported(const std::string& id, uint64_t epoch, uint64_t clients, absl::Duration now);
  // What children say they refused; goes to Result().
  void CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t late);
  // An offer refused before a ticket was given, with its reason, is counted by Offer itself.

  // Time has come (or passed) NextTimer().
  std::vector<Action> Timer(absl::Duration now);
  std::optional<absl::Duration> NextTimer() const;  // nullopt once closed

  // Closes now (shutdown, or the parent's word): in-flight uploads are aborted, folds are waited for.
  std::vector<Action> CloseNow(absl::Duration now);

  bool open() const { return phase_ == Phase::kOpen; }      // admits
  bool closed() const { return phase_ == Phase::kClosed; }
  Answer AnswerOf(const std::string& id) const;             // kGone where unknown
  std::vector<std::string> Awaited() const;                 // ids, ascending, for the log
  RoundResult Result() const;                               // once closed
  uint64_t weight() const { return weight_; }

 private:
  enum class Phase { kIdle, kOpen, kClosing, kClosed };
  struct State {  // one member's
    bool aggregator = false;
    bool present = false;
    uint64_t epoch = 0;
    Answer answer = Answer::kAwaited;
    uint64_t ticket = 0;  // of the attempt under way, or of the one that counts
    absl::Duration left_at = absl::ZeroDuration();
  };
  struct Attempt {
    std::string member{};
    int64_t weight = 0;
    std::vector<std::string> clients{};  // ids it stands for: the member's own, or those behind an aggregator
    bool committed = false;
  };
  using Actions = std::vector<Action>;

  bool InCohortHere(const Member& member) const;
  void SetAnswer(const std::string& id, State& state, Answer answer);
  Admission Refuse(const std::string& reason, std::string message);
  std::string CheckWeight(const State& state, const std::string& id, int64_t weight, std::string* reason) const;
  void Free(uint64_t ticket);
  void Free(absl::flat_hash_map<uint64_t, Attempt>::iterator attempt);
  bool QuorumReached() const;
  void CloseIfDue(absl::Duration now, Actions* actions);
  void StartClosing(Actions* actions);
  void FinishClosing(Actions* actions);

  RoundPlan plan_;
  Phase phase_ = Phase::kIdle;
  uint64_t weight_ = 0;    // committed and reserved
  uint64_t clients_ = 0;   // the same, counted in clients
  uint64_t accepted_ = 0;  // clients folded, or behind reports
  uint64_t folding_ = 0;   // attempts
  absl::Duration deadline_;
  uint64_t next_ticket_ = 1;
  absl::flat_hash_map<std::string, State> members_;
  absl::flat_hash_map<uint64_t, Attempt> attempts_;         // under way and folded
  absl::flat_hash_map<std::string, uint64_t> counted_;      // client id -> the ticket that stands for it
  std::set<std::pair<absl::Duration, std::string>> away_;   // awaited members whose session ended, by grace expiry
  uint64_t awaited_ = 0;   // members in kAwaited, kUploading or kFolding
  uint64_t answered_ = 0;  // members in kAccepted, kRejected or kDeclined
  std::map<std::string, uint64_t> rejected_;
  uint64_t late_ = 0;
};

}  // namespace tributary::aggregation
