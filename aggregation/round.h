// A round as a pure state machine: who is in, who has sent, when it closes. No threads, sockets,
// files or clock inside: events in, actions out; the same for a root and a rack, for real sockets
// and virtual time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/time/time.h"
#include "aggregation/cohort.h"
#include "aggregation/deadline.h"

namespace tributary::aggregation {

// What becomes of an update that comes after its round has closed.
enum class Late {
  kDrop,   // it is STALE
  kCarry,  // it counts in the round that is open then, weighing less (StaleWeight)
};

struct RoundPlan {
  uint64_t round = 0;
  uint64_t seed = 0;
  double cohort_fraction = 1;  // clients whose seeded hash is under it are in; aggregators always
  // Above 0: so many clients are asked instead, those of the smallest CohortKey; whoever is given
  // up or declines is replaced by the next in line.
  uint64_t cohort_count = 0;
  uint64_t target = 0;  // accepted clients (those behind partial sums count) that close the round
                        // early; 0: none do
  // Share of the awaited members (the given up ones left out) whose answer closes the round early;
  // (0, 1]. An answer is an accepted update, a refusal or a report.
  double quorum = 1;
  uint32_t minimum = 1;  // accepted clients (those behind partial sums count) for success
  uint32_t maximum = 0;  // most clients admitted; so many accepted close the round; 0: no limit
  absl::Duration deadline = absl::Minutes(10);  // from Begin
  // From Begin too; counts only where `enough` clients are accepted (those behind partial sums
  // count): a round that would fail is better waited for, until `deadline`.
  absl::Duration soft_deadline = absl::InfiniteDuration();
  uint64_t enough = 1;
  WithinRound within = {};                         // may bring the soft deadline forward
  absl::Duration rejoin_grace = absl::Seconds(5);  // a member that left is awaited this long
  uint64_t max_weight = 1 << 20;                   // W_max of this node
  uint64_t max_client_weight = 1 << 20;            // of one update
  Late late = Late::kDrop;
  uint64_t max_staleness = 4;  // rounds that a carried update may be late by
};

enum class Verdict { kAdmit, kDuplicate, kStale, kReject };

struct Admission {
  Verdict verdict = Verdict::kReject;
  // UploadResponse.reason's word. kStale: "round". kReject: "session", "cohort", "weight", "full",
  // "malformed" (an aggregator that names no clients) or "duplicate_clients".
  std::string reason{};
  std::string message{};
  uint64_t ticket = 0;    // kAdmit: names this attempt in the calls that follow
  uint64_t replaces = 0;  // kAdmit: a ticket that this attempt supersedes, to be cancelled; 0: none
  uint64_t weight = 0;    // kAdmit: what it is to be folded with
  uint64_t staleness = 0;  // kAdmit: rounds that it is late by
};

// How a member's part ended, for Outcome.
enum class Answer { kAwaited, kUploading, kFolding, kAccepted, kRejected, kDeclined, kGone };

enum class ClosedBy { kNotYet, kAnswers, kTarget, kMaximum, kDeadline, kTold };

// How one member of the cohort did; for the next deadline, and for who is slow.
struct MemberTime {
  std::string id;
  bool aggregator = false;
  Answer answer = Answer::kAwaited;
  absl::Duration took = absl::InfiniteDuration();  // task to the end of its folding; accepted only
};

struct RoundResult {
  bool success = false;  // accepted clients >= minimum
  std::string why_not;   // names the numbers
  uint64_t weight = 0;   // W
  uint64_t clients = 0;  // accepted, those behind partial sums among them
  // Direct members whose contribution is in, ascending; but for carried ones, which are of another
  // round: who asks how this one ended must not be told that.
  std::vector<std::string> children;
  std::vector<std::string> contributors;     // client ids, ascending
  std::map<std::string, uint64_t> rejected;  // by reason, this node's own and those reported below
  uint64_t late = 0;
  ClosedBy closed_by = ClosedBy::kNotYet;
  uint64_t asked = 0;     // members that got a task, ever
  uint64_t gone = 0;      // of them, given up
  uint64_t answered = 0;  // of them
  uint64_t carried = 0;   // accepted updates of earlier rounds
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

// Not thread-safe: the driver holds a lock. `now` is monotonic and never goes back. After every
// call, Offer too, NextTimer() may have changed. Calls with tickets, epochs or ids that mean
// nothing any more are ignored, and so is everything before Begin. Events of members come after the
// timers that `now` has passed, the end of an attempt before them. Work per call does not grow with
// the members, except where the round closes and where a list is returned.
class RoundMachine {
 public:
  struct Member {
    std::string id;
    bool aggregator = false;
    uint64_t epoch = 0;     // of its session
    double preference = 1;  // clients; above 0: chances against others where a count is chosen
    // The round whose update it still works on, that round having closed without it; 0: none. Where
    // late updates are carried it gets no task, is not awaited for the quorum (unless there is
    // nobody else), and may offer that update. A newer epoch owes nothing.
    uint64_t owes = 0;
    // Its session began before the root announced this round: so it cannot have been counted for it
    // anywhere else, in this life or a former one. Only then may what it is late with be carried.
    bool settled = false;
  };

