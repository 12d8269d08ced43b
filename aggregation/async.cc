// The buffer's state machine: who trains, what is in, when it closes.
#include "aggregation/async.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {

using Actions = AsyncMachine::Actions;
using Kind = AsyncAction::Kind;

// ---- Versions

void AsyncMachine::Restore(const std::vector<Contribution>& counted, uint64_t version,
                           uint64_t from, const std::vector<Contribution>& voided) {
  version_ = open_from_ = version;
  counted_from_ = from;
  for (const Contribution& c : counted) fates_[{c.base, c.id}] = true;
  for (const Contribution& c : voided) Void(c.id, c.base);
}

Actions AsyncMachine::Open(const AsyncPlan& plan, uint64_t version, absl::Duration now) {
  now_ = std::max(now_, now);
  if (version < version_) {  // the run has gone back: what its lost models counted does not count
    fates_.clear();
    counted_from_ = 0;
  }
  plan_ = plan;
  version_ = version;
  phase_ = Phase::kOpen;
  closed_by_ = BufferClosedBy::kNotYet;
  full_ = false;
  flush_at_ = now_ + plan_.flush_after;
  collect_until_ = absl::InfiniteDuration();
  sums_in_.clear();
  rejected_.clear();
  stale_ = 0;
  const uint64_t oldest = version_ > plan_.max_staleness ? version_ - plan_.max_staleness : 0;
  counted_from_ = std::max(counted_from_, oldest);
  fates_.erase(fates_.begin(), fates_.lower_bound({counted_from_, ""}));
  fates_.erase(fates_.lower_bound({version_, ""}), fates_.end());  // of models that are not made
  open_from_ = version_;
  // Whoever had a task of an older version may have one of this.
  for (const auto& [order, id] : spent_) {
    members_.at(id).work = Work::kFree;
    free_.insert({order, id});
  }
  spent_.clear();
  Actions actions;
  for (const std::string& id : aggregators_) {
    State& state = members_.at(id);
    state.buffered = 0;
    state.collecting = false;
    state.tasked = true;
    actions.push_back({Kind::kTask, id});
  }
  return Advance(now, std::move(actions));
}

void AsyncMachine::Settle(bool applied, bool over) {
  if (over) open_from_ = version_ + 1;
  for (const auto& [key, contribution] : in_buffer_) {
    if (applied) fates_[key] = true;
    const auto it = members_.find(contribution.id);
    if (it == members_.end() || it->second.work != Work::kPending) continue;
    // Where the sum is lost, the same model may be trained from once more.
    SetWork(contribution.id, it->second, applied ? Work::kSpent : Work::kFree);
  }
  in_buffer_.clear();
  clients_in_buffer_.clear();
  children_.clear();
  weight_ = 0;
  phase_ = Phase::kIdle;
}

// ---- Members

AsyncMachine::State* AsyncMachine::Find(const std::string& id, uint64_t epoch) {
  const auto it = members_.find(id);
  return it == members_.end() || it->second.epoch != epoch ? nullptr : &it->second;
}

void AsyncMachine::SetWork(const std::string& id, State& state, Work work) {
  if (state.work == Work::kFree) free_.erase({state.order, id});
  if (state.work == Work::kSpent) spent_.erase({state.order, id});
  if (state.work == Work::kBusy) {
    --busy_;
    deadlines_.erase({state.due, id});
  }
  state.work = work;
  if (work == Work::kFree) free_.insert({state.order, id});
  if (work == Work::kSpent) spent_.insert({state.order, id});
  if (work == Work::kBusy) {
    ++busy_;
    deadlines_.insert({state.due, id});
  }
}

// What it was to do from version `base` has come to nothing. It is asked again in this version only
// where that was an older one; and not at all where it has a newer task since.
void AsyncMachine::Freed(const std::string& id, State& state, uint64_t base) {
  if (state.work != Work::kBusy && state.work != Work::kOverdue) return;
  if (base < state.base) return;
  SetWork(id, state, base < version_ ? Work::kFree : Work::kSpent);
  due_ = true;
}

Actions AsyncMachine::Joined(const Member& member, absl::Duration now) {
  now_ = std::max(now_, now);
  const auto old = members_.find(member.id);
  if (old != members_.end() && old->second.epoch > member.epoch) return {};
  Actions actions;
  if (old != members_.end()) {
    if (old->second.aggregator && old->second.epoch < member.epoch) AbortSum(member.id, &actions);
    if (!old->second.aggregator) SetWork(member.id, old->second, Work::kPending);
    aggregators_.erase(member.id);
    members_.erase(old);
  }
  State& state = members_[member.id];
  state.epoch = member.epoch;
  state.aggregator = member.aggregator;
  state.order = ++orders_;
  if (member.aggregator) {
    aggregators_.insert(member.id);
    state.tasked = phase_ == Phase::kOpen && !sums_in_.contains(member.id);
    if (state.tasked) actions.push_back({Kind::kTask, member.id});
  } else {
    Rejoined(member.id, state, &actions);
  }
  return Advance(now, std::move(actions));
}

