// Clients that change their aggregator within the round: who may count them, and second partial
// sums for them.
//
// What makes each count once is Offer: a partial sum that names a client that is counted under
// another is refused whole. The claims see to it that none has to be.
#include <algorithm>
#include <utility>

#include "aggregation/internal/round_answers.h"
#include "aggregation/round.h"

namespace tributary::aggregation {

using internal::AddSaturating;
using internal::IsPending;

// ---- At the parent

std::vector<Action> RoundMachine::Claim(const std::string& id, uint64_t epoch,
                                        const ClaimRequest& request, absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  const auto it = members_.find(id);
  if (!HearsClaims() || it == members_.end()) return actions;
  State& state = it->second;
  if (!state.aggregator || state.epoch != epoch || !state.present || state.fenced) return actions;
  state.done = std::clamp(request.done, state.done, std::max(state.done, state.granted));
  state.blank = state.blank || request.blank;
  const bool was_open = state.supplement;
  state.supplement = request.open && state.parts < kMostParts;
  if (open() && called_ && state.supplement && !was_open) {
    actions.push_back({.kind = Action::Kind::kCollect, .member = id});
  }
  Action refusal{.kind = Action::Kind::kClaims, .member = id};
  for (const std::string& client : request.clients) {
    if (!TakeClaim(client, *it, request.late)) refusal.refused.push_back(client);
  }
  if (!refusal.refused.empty()) actions.push_back(std::move(refusal));
  ResolveClaims(&actions);
  Advance(now_, &actions);
  return actions;
}

bool RoundMachine::TakeClaim(const std::string& client, Entry& claimer, bool late) {
  if (client.empty() || client.size() > kMostIdBytes) return false;
  State& state = claimer.second;
  std::pair key(client, claimer.first);
  if (waiting_.contains(key)) return true;
  // What is decided is answered at once, as before: it takes no room.
  const auto it = claims_.find(client);
  const bool decided =
      it != claims_.end() &&
      (it->second.counted || (it->second.granted && it->second.member == &claimer));
  const bool room =
      state.waiting + state.held < MostClaims() && waiting_.size() + granted_ < kMostClaimsOfAll;
  if (!decided && !room) return false;
  waiting_.emplace(std::move(key), late);
  ++state.waiting;
  return true;
}

uint64_t RoundMachine::MostClaims() const {
  return std::clamp(AddSaturating(most_clients_, most_clients_), kFewClaims, kMostClaims);
}

void RoundMachine::ResolveClaims(Actions* actions) {
  if (!HearsClaims() || waiting_.empty()) return;
  std::map<std::string, Action> answers;  // by claimer
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto& [client, claimer] = it->first;
    Entry& member = *members_.find(claimer);
    const Ruling ruling = Judge(client, member, actions);
    if (ruling == Ruling::kWaits) {
      ++it;
      continue;
    }
    Action& answer = answers[claimer];
    answer.kind = Action::Kind::kClaims;
    answer.member = claimer;
    if (ruling == Ruling::kTaken) {
      answer.taken.push_back(client);
    } else {
      answer.granted.push_back(client);
      const bool late = it->second;
      const auto [held, fresh] =
          claims_.try_emplace(client, Holder{.member = &member, .late = late});
      if (!std::exchange(held->second.granted, true)) {
        ++member.second.held;
        ++granted_;
      }
      if (fresh && !late) ++member.second.granted;
    }
    --member.second.waiting;
    it = waiting_.erase(it);
  }
  for (auto& [claimer, answer] : answers) actions->push_back(std::move(answer));
}

RoundMachine::Ruling RoundMachine::Judge(const std::string& client, Entry& claimer,
                                         Actions* actions) {
  const auto held = claims_.find(client);
  Entry* holder = held == claims_.end() ? nullptr : held->second.member;
  if (holder != nullptr) {
    if (held->second.counted) return Ruling::kTaken;
    if (holder == &claimer) return Ruling::kGranted;
    if (holder->second.present) return Ruling::kWaits;
  }
  // Whose sum is not in yet may have it in it; one that has had no clients does not, nor one that
  // would have claimed it, nor any that comes too late.
  const auto may_count = [&](const Entry* other) {
    return open() && !other->second.left_out && other != &claimer && other->second.parts == 0 &&
           !other->second.blank && !other->second.fenced && IsPending(other->second.answer);
  };
  for (const Entry* other : aggregators_) {
    const State& state = other->second;
    const bool empty = most_clients_ > 0 && state.most == 0;
    if (may_count(other) && state.present && !empty) return Ruling::kWaits;
  }
  if (holder != nullptr) Fence(*holder, actions);
  for (Entry* other : aggregators_) {
    if (may_count(other) && !other->second.present) Fence(*other, actions);
  }
  return Ruling::kGranted;
}

void RoundMachine::Fence(Entry& member, Actions* actions) {
  State& state = member.second;
  state.fenced = true;
  state.supplement = false;
  if (state.ticket != 0) {
    AbortAttempt(state.ticket, actions);
    SetAnswer(member, Fallback(state));
  }
  ForgetClaims(member);
  // It is awaited as before: others of its clients may be on their way.
  if (IsPending(state.answer)) CountRejected("fenced", 1);
}

