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
  kDrop,        // it is STALE
  kCarry,       // it counts in the round that is open then, weighing less (StaleWeight)
  kSupplement,  // a rack sends a second partial sum with it, while its parent's round is open
};

// The partial sums that a rack may send in a round: one, and one more with what came after it.
inline constexpr uint32_t kMostParts = 2;

// A name, of a member or of a client behind one; a longer one is a mistake or an attack.
inline constexpr size_t kMostIdBytes = 256;

// A faulty aggregator must not fill the memory with clients that it makes up. The claims of one
// that wait or are granted: kFewClaims, or twice the clients known below this node where those are
// more (a dead neighbour's all come to it, and others for the first time), but kMostClaims at most;
// those of all together: kMostClaimsOfAll. A node holds 20,000 sessions by default, a run that it
// is built for 100,000 clients.
inline constexpr uint64_t kFewClaims = 1 << 16;
inline constexpr uint64_t kMostClaims = 1 << 18;
inline constexpr uint64_t kMostClaimsOfAll = 1 << 19;

// Members that have gone from a round, with nothing of theirs in it: each is remembered until it
// ends, for what is said of it then, and so that it is known when it comes back. While there are so
// many, who has not been in the round yet sits it out: ids that come and go must not fill the
// memory.
inline constexpr uint64_t kMostAway = 1 << 16;

struct RoundPlan {
  uint64_t round = 0;
  uint64_t seed = 0;
  double cohort_fraction = 1;  // clients whose seeded hash is under it are in; aggregators always
  // Above 0: so many clients are asked instead, those of the smallest CohortKey; whoever is given
  // up or declines is replaced by the next in line.
  uint64_t cohort_count = 0;
  uint64_t target = 0;  // accepted clients (those behind partial sums count) that close the round
                        // early; 0: none do
  // Share of the awaited members whose accepted updates (or evaluation reports) close the round
  // early; (0, 1]. Left out are those given up, refused or with nothing to send: what is refused
  // neither counts towards the quorum nor holds it up.
  double quorum = 1;
  uint32_t minimum = 1;  // accepted clients (those behind partial sums count) for success
  uint32_t maximum = 0;  // most clients admitted; so many accepted close the round; 0: no limit
  absl::Duration deadline = absl::Minutes(10);  // from Begin
  // From Begin too; counts only where `enough` clients are accepted (those behind partial sums
  // count): a round that would fail is better waited for, until `deadline`.
  absl::Duration soft_deadline = absl::InfiniteDuration();
  uint64_t enough = 1;
  WithinRound within = {};  // may bring the soft deadline forward
  // A member that left without a word is awaited this long.
  absl::Duration rejoin_grace = absl::Seconds(5);
  // How long a round that is about to close waits for the racks' second partial sums.
  absl::Duration last_call = absl::Seconds(1);
  // Its sum goes to a parent, which takes a second one: so claims are heard when the first has
  // closed, too.
  bool reopens = false;
  uint64_t max_weight = 1 << 20;         // W_max of this node
  uint64_t max_client_weight = 1 << 20;  // of one update
  Late late = Late::kDrop;
  uint64_t max_staleness = 4;  // rounds that a carried update may be late by
};

enum class Verdict { kAdmit, kDuplicate, kStale, kReject };

struct Admission {
  Verdict verdict = Verdict::kReject;
  // UploadResponse.reason's word. kStale: "round". kReject: "session", "cohort", "weight", "full"
  // (also of members: see kMostAway), "malformed" (an aggregator that names no clients),
  // "duplicate_clients", "fenced" (its clients were given to another), "part" (not the next of its
  // partial sums) or "unclaimed".
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
  std::map<std::string, uint32_t> parts;     // of those aggregators that have more than one in
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
    kTask,     // send the task to `member`
    kAbort,    // cancel the upload with `ticket`: the round has closed or a newer attempt is here
    kClosed,   // no more is admitted and nothing is in flight: Result() is final
    kClaims,   // tell `member` which of its claims are granted, taken or refused
    kCollect,  // tell `member` that its second partial sum is wanted now
  };
  Kind kind;
  std::string member{};
  uint64_t ticket = 0;
  std::vector<std::string> granted{}, taken{}, refused{};  // client ids
};

