// The round's state machine. Every event updates a few counters, and the round's end is read off
// them.
#include "aggregation/round.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/round_answers.h"

namespace tributary::aggregation {

using internal::AddSaturating;
using internal::IsAnswered;
using internal::IsIn;
using internal::IsPending;

// ---- Members

std::vector<Action> RoundMachine::Begin(const std::vector<Member>& members, absl::Duration now) {
  Actions actions;
  if (phase_ != Phase::kIdle) return actions;
  phase_ = Phase::kOpen;
  now_ = now;
  began_ = now;
  deadline_at_ = now + plan_.deadline;
  soft_at_ = now + plan_.soft_deadline;
  // A rack whose clients all missed the cohort has nobody to wait for, and must not wait.
  had_members_ = !members.empty();
  for (const Member& member : members) Enter(member, &actions);
  AskNextInLine(&actions);
  return actions;
}

std::vector<Action> RoundMachine::Joined(const Member& member, absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ != Phase::kOpen) return actions;
  Enter(member, &actions);
  AskNextInLine(&actions);
  return actions;
}

void RoundMachine::Enter(const Member& member, Actions* actions) {
  if (const auto old = members_.find(member.id);
      old != members_.end() && old->second.aggregator != member.aggregator) {
    // One name for two things. What is counted of clients and what of aggregators must not mix: it
    // waits for the next round, and whom it has superseded is gone.
    if (member.epoch > old->second.epoch && old->second.present) {
      Leave(*old, /*for_good=*/true);
      ResolveClaims(actions);
    }
    return;
  }
  if (Crowded() && !Knows(member.id)) return;
  const auto [it, fresh] = members_.try_emplace(member.id);
  State& state = it->second;
  if (!fresh && member.epoch < state.epoch) return;
  const bool newer = fresh || member.epoch > state.epoch;
  if (fresh) state.order = ++orders_;
  if (fresh && member.aggregator) aggregators_.push_back(&*it);
  if (newer) ++state.lives;
  if (newer && !fresh && member.aggregator) {
    ForgetClaims(*it);  // its former life's
    ForgetWaiting(member.id);
    state.fenced = state.supplement = state.blank = false;
    state.granted = state.done = 0;
  }
  state.clients = member.clients;
  state.most = newer ? member.clients : std::max(state.most, member.clients);
  state.epoch = member.epoch;
  state.aggregator = member.aggregator;
  state.present = true;
  state.settled = member.settled;
  CountAway(state);
  StopGrace(*it);
  if (member.aggregator) CountClients();
  if (state.elsewhere) return;
  if (state.in_cohort &&
      EnterAgain(*it, newer || (state.owes != 0 && member.owes != state.owes), actions))
    return;
  const bool carries = plan_.late == Late::kCarry && !member.aggregator && newer &&
                       member.owes != 0 && member.owes < plan_.round &&
                       plan_.round - member.owes <= plan_.max_staleness;
  if (carries) {
    state.owes = member.owes;
    state.in_cohort = true;
    state.since = now_;
    state.answer = Answer::kAwaited;
    ++first_members_;
    ++carriers_.members;
  } else if (member.unclaimed && !member.aggregator) {
    if (plan_.cohort_count > 0 ||
        !InCohort(plan_.seed, plan_.round, member.id, plan_.cohort_fraction)) {
      return;
    }
    state.unclaimed = state.newcomer = state.in_cohort = true;
    state.since = now_;
    state.answer = Answer::kAwaited;
    ++outside_.members;
    actions->push_back({.kind = Action::Kind::kTask, .member = member.id});
  } else if (member.aggregator ||
             (plan_.cohort_count == 0 &&
              InCohort(plan_.seed, plan_.round, member.id, plan_.cohort_fraction))) {
    Ask(*it, actions);
  } else if (plan_.cohort_count > 0) {
    line_.erase(std::pair(state.key, state.order));
    state.key = CohortKey(plan_.seed, plan_.round, member.id, member.preference);
    line_.emplace(std::pair(state.key, state.order), &*it);
  }
}