// The fate of what it sent before has to be known before it gets a task.
void AsyncMachine::Rejoined(const std::string& id, State& state, Actions* actions) {
  state.work = Work::kPending;
  if (InBuffer(id)) return;
  const auto it = receiving_.find(id);
  if (it == receiving_.end()) return SetWork(id, state, Work::kFree);
  if (attempts_.at(it->second).waits) {
    state.base = attempts_.at(it->second).base;
    return SetWork(id, state, Work::kOverdue);
  }
  // It broke off with the session. What is there of it must not become whole behind its back.
  actions->push_back({Kind::kAbort, id, it->second});
  attempts_.erase(it->second);
  receiving_.erase(it);
  SetWork(id, state, Work::kFree);
}

Actions AsyncMachine::Left(const std::string& id, uint64_t epoch, absl::Duration now) {
  now_ = std::max(now_, now);
  State* state = Find(id, epoch);
  if (state == nullptr) return {};
  Actions actions;
  if (state->aggregator) {
    AbortSum(id, &actions);
    aggregators_.erase(id);
  } else {
    SetWork(id, *state, Work::kPending);  // off all lists; what it sends may outlive its session
  }
  members_.erase(id);
  return Advance(now, std::move(actions));
}

Actions AsyncMachine::Declined(const std::string& id, uint64_t epoch, absl::Duration now) {
  now_ = std::max(now_, now);
  State* state = Find(id, epoch);
  if (state == nullptr) return {};
  state->missed = false;
  if (state->aggregator) {
    state->collecting = state->tasked = false;
    state->buffered = 0;
  } else {
    Freed(id, *state, state->base);
  }
  return Advance(now);
}

Actions AsyncMachine::Buffered(const std::string& id, uint64_t epoch, uint64_t version,
                               uint64_t clients, absl::Duration now) {
  now_ = std::max(now_, now);
  State* state = Find(id, epoch);
  if (state == nullptr || !state->aggregator || version != version_) return {};
  state->missed = false;
  // A word on an earlier buffer may have come late: who has something does take part.
  if (phase_ == Phase::kOpen && clients > 0 && !sums_in_.contains(id)) state->tasked = true;
  if (!state->tasked) return {};
  state->buffered = clients;
  return Advance(now);
}

bool AsyncMachine::Idle(const std::string& id) const {
  const auto it = members_.find(id);
  return it == members_.end() || it->second.aggregator ||
         (it->second.work != Work::kBusy && it->second.work != Work::kOverdue);
}

// ---- Time

std::optional<absl::Duration> AsyncMachine::NextTimer() const {
  absl::Duration next = deadlines_.empty() ? absl::InfiniteDuration() : deadlines_.begin()->first;
  if (due_) next = now_;
  if (phase_ == Phase::kOpen) next = std::min(next, flush_at_);
  if (phase_ == Phase::kCollecting) next = std::min(next, collect_until_);
  if (next == absl::InfiniteDuration()) return std::nullopt;
  return next;
}

Actions AsyncMachine::Timer(absl::Duration now) {
  now_ = std::max(now_, now);
  Actions actions;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    const std::string id = deadlines_.begin()->second;
    SetWork(id, members_.at(id), Work::kOverdue);
  }
  if (phase_ == Phase::kOpen && flush_at_ <= now_) {
    if (buffered() > 0) {
      StartClosing(BufferClosedBy::kFlush, &actions);
    } else {
      actions.push_back({Kind::kStarved});
      flush_at_ = now_ + plan_.flush_after;
    }
  }
  if (phase_ == Phase::kCollecting && collect_until_ <= now_) {
    // A sum that is on its way is waited for: its link has a time-out of its own.
    for (const std::string& id : aggregators_) {
      State& state = members_.at(id);
      if (state.collecting && !receiving_.contains(id)) {
        state.collecting = false;
        state.missed = true;
      }
    }
    collect_until_ = now_ + plan_.collect_within;
  }
  return Advance(now, std::move(actions));
}

Actions AsyncMachine::Close(absl::Duration now) {
  now_ = std::max(now_, now);
  Actions actions;
  if (phase_ == Phase::kOpen) StartClosing(BufferClosedBy::kTold, &actions);
  return Advance(now, std::move(actions));
}

// ---- The buffer

uint64_t AsyncMachine::buffered() const {
  uint64_t clients = in_buffer_.size();
  for (const std::string& id : aggregators_) {
    const State& state = members_.at(id);
    if (state.tasked && !sums_in_.contains(id)) clients += state.buffered;
  }
  return clients;
}

void AsyncMachine::StartClosing(BufferClosedBy why, Actions* actions) {
  phase_ = Phase::kCollecting;
  closed_by_ = why;
  collect_until_ = now_ + plan_.collect_within;
  for (const std::string& id : aggregators_) {
    State& state = members_.at(id);
    if (!state.tasked || state.missed || sums_in_.contains(id)) continue;
    state.collecting = true;
    actions->push_back({Kind::kCollect, id});
  }
}