// What a rack says of clients that came to it while a round was running, and that may have been
// counted elsewhere: see RoundMachine::Claim.
struct ClaimRequest {
  std::vector<std::string> clients{};
  bool late = false;   // the round is not to wait for them
  uint64_t done = 0;   // of those granted so far (but for late ones), how many have answered
  bool open = false;   // it has something, or may have, for a second partial sum
  bool blank = false;  // it counts nobody in this round without a claim
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
    // It came while the round was running: it gets the task, but is not awaited, and what it offers
    // is refused as "unclaimed" until Claimed.
    bool unclaimed = false;
    uint64_t clients = 0;  // aggregators: below it
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
  // the same epoch both stand, and it gets the task only if it is still awaited. Older epochs, who
  // is not in the cohort, and where it is Crowded who is not known: ignored.
  std::vector<Action> Joined(const Member& member, absl::Duration now);
  // Its session ended: awaited for rejoin_grace, then given up; `for_good` (it has said that it
  // leaves): at once. An upload in flight may outlive the session and still count; only when it
  // breaks off is the member given up. Another epoch than the current is ignored.
  std::vector<Action> Left(const std::string& id, uint64_t epoch, absl::Duration now,
                           bool for_good = false);

  // An upload or a partial sum wants in. `clients`: ids behind it, for an aggregator; empty for a
  // client. An admitted one holds its weight and clients until Aborted, Refused or the close. Any
  // refusal except "session" and "cohort" is the member's answer (it may offer again while the
  // round is open); where nobody else is awaited then, NextTimer() is due at once. A member that is
  // in is a duplicate, after the close too.
  Admission Offer(const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
                  const std::vector<std::string>& clients, absl::Duration now, uint32_t part = 0);
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

  // ---- Clients that change their aggregator within the round (round_claims.cc)