// `newer`: it has begun anew, and what it did or owed before is void. False where it is to enter as
// if it had not been there.
bool RoundMachine::EnterAgain(Entry& member, bool newer, Actions* actions) {
  State& state = member.second;
  if (IsIn(state.answer) || state.elsewhere) return true;
  if (!newer && state.fenced) {
    SetAnswer(member, Answer::kRejected);
    return true;
  }
  if (!newer && (state.answer == Answer::kUploading || IsAnswered(state.answer))) return true;
  if (state.answer == Answer::kUploading) AbortAttempt(state.ticket, actions);
  SetAnswer(member, Fallback(state));
  if (state.parts > 0 || state.left_out) return true;
  if (state.owes == 0) {
    actions->push_back({.kind = Action::Kind::kTask, .member = member.first});
    return true;
  }
  if (!newer) return true;  // it still works on what it owes
  --carriers_.members;
  state.owes = 0;
  state.in_cohort = false;
  return false;
}

void RoundMachine::Ask(Entry& member, Actions* actions) {
  State& state = member.second;
  state.in_cohort = true;
  state.since = now_;
  state.answer = Answer::kAwaited;
  ++first_members_;
  ++asked_.members;
  if (!state.aggregator) ++asked_clients_;
  had_members_ = true;
  actions->push_back({.kind = Action::Kind::kTask, .member = member.first});
}

void RoundMachine::AskNextInLine(Actions* actions) {
  while (asked_clients_ < plan_.cohort_count && !line_.empty()) {
    Entry& next = *line_.begin()->second;
    line_.erase(line_.begin());
    Ask(next, actions);
  }
}

std::vector<Action> RoundMachine::Left(const std::string& id, uint64_t epoch, absl::Duration now,
                                       bool for_good) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ != Phase::kOpen) return actions;
  const auto it = members_.find(id);
  if (it == members_.end() || it->second.epoch != epoch || !it->second.present) return actions;
  Leave(*it, for_good);
  ResolveClaims(&actions);
  Advance(now_, &actions);  // a grace of nothing is over at once
  return actions;
}

void RoundMachine::Leave(Entry& member, bool for_good) {
  State& state = member.second;
  state.present = false;
  if (state.aggregator) ForgetWaiting(member.first);
  if (!state.in_cohort) {
    line_.erase(std::pair(state.key, state.order));
    members_.erase(member.first);
    return;
  }
  CountAway(state);
  if (!IsPending(state.answer)) return;
  state.given_up_at = for_good ? now_ : now_ + plan_.rejoin_grace;
  StartGrace(member);
}

void RoundMachine::SetAnswer(Entry& member, Answer answer) {
  State& state = member.second;
  Tell(&TallyOf(state), state.answer, answer);
  if (state.claimed) Tell(&claimed_, state.answer, answer);
  if (!state.aggregator && state.owes == 0 && !state.unclaimed) {
    const auto lost = [](Answer a) { return a == Answer::kGone || a == Answer::kDeclined; };
    asked_clients_ = asked_clients_ + lost(state.answer) - lost(answer);
  }
  state.answer = answer;
  if (IsPending(answer)) return;
  StopGrace(member);
  StopClaimWait(member);
}

// Whoever is counted elsewhere has been claimed, and there is a bound on those.
void RoundMachine::CountAway(State& state) {
  const bool away = !state.present && state.parts == 0 && !state.elsewhere;
  away_ = away_ + away - state.away;
  state.away = away;
}

void RoundMachine::Tell(Tally* tally, Answer from, Answer to) {
  tally->gone = tally->gone + (to == Answer::kGone) - (from == Answer::kGone);
  tally->accepted = tally->accepted + (to == Answer::kAccepted) - (from == Answer::kAccepted);
  tally->answered = tally->answered + IsAnswered(to) - IsAnswered(from);
}

void RoundMachine::StartGrace(Entry& member) {
  const State& state = member.second;
  if (state.given_up_at == absl::InfiniteDuration()) return;
  graces_.emplace(std::pair(state.given_up_at, state.order), &member);
}

void RoundMachine::StopGrace(Entry& member) {
  State& state = member.second;
  graces_.erase(std::pair(state.given_up_at, state.order));
  state.given_up_at = absl::InfiniteDuration();
}