  explicit RoundMachine(const RoundPlan& plan) : plan_(plan) {}
  RoundMachine(const RoundMachine&) = delete;
  RoundMachine& operator=(const RoundMachine&) = delete;

  // Starts with the members present. Those in the cohort get a task. Never closes by itself: where
  // there are members and none is in the cohort, NextTimer() is due at once; without any member,
  // joiners are waited for until the deadline.
  std::vector<Action> Begin(const std::vector<Member>& members, absl::Duration now);

  // A member joined, or joined again. It gets the task unless its update is in. With a larger epoch
  // its upload in flight is aborted, and a refusal or decline of its former life is forgotten; with
  // the same epoch both stand, and it gets the task only if it is still awaited. Older epochs and
  // who is not in the cohort: ignored.
  std::vector<Action> Joined(const Member& member, absl::Duration now);
  // Its session ended: awaited for rejoin_grace, then given up. An upload in flight may outlive the
  // session and still count; only when it breaks off is the member given up. Another epoch than the
  // current is ignored.
  std::vector<Action> Left(const std::string& id, uint64_t epoch, absl::Duration now);

  // An upload or a partial sum wants in. `clients`: ids behind it, for an aggregator; empty for a
  // client. An admitted one holds its weight and clients until Aborted, Refused or the close. Any
  // refusal except "session" and "cohort" is the member's answer (it may offer again while the
  // round is open); where that completes the quorum, NextTimer() is due at once. A member that is
  // in is a duplicate, after the close too.
  Admission Offer(const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
                  const std::vector<std::string>& clients, absl::Duration now);
  // It is received and valid, and now goes to the workers: from here it counts. False where the
  // round has closed meanwhile, or the ticket was replaced: drop it (STALE).
  bool Commit(uint64_t ticket);
  // The workers are through with it.
  std::vector<Action> Folded(uint64_t ticket, absl::Duration now);
  // It broke off or was damaged: what it reserved is free, and the member is awaited again.
  std::vector<Action> Aborted(uint64_t ticket, absl::Duration now);
  // It was refused for good, with a reason: the member is not awaited any more.
  std::vector<Action> Refused(uint64_t ticket, const std::string& reason, absl::Duration now);
  // The member answered without an update (declined, an empty rack, an evaluation report).
  // `clients`: how many are behind an evaluation report; 0 for a decline. Ignored where it has
  // answered.
  std::vector<Action> Reported(const std::string& id, uint64_t epoch, uint64_t clients,
                               absl::Duration now);
  // What children say they refused; goes to Result().
  void CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t late);
  // An offer refused before a ticket was given, with its reason, is counted by Offer itself.

  // Time has come (or passed) NextTimer().
  std::vector<Action> Timer(absl::Duration now);
  // The earliest of the deadline that counts and what is left of the rejoin graces; nullopt unless
  // open.
  std::optional<absl::Duration> NextTimer() const;

  // Whichever deadline counts as things are.
  absl::Duration ClosesAt() const;

  // Closes now (shutdown, or the parent's word): uploads in flight are aborted, folds are waited
  // for.
  std::vector<Action> CloseNow(absl::Duration now);

  bool open() const { return phase_ == Phase::kOpen; }  // admits
  bool closed() const { return phase_ == Phase::kClosed; }
  Answer AnswerOf(const std::string& id) const;  // kGone where unknown or not in the cohort
  std::vector<std::string> Awaited() const;      // ids without an answer, ascending, for the log
  RoundResult Result() const;                    // once closed; only `late` still grows
  // Those who had a task, in the order of their ids.
  std::vector<MemberTime> Times() const;
  // Once closed: the round whose update it still works on and may carry into the next round; 0:
  // none.
  uint64_t OwedRound(const std::string& id) const;
  // The round that its answer is about: this one, or the one that it owed.
  uint64_t RoundOf(const std::string& id) const;
  uint64_t weight() const { return weight_; }  // of the committed