void RoundMachine::ForgetWaiting(const std::string& id) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.first.second == id; });
  if (const auto it = members_.find(id); it != members_.end()) it->second.waiting = 0;
}

void RoundMachine::Release(Holder* holder) {
  holder->granted = false;
  --holder->member->second.held;
  --granted_;
}

// What an attempt under way names stays claimed by it.
void RoundMachine::ForgetClaims(Entry& member) {
  for (auto it = claims_.begin(); it != claims_.end();) {
    const auto old = it++;
    Holder& holder = old->second;
    if (holder.member != &member || holder.counted || !holder.granted) continue;
    Release(&holder);
    if (member.second.ticket == 0) claims_.erase(old);
  }
  member.second.granted = member.second.done = 0;
}

std::vector<Action> RoundMachine::Ungrant(const std::string& client, absl::Duration now) {
  Actions actions;
  const auto held = claims_.find(client);
  if (held != claims_.end() && held->second.granted && !held->second.counted) {
    State& state = held->second.member->second;
    if (!held->second.late && state.granted > 0) --state.granted;
    if (state.ticket == 0) {
      Release(&held->second);
      claims_.erase(held);
    }
  }
  Advance(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Census(const std::string& id, uint64_t epoch, uint64_t clients,
                                         absl::Duration now) {
  Actions actions;
  const auto it = members_.find(id);
  if (it != members_.end() && it->second.epoch == epoch && it->second.aggregator) {
    it->second.clients = clients;
    it->second.most = std::max(it->second.most, clients);
    CountClients();
    ResolveClaims(&actions);
  }
  Advance(now, &actions);
  return actions;
}

void RoundMachine::CountClients() {
  uint64_t present = 0;
  for (const Entry* other : aggregators_)
    present = AddSaturating(present, other->second.present ? other->second.clients : 0);
  most_clients_ = std::max(most_clients_, present);
}

uint64_t RoundMachine::Homeless() const {
  if (aggregators_.empty() || most_clients_ == 0) return 0;
  uint64_t present = 0;
  uint64_t homeless = 0;
  for (const Entry* other : aggregators_) {
    const State& state = other->second;
    if (state.present) present = AddSaturating(present, state.clients);
    const bool empty = !state.present || state.most == 0;
    homeless += state.answer == Answer::kAwaited && state.parts == 0 && empty ? 1 : 0;
  }
  return present >= most_clients_ ? homeless : 0;
}

uint64_t RoundMachine::Below() const {
  uint64_t open = 0;
  for (const Entry* other : aggregators_) {
    const State& state = other->second;
    if (state.present && state.granted > state.done) open += state.granted - state.done;
  }
  return open;
}

// Claims that wait do not count: whoever they wait for is awaited, or is asked by the last call.
bool RoundMachine::NothingBelow() const {
  return plan_.quorum < 1 || aggregators_.empty() || Below() == 0;
}

uint64_t RoundMachine::OpenSupplements() const {
  uint64_t open = 0;
  for (const Entry* other : aggregators_) {
    const State& state = other->second;
    open += state.supplement && state.present && state.answer != Answer::kAwaited ? 1 : 0;
  }
  return open;
}

void RoundMachine::LastCall(ClosedBy why, Actions* actions) {
  called_ = true;
  due_ = why;
  called_until_ = std::min(now_ + plan_.last_call, deadline_at_);
  for (const Entry* other : aggregators_) {
    const State& state = other->second;
    if (!state.supplement || !state.present || state.answer == Answer::kAwaited) continue;
    actions->push_back({.kind = Action::Kind::kCollect, .member = other->first});
  }
}

// ---- At the aggregator to which they have come

// Its tallies, and those of asked_: an unclaimed member is not awaited.
void RoundMachine::MoveInto(Entry& member, bool unclaimed) {
  State& state = member.second;
  if (state.unclaimed == unclaimed || !state.in_cohort || state.owes != 0) return;
  const auto move = [&](Tally* tally, int64_t by) {
    tally->members += by;
    if (state.answer == Answer::kGone) tally->gone += by;
    if (internal::IsAnswered(state.answer)) tally->answered += by;
    if (state.answer == Answer::kAccepted) tally->accepted += by;
  };
  move(&TallyOf(state), -1);
  state.unclaimed = unclaimed;
  move(&TallyOf(state), 1);
  const bool lost = state.answer == Answer::kGone || state.answer == Answer::kDeclined;
  if (!state.aggregator && !lost) asked_clients_ += unclaimed ? -1 : 1;
}

std::vector<Action> RoundMachine::Claimed(const std::string& id, bool late, absl::Duration now) {
  Actions actions;
  const auto it = members_.find(id);
  if (it != members_.end() && it->second.elsewhere) {
    // Where it was counted is gone: a life of the parent's that did not commit.
    State& state = it->second;
    state.elsewhere = false;
    CountAway(state);
    if (!state.in_cohort) {
      state.in_cohort = state.newcomer = state.unclaimed = true;
      state.since = now_;
      ++outside_.members;
      ++outside_.gone;
    }
    SetAnswer(*it, Answer::kAwaited);
    actions.push_back({.kind = Action::Kind::kTask, .member = id});
  }
  if (it != members_.end() && it->second.unclaimed) {
    State& state = it->second;
    MoveInto(*it, false);
    had_members_ = true;
    if (!late && !state.claimed) {
      state.claimed = true;
      ++claimed_.members;
      claimed_.gone += state.answer == Answer::kGone;
      claimed_.answered += internal::IsAnswered(state.answer);
      now_ = std::max(now_, now);
      AwaitClaimed(*it);
    }
  }
  Advance(now, &actions);
  return actions;
}

void RoundMachine::AwaitClaimed(Entry& member) {
  State& state = member.second;
  // Where nothing is to be waited for, not for ever at once either.
  state.claim_wait = now_ + std::max(plan_.last_call, absl::Milliseconds(10));
  claim_waits_.emplace(std::pair(state.claim_wait, state.order), &member);
}

void RoundMachine::StopClaimWait(const Entry& member) {
  claim_waits_.erase(std::pair(member.second.claim_wait, member.second.order));
}

absl::Duration RoundMachine::ClaimWaitEnds() const {
  if (claim_waits_.empty()) return absl::InfiniteDuration();
  return std::max(part_ == 0 ? soft_at_ : claims_soft_at_, claim_waits_.begin()->first.first);
}

// Who is sending has as long as that takes; should it break off, it is looked at again.
void RoundMachine::EndClaimWaits(absl::Duration until) {
  while (ClaimWaitEnds() <= until) {
    Entry& member = *claim_waits_.begin()->second;
    claim_waits_.erase(claim_waits_.begin());
    State& state = member.second;
    if (!state.claimed) continue;
    if (state.answer == Answer::kUploading) {
      AwaitClaimed(member);
    } else if (state.answer == Answer::kAwaited) {
      state.claimed = false;
      --claimed_.members;
    }
  }
}

absl::Duration RoundMachine::SoftClose() const {
  if (claim_waits_.empty() || part_ > 0) return soft_at_;
  // However many come one after another.
  const absl::Duration most = soft_at_ + plan_.last_call;
  return std::max(soft_at_, std::min(claim_waits_.rbegin()->first.first, most));
}

std::vector<Action> RoundMachine::Elsewhere(const std::string& id, absl::Duration now) {
  Actions actions;
  // It may have come after the close, and be unknown.
  const auto [it, fresh] = members_.try_emplace(id);
  if (fresh) it->second.order = ++orders_;
  if (it->second.parts == 0) {
    it->second.elsewhere = true;
    CountAway(it->second);
    had_members_ = true;  // and need not be waited for, if it is all that there are
    if (it->second.ticket != 0) AbortAttempt(it->second.ticket, &actions);
    if (phase_ == Phase::kOpen && IsPending(it->second.answer)) SetAnswer(*it, Answer::kDeclined);
  }
  Advance(now, &actions);
  return actions;
}

bool RoundMachine::CountedElsewhere(const std::string& id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.elsewhere;
}

bool RoundMachine::Unclaimed(const std::string& id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.unclaimed;
}

bool RoundMachine::CanReopen(absl::Duration now) const {
  return phase_ == Phase::kClosed && part_ + 1 < kMostParts && now < deadline_at_;
}

bool RoundMachine::Reopen(absl::Duration now) {
  if (!CanReopen(now)) return false;
  now_ = std::max(now_, now);
  ++part_;
  phase_ = Phase::kOpen;
  closed_by_ = due_ = ClosedBy::kNotYet;
  called_ = drain_ = false;
  claims_soft_at_ = soft_at_;
  soft_at_ = absl::InfiniteDuration();
  weight_ = accepted_clients_ = 0;
  rejected_.clear();
  late_ = 0;
  for (Entry& member : members_) {
    State& state = member.second;
    if (state.parts > 0 || state.newcomer || state.owes != 0) continue;
    // It was late for the first sum, and may be on its way to another aggregator.
    if (state.aggregator) {
      state.left_out = IsPending(state.answer) || state.answer == Answer::kGone;
    } else {
      state.left_out = plan_.late != Late::kSupplement;
      MoveInto(member, true);
    }
  }
  return true;
}

std::vector<Action> RoundMachine::Call(absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ != Phase::kOpen || part_ == 0) return actions;
  if (!called_) LastCall(ClosedBy::kTold, &actions);
  drain_ = true;
  Advance(now_, &actions);
  return actions;
}

uint64_t RoundMachine::ClaimsOutstanding() const {
  return claimed_.members - claimed_.gone - claimed_.answered + Below();
}

uint32_t RoundMachine::PartsOf(const std::string& id, uint32_t parts) const {
  const auto it = members_.find(id);
  if (it == members_.end()) return 0;
  uint32_t in = 0;
  for (uint32_t p = 0; p < std::min(parts, kMostParts); ++p) in += it->second.parts_at[p];
  return in;
}

}  // namespace tributary::aggregation