// ---- Time and the end

uint64_t RoundMachine::Needed() const {
  const Tally& tally = Awaiting();
  // Who is refused or declines is out, as the gone are: else who sends nothing but what is refused
  // would close the round (if that were an answer of the quorum's), or hold it up (if not).
  const uint64_t out = tally.gone + (tally.answered - tally.accepted) + Homeless();
  const uint64_t awaited = tally.members - std::min(tally.members, out);
  if (awaited == 0) return 0;
  // 0.55 * 100 is 55.00000000000001 in doubles, and needs 55, not 56.
  const double share = plan_.quorum * static_cast<double>(awaited) * (1 - 1e-12);
  if (!(share < static_cast<double>(awaited))) return awaited;
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(std::max(share, 0.0))), 1, awaited);
}

void RoundMachine::LearnSoftDeadline() {
  const WithinRound& within = plan_.within;
  const uint64_t there = asked_.members - asked_.gone;
  if (within.quantile <= 0 || asked_.accepted < within.least) return;
  if (static_cast<double>(asked_.accepted) < within.quantile * static_cast<double>(there)) return;
  soft_at_ = std::min(soft_at_, began_ + std::max(within.floor, within.margin * (now_ - began_)));
}

absl::Duration RoundMachine::ClosesAt() const {
  if (called_) return called_until_;
  return accepted_clients_ >= plan_.enough ? std::min(SoftClose(), deadline_at_) : deadline_at_;
}

ClosedBy RoundMachine::CloseDue() const {
  if (called_) {
    const bool open = OpenSupplements() > 0 || (drain_ && !attempts_.empty());
    return open ? ClosedBy::kNotYet : due_;
  }
  if (part_ > 0) return ClosedBy::kNotYet;  // a second sum is open until it is called for
  if (plan_.maximum > 0 && accepted_clients_ >= plan_.maximum) return ClosedBy::kMaximum;
  if (plan_.target > 0 && accepted_clients_ >= plan_.target) return ClosedBy::kTarget;
  if (had_members_ && Awaiting().accepted >= Needed() && NothingBelow()) {
    return ClosedBy::kAnswers;
  }
  return ClosedBy::kNotYet;
}

// Lets happen what is due at `now`, in the order of its times, as if each timer had been called.
void RoundMachine::Advance(absl::Duration now, Actions* actions) {
  now_ = std::max(now_, now);
  if (phase_ != Phase::kOpen) return;
  const absl::Duration until = std::min(now_, ClosesAt());
  while (CloseDue() == ClosedBy::kNotYet && !graces_.empty() &&
         graces_.begin()->first.first <= until) {
    Entry& member = *graces_.begin()->second;
    graces_.erase(graces_.begin());
    // A stream may outlive its session and end well; where it breaks off, Aborted gives the member
    // up.
    if (member.second.answer != Answer::kAwaited) continue;
    SetAnswer(member, Answer::kGone);
    AskNextInLine(actions);
    ResolveClaims(actions);
  }
  EndClaimWaits(until);
  const ClosedBy due = CloseDue();
  if (due == ClosedBy::kNotYet && now_ < ClosesAt()) return;
  const ClosedBy why = due != ClosedBy::kNotYet ? due : called_ ? due_ : ClosedBy::kDeadline;
  if (!called_ && now_ < deadline_at_ && OpenSupplements() > 0) {
    LastCall(why, actions);
  } else {
    Close(why, actions);
  }
}

std::vector<Action> RoundMachine::Timer(absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  return actions;
}

std::optional<absl::Duration> RoundMachine::NextTimer() const {
  if (phase_ != Phase::kOpen) return std::nullopt;
  if (CloseDue() != ClosedBy::kNotYet) return now_;
  // May have passed since the last event that looked.
  const absl::Duration at = std::min(ClosesAt(), ClaimWaitEnds());
  return graces_.empty() ? at : std::min(at, graces_.begin()->first.first);
}

std::vector<Action> RoundMachine::CloseNow(absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ == Phase::kOpen || phase_ == Phase::kIdle) Close(ClosedBy::kTold, &actions);
  return actions;
}