 private:
  enum class Phase { kIdle, kOpen, kClosing, kClosed };
  struct State {  // one member's
    uint64_t epoch = 0;
    uint64_t ticket = 0;  // its attempt in flight; 0: none
    uint64_t order = 0;   // of its first appearance; makes ties between timers deterministic
    uint64_t owes = 0;    // see Member; not 0: counted in carriers_, not in asked_
    double key = 0;       // its place in line
    absl::Duration given_up_at = absl::InfiniteDuration();  // finite: it is in graces_
    absl::Duration since, until;                            // its task, and its acceptance
    Answer answer = Answer::kGone;
    bool aggregator = false;
    bool in_cohort = false;  // else only known, so that an offer gets the right reason
    bool present = false;    // has a session
    bool settled = false;    // see Member
  };
  using Entry = std::pair<const std::string, State>;
  struct Attempt {  // admitted and not yet through the workers
    Entry* member = nullptr;
    uint64_t weight = 0;
    std::vector<std::string> clients{};  // its own id, for a client
    bool folding = false;
  };
  // Members that ever were asked, and of them those given up, and those accepted, rejected or
  // declined.
  struct Tally {
    uint64_t members = 0;
    uint64_t gone = 0;
    uint64_t answered = 0;
    uint64_t accepted = 0;  // of the answered
  };
  using Actions = std::vector<Action>;

  void Enter(const Member& member, Actions* actions);
  bool EnterAgain(Entry& member, bool newer, Actions* actions);
  void Ask(Entry& member, Actions* actions);
  void AskNextInLine(Actions* actions);
  Tally& TallyOf(const State& state) { return state.owes != 0 ? carriers_ : asked_; }
  // Whose answers close the round.
  const Tally& Awaiting() const { return asked_.members > 0 ? asked_ : carriers_; }
  void SetAnswer(Entry& member, Answer answer);
  void StartGrace(Entry& member);
  void StopGrace(Entry& member);
  void Release(uint64_t ticket);  // frees what an attempt holds
  void AbortAttempt(uint64_t ticket, Actions* actions);
  uint64_t Needed() const;  // answers for the quorum
  void LearnSoftDeadline();
  ClosedBy CloseDue() const;  // kNotYet: not due
  void Advance(absl::Duration now, Actions* actions);
  void Close(ClosedBy why, Actions* actions);
  void FinishIfDrained(Actions* actions);
  Admission Stale(const std::string& message);
  Admission Reject(const std::string& reason, const std::string& message);
  Admission Answered(Entry& member, Admission refusal);
  std::optional<Admission> CheckSession(const std::string& id, uint64_t epoch, absl::Duration now);
  std::optional<Admission> CheckWeight(Entry& member, int64_t weight);
  std::optional<Admission> CheckRoom(Entry& member, int64_t weight,
                                     const std::vector<std::string>& clients);
  std::optional<Admission> CheckClaim(Entry& member);
  std::optional<Admission> CheckClients(Entry& member, const std::vector<std::string>& clients);
  Admission Admit(Entry& member, uint64_t weight, std::vector<std::string> clients);
  void CountRejected(const std::string& reason, uint64_t count);
  std::string WhyNot() const;

  RoundPlan plan_;
  Phase phase_ = Phase::kIdle;
  absl::Duration now_ = absl::ZeroDuration();  // the latest seen
  absl::Duration began_ = absl::ZeroDuration();
  absl::Duration deadline_at_ = absl::InfiniteDuration();
  absl::Duration soft_at_ = absl::InfiniteDuration();
  absl::node_hash_map<std::string, State> members_;  // its nodes stay where they are
  std::map<uint64_t, Attempt> attempts_;  // by ticket; ordered, for the order of the aborts
  absl::flat_hash_map<std::string, Entry*>
      claims_;  // client id -> the member that it is counted under
  std::map<std::pair<absl::Duration, uint64_t>, Entry*> graces_;  // by (given_up_at, order)
  std::map<std::pair<double, uint64_t>, Entry*> line_;  // by (key, order): present, not asked yet
  std::map<std::string, uint64_t> rejected_;
  uint64_t orders_ = 0;
  uint64_t next_ticket_ = 1;
  uint64_t late_ = 0;
  bool had_members_ = false;  // somebody to wait for, or to know that there is nobody
  ClosedBy closed_by_ = ClosedBy::kNotYet;
  Tally asked_, carriers_;
  uint64_t asked_clients_ = 0;  // clients among asked_, but for those gone or declined
  uint64_t carried_ = 0;
  // Client counts and weights; what is held includes uploads in flight.
  uint64_t held_weight_ = 0;
  uint64_t weight_ = 0;
  uint64_t held_clients_ = 0;
  uint64_t accepted_clients_ = 0;
};

}  // namespace tributary::aggregation