void AsyncMachine::StopCollecting(Actions* actions) {
  phase_ = Phase::kClosing;
  for (const std::string& id : aggregators_) {
    AbortSum(id, actions);
    members_.at(id).tasked = false;
  }
}

// Nobody is left from whom more could come before the next buffer. Of a rack's clients nothing is
// known; but one whose sum is in, or was refused, sends no more. Where all were refused the buffer
// is closed with nothing in it, and opened again.
bool AsyncMachine::Everyone() const {
  for (const std::string& id : aggregators_) {
    if (members_.at(id).tasked && !sums_in_.contains(id)) return false;
  }
  return plan_.buffer > 0 && busy_ == 0 && free_.empty() && receiving_.empty() && folding_ == 0 &&
         (!in_buffer_.empty() || !aggregators_.empty());
}

void AsyncMachine::HandOut(Actions* actions) {
  while (phase_ == Phase::kOpen && !free_.empty() &&
         (plan_.concurrency == 0 || busy_ < plan_.concurrency)) {
    const std::string id = free_.begin()->second;
    State& state = members_.at(id);
    SetWork(id, state, Work::kPending);
    state.order = ++orders_;
    state.base = version_;
    state.due = now_ + plan_.task_limit;
    SetWork(id, state, Work::kBusy);
    actions->push_back({Kind::kTask, id});
  }
}

Actions AsyncMachine::Advance(absl::Duration now, Actions actions) {
  now_ = std::max(now_, now);
  due_ = false;
  if (phase_ == Phase::kOpen) {
    if (plan_.buffer > 0 && buffered() >= plan_.buffer) {
      StartClosing(BufferClosedBy::kFull, &actions);
    } else if (full_) {
      StartClosing(BufferClosedBy::kWeight, &actions);
    } else if (Everyone()) {
      StartClosing(BufferClosedBy::kEveryone, &actions);
    }
  }
  if (phase_ == Phase::kCollecting && Collecting().empty()) StopCollecting(&actions);
  if (phase_ == Phase::kClosing && folding_ == 0) {
    phase_ = Phase::kClosed;
    actions.push_back({Kind::kClosed});
  }
  HandOut(&actions);  // last: where the buffer has just closed, a newer model is about to come
  return actions;
}

std::vector<std::string> AsyncMachine::Collecting() const {
  std::vector<std::string> out;
  for (const std::string& id : aggregators_) {
    if (members_.at(id).collecting) out.push_back(id);
  }
  return out;
}

AsyncResult AsyncMachine::Result() const {
  AsyncResult result;
  for (const auto& [key, contribution] : in_buffer_) result.contributions.push_back(contribution);
  std::sort(result.contributions.begin(), result.contributions.end(),
            [](const Contribution& a, const Contribution& b) {
              return std::pair(a.id, a.base) < std::pair(b.id, b.base);
            });
  result.weight = weight_;
  result.children.assign(children_.begin(), children_.end());
  result.rejected = rejected_;
  result.stale = stale_;
  result.closed_by = closed_by_;
  return result;
}

std::vector<Contribution> AsyncMachine::Counted() const {
  std::vector<Contribution> out;
  for (const auto& [key, counted] : fates_) {
    if (counted) out.push_back({.id = key.second, .base = key.first});
  }
  return out;
}

std::vector<Contribution> AsyncMachine::Voided() const {
  std::vector<Contribution> out;
  for (const auto& [key, counted] : fates_) {
    if (!counted) out.push_back({.id = key.second, .base = key.first});
  }
  return out;
}

// ---- Fates

bool AsyncMachine::Counts(const Key& key) const {
  const auto fate = fates_.find(key);
  return in_buffer_.contains(key) || (fate != fates_.end() && fate->second);
}

bool AsyncMachine::Voided(const Key& key) const {
  const auto fate = fates_.find(key);
  return key.first < counted_from_ || (fate != fates_.end() && !fate->second);
}

Fate AsyncMachine::FateOf(const std::string& id, uint64_t base) const {
  const Key key(base, id);
  if (const auto fate = fates_.find(key); fate != fates_.end()) {
    return fate->second ? Fate::kCounted : Fate::kNotCounted;
  }
  if (in_buffer_.contains(key)) return Fate::kUndecided;
  if (const auto own = receiving_.find(id); own != receiving_.end()) {
    const Attempt& attempt = attempts_.at(own->second);
    if (!attempt.aggregator && attempt.base == base) return Fate::kUndecided;
  }
  if (base < counted_from_) return Fate::kUnknown;
  if (base > version_) return Fate::kNotCounted;  // of a timeline that is lost
  if (base >= open_from_) return Fate::kUndecided;
  for (const std::string& rack : aggregators_) {
    const State& state = members_.at(rack);
    const bool has = state.buffered > 0 || state.collecting || receiving_.contains(rack);
    if (state.tasked && has && !sums_in_.contains(rack)) return Fate::kUndecided;
  }
  return Fate::kNotCounted;
}

void AsyncMachine::Void(const std::string& id, uint64_t base) {
  if (base >= counted_from_ && base < open_from_) fates_.insert({{base, id}, false});
}

}  // namespace tributary::aggregation