void RoundMachine::Close(ClosedBy why, Actions* actions) {
  phase_ = Phase::kClosing;
  closed_by_ = why;
  graces_.clear();
  line_.clear();
  std::vector<uint64_t> uploading;
  for (const auto& [ticket, attempt] : attempts_) {
    if (!attempt.folding) uploading.push_back(ticket);
  }
  for (const uint64_t ticket : uploading) {
    Entry& member = *attempts_.at(ticket).member;
    AbortAttempt(ticket, actions);
    SetAnswer(member, Fallback(member.second));
    late_ = AddSaturating(late_, 1);  // it was on its way
  }
  FinishIfDrained(actions);
}

void RoundMachine::FinishIfDrained(Actions* actions) {
  if (!attempts_.empty()) return;
  phase_ = Phase::kClosed;
  actions->push_back({.kind = Action::Kind::kClosed});
}

// ---- What is known

Answer RoundMachine::AnswerOf(const std::string& id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? Answer::kGone : it->second.answer;
}

std::vector<std::string> RoundMachine::Awaited() const {
  std::vector<std::string> ids;
  for (const auto& [id, state] : members_) {
    if (IsPending(state.answer)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string RoundMachine::WhyNot() const {
  if (accepted_clients_ >= plan_.minimum) return "";
  uint64_t refused = 0;
  for (const auto& [reason, count] : rejected_) refused = AddSaturating(refused, count);
  return absl::StrCat("round ", plan_.round, " has ", accepted_clients_, " of the ", plan_.minimum,
                      " clients that it needs: of ", asked_.members, " members ", asked_.answered,
                      " answered and ", asked_.gone, " are gone, ", refused,
                      " offers were refused and ", late_,
                      " came too late; lower the minimum or allow more time");
}

RoundResult RoundMachine::Result() const {
  RoundResult result;
  result.success = accepted_clients_ >= plan_.minimum;
  result.why_not = WhyNot();
  result.weight = weight_;
  result.clients = accepted_clients_;
  for (const auto& [id, state] : members_) {
    if (state.parts == 0 || state.owes != 0) continue;
    result.children.push_back(id);
    if (state.parts > 1) result.parts[id] = state.parts;
  }
  std::sort(result.children.begin(), result.children.end());
  result.contributors.reserve(claims_.size());
  for (const auto& [client, holder] : claims_) {
    if (holder.counted && holder.part == part_) result.contributors.push_back(client);
  }
  std::sort(result.contributors.begin(), result.contributors.end());
  result.rejected = rejected_;
  result.late = late_;
  result.closed_by = closed_by_;
  result.asked = asked_.members;
  result.gone = asked_.gone;
  result.answered = asked_.answered;
  result.carried = carried_;
  return result;
}

std::vector<std::string> RoundMachine::Contributors(uint32_t parts) const {
  std::vector<std::string> out;
  for (const auto& [client, holder] : claims_) {
    if (holder.counted && holder.part < parts) out.push_back(client);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<MemberTime> RoundMachine::Times() const {
  std::vector<MemberTime> times;
  for (const auto& [id, state] : members_) {
    if (!state.in_cohort || state.owes != 0 || state.unclaimed) continue;
    times.push_back({.id = id,
                     .aggregator = state.aggregator,
                     .answer = state.answer,
                     .took = state.answer == Answer::kAccepted ? state.until - state.since
                                                               : absl::InfiniteDuration()});
  }
  std::sort(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return times;
}

uint64_t RoundMachine::RoundOf(const std::string& id) const {
  const auto it = members_.find(id);
  return it == members_.end() || it->second.owes == 0 ? plan_.round : it->second.owes;
}

uint64_t RoundMachine::OwedRound(const std::string& id) const {
  const auto it = members_.find(id);
  if (plan_.late != Late::kCarry || it == members_.end()) return 0;
  const State& state = it->second;
  // Without a session it may come back as somebody who has begun anew.
  if (!state.in_cohort || state.aggregator || !state.present || state.newcomer) return 0;
  if (state.answer != Answer::kAwaited) return 0;
  if (state.owes != 0) return state.owes;
  return state.settled ? plan_.round : 0;
}

}  // namespace tributary::aggregation