  // An aggregator wants to count these clients, which came to it while the round was running. A
  // claim is granted where nobody else has counted the client or still may: the partial sums of the
  // other aggregators are in, or they were given up. One whose session has ended is fenced by that:
  // what its present life still offers in this round is refused, and counts nowhere. Taken is who
  // is counted already. Else the claim waits. Answers come as kClaims, now or after a later event.
  // Refused, at once and without a trace, is what passes the bounds on claims (kMostClaims) or on
  // ids. A round whose quorum is everybody does not close by answers before granted ones are done.
  // Once it has closed, only one that Reopens hears of them: whose sum is not in by then will not
  // be in its first sum any more, and is not waited for.
  std::vector<Action> Claim(const std::string& id, uint64_t epoch, const ClaimRequest& request,
                            absl::Duration now);
  // How many clients an aggregator has now. One that began anew, or is away, and has none is not
  // awaited once all clients that there were are with others.
  std::vector<Action> Census(const std::string& id, uint64_t epoch, uint64_t clients,
                             absl::Duration now);
  // The parent has granted this member's claim (`late`: it is not awaited), or has said that it is
  // counted elsewhere: then it is a duplicate here. Only for clients that this node has claimed:
  // their number is what bounds the strangers among the members. A granted one that has not begun
  // to send is awaited until the soft deadline, but for `last_call` at least: it may have trained
  // elsewhere, and be about to send. After that it may still offer, and nobody waits for it.
  std::vector<Action> Claimed(const std::string& id, bool late, absl::Duration now);
  std::vector<Action> Elsewhere(const std::string& id, absl::Duration now);
  bool CountedElsewhere(const std::string& id) const;
  bool Unclaimed(const std::string& id) const;
  // A grant made here is void: the parent says that the client is counted elsewhere.
  std::vector<Action> Ungrant(const std::string& client, absl::Duration now);
  // Closed, and its sum is being forwarded: opens again for a second one, for clients whose claims
  // are granted. Result() is then that of the second alone. Until Call or the deadline. False: not
  // any more.
  bool Reopen(absl::Duration now);
  bool CanReopen(absl::Duration now) const;
  uint32_t part() const { return part_; }
  // The parent wants the second sum: closes when what is in flight is in, `last_call` at most.
  std::vector<Action> Call(absl::Duration now);
  // Claims granted by the parent, or by this node to those below, that have not answered yet.
  uint64_t ClaimsOutstanding() const;
  // How many of its partial sums (a client's update is one) are in the first `parts` of this node.
  uint32_t PartsOf(const std::string& id, uint32_t parts) const;
  // Nobody was here to be asked when the round began: all that are, or will be, need a claim.
  bool Blank() const { return first_members_ == 0; }
  // Whether it has been a member in this round.
  bool Knows(const std::string& id) const { return members_.contains(id); }
  // Whether it takes in nobody whom it does not know: see kMostAway. Their offers are refused.
  bool Crowded() const { return away_ >= kMostAway; }

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
  // The clients in the first `parts` of this node's sums, ascending; Result has those of the last.
  std::vector<std::string> Contributors(uint32_t parts) const;
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
    absl::Duration claim_wait;                              // where it is in claim_waits_
    Answer answer = Answer::kGone;
    bool aggregator = false;
    bool in_cohort = false;   // else only known, so that an offer gets the right reason
    bool present = false;     // has a session
    bool settled = false;     // see Member
    bool unclaimed = false;   // see Member: counted in outside_, not in asked_
    bool claimed = false;     // granted by the parent, and awaited: counted in claimed_ too
    bool newcomer = false;    // was unclaimed
    bool left_out = false;    // late for the first sum, and not of the second
    bool elsewhere = false;   // counted under another aggregator
    bool fenced = false;      // its life may not offer in this round any more
    bool blank = false;       // counts nobody without a claim
    bool away = false;        // has no session, and nothing in: counted in away_
    bool supplement = false;  // has, or may have, a second partial sum
    uint32_t parts = 0;       // of its partial sums that are in, or are being folded
    uint32_t parts_at[kMostParts] = {};  // of these, in each sum of this node
    uint32_t lives = 0;
    uint64_t clients = 0;            // below it
    uint64_t most = 0;               // ever, in its present life and this round
    uint64_t granted = 0, done = 0;  // claims that the round waits for
    uint64_t waiting = 0;            // of its claims, in waiting_
    uint64_t held = 0;               // and in claims_, granted
  };
  using Entry = std::pair<const std::string, State>;
  struct Attempt {  // admitted and not yet through the workers
    Entry* member = nullptr;
    uint64_t weight = 0;
    std::vector<std::string> clients{};  // its own id, for a client
    bool folding = false;
  };
  // Under whom a client is, or will be, counted.
  struct Holder {
    Entry* member = nullptr;
    bool granted = false;  // by Claim: it outlives an attempt
    bool late = false;     // granted, and not awaited
    bool counted = false;  // in a sum
    uint32_t part = 0;     // of this node's sums
  };
  enum class Ruling { kGranted, kTaken, kWaits };
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
  void Leave(Entry& member, bool for_good);  // may end it
  bool EnterAgain(Entry& member, bool newer, Actions* actions);
  void Ask(Entry& member, Actions* actions);
  void AskNextInLine(Actions* actions);
  Tally& TallyOf(const State& state) {
    return state.owes != 0 ? carriers_ : state.unclaimed ? outside_ : asked_;
  }
  static void Tell(Tally* tally, Answer from, Answer to);
  void MoveInto(Entry& member, bool unclaimed);  // from outside_ to asked_, or back
  bool HearsClaims() const {
    const bool opens_again = plan_.reopens && part_ + 1 < kMostParts && now_ < deadline_at_;
    return phase_ == Phase::kOpen || (phase_ != Phase::kIdle && opens_again);
  }
  void ResolveClaims(Actions* actions);
  Ruling Judge(const std::string& client, Entry& claimer, Actions* actions);
  void Fence(Entry& member, Actions* actions);
  void CountClients();
  bool TakeClaim(const std::string& client, Entry& claimer, bool late);  // false: refused
  uint64_t MostClaims() const;                                           // of one aggregator
  void Release(Holder* holder);                                          // no longer granted
  void ForgetWaiting(const std::string& id);
  void ForgetClaims(Entry& member);  // its grants
  uint64_t Below() const;            // claims granted to aggregators that are not done
  uint64_t OpenSupplements() const;
  uint64_t Homeless() const;  // aggregators that need not be awaited, all clients being elsewhere
  bool NothingBelow() const;
  void AwaitClaimed(Entry& member);
  void StopClaimWait(const Entry& member);
  absl::Duration ClaimWaitEnds() const;  // the first of them; infinite: none
  void EndClaimWaits(absl::Duration until);
  absl::Duration SoftClose() const;  // the soft deadline, with what claims add to it
  void LastCall(ClosedBy why, Actions* actions);
  Answer Fallback(const State& state) const {  // of an attempt that came to nothing
    return state.parts > 0 ? Answer::kAccepted : Answer::kAwaited;
  }
  // Whose updates close the round.
  const Tally& Awaiting() const { return asked_.members > 0 ? asked_ : carriers_; }
  void SetAnswer(Entry& member, Answer answer);
  void CountAway(State& state);  // after what makes it so, or ends it
  void StartGrace(Entry& member);
  void StopGrace(Entry& member);
  void Release(uint64_t ticket);  // frees what an attempt holds
  void AbortAttempt(uint64_t ticket, Actions* actions);
  uint64_t Needed() const;  // accepted ones, for the quorum
  void LearnSoftDeadline();
  ClosedBy CloseDue() const;  // kNotYet: not due
  void Advance(absl::Duration now, Actions* actions);
  void Close(ClosedBy why, Actions* actions);
  void FinishIfDrained(Actions* actions);
  Admission Stale(const std::string& message);
  Admission Reject(const std::string& reason, const std::string& message);
  Admission Answered(Entry& member, Admission refusal);
  std::optional<Admission> CheckSession(const std::string& id, uint64_t epoch, absl::Duration now);
  std::optional<Admission> CheckPart(const State& state, const std::string& id, uint32_t part);
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
  absl::flat_hash_map<std::string, Holder> claims_;              // by client id
  std::map<std::pair<std::string, std::string>, bool> waiting_;  // (client, claimer): is it late?
  uint64_t granted_ = 0;                                         // of claims_
  std::vector<Entry*> aggregators_;
  uint64_t most_clients_ = 0;  // below the aggregators present, ever in this round
  std::map<std::pair<absl::Duration, uint64_t>, Entry*> graces_;  // by (given_up_at, order)
  // By (what each granted claim is awaited for at least, order).
  std::map<std::pair<absl::Duration, uint64_t>, Entry*> claim_waits_;
  absl::Duration claims_soft_at_ = absl::InfiniteDuration();  // the first sum's soft deadline
  std::map<std::pair<double, uint64_t>, Entry*> line_;  // by (key, order): present, not asked yet
  std::map<std::string, uint64_t> rejected_;
  uint64_t orders_ = 0;
  uint64_t away_ = 0;
  uint64_t next_ticket_ = 1;
  uint64_t late_ = 0;
  bool had_members_ = false;  // somebody to wait for, or to know that there is nobody
  ClosedBy closed_by_ = ClosedBy::kNotYet;
  Tally asked_, carriers_, outside_, claimed_;
  uint32_t part_ = 0;
  uint64_t first_members_ = 0;  // that needed no claim
  bool called_ = false;         // about to close, but for second sums
  bool drain_ = false;          // and for what is in flight
  absl::Duration called_until_ = absl::InfiniteDuration();
  ClosedBy due_ = ClosedBy::kNotYet;
  uint64_t asked_clients_ = 0;  // clients among asked_, but for those gone or declined
  uint64_t carried_ = 0;
  // Client counts and weights; what is held includes uploads in flight.
  uint64_t held_weight_ = 0;
  uint64_t weight_ = 0;
  uint64_t held_clients_ = 0;
  uint64_t accepted_clients_ = 0;
};

}  // namespace tributary::aggregation
