// The round's state machine. Every event updates a few counters, and the round's end is read off
// them.
#include "aggregation/round.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace tributary::aggregation {

namespace {

// Reasons come from children too: a faulty one must not fill the memory with inventions. Twice the
// words there are, and some.
constexpr size_t kMaxReasons = 64;

// Counts come from children too: they stop at the top and do not wrap.
uint64_t AddSaturating(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

bool IsAnswered(Answer answer) {
  return answer == Answer::kAccepted || answer == Answer::kRejected || answer == Answer::kDeclined;
}

bool IsIn(Answer answer) { return answer == Answer::kFolding || answer == Answer::kAccepted; }

bool IsPending(Answer answer) { return answer == Answer::kAwaited || answer == Answer::kUploading; }

}  // namespace

bool InCohort(uint64_t seed, uint64_t round, const std::string& id, double fraction) {
  if (fraction >= 1) return true;
  if (!(fraction > 0)) return false;
  // Below 1 a double's product with 2^64 fits, and hash < x is hash < ceil(x) for an integer hash.
  const auto threshold = static_cast<uint64_t>(std::ceil(std::ldexp(fraction, 64)));
  return SeededHash(seed, "cohort", absl::StrCat(round, "/", id)) < threshold;
}

// ---- Members

std::vector<Action> RoundMachine::Begin(const std::vector<Member>& members, absl::Duration now) {
  Actions actions;
  if (phase_ != Phase::kIdle) return actions;
  phase_ = Phase::kOpen;
  now_ = now;
  deadline_at_ = now + plan_.deadline;
  // A rack whose clients all missed the cohort has nobody to wait for, and must not wait.
  had_members_ = !members.empty();
  for (const Member& member : members) Enter(member, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Joined(const Member& member, absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ == Phase::kOpen) Enter(member, &actions);
  return actions;
}

void RoundMachine::Enter(const Member& member, Actions* actions) {
  const auto [it, fresh] = members_.try_emplace(member.id);
  State& state = it->second;
  if (!fresh && member.epoch < state.epoch) return;
  const bool newer = fresh || member.epoch > state.epoch;
  if (fresh) state.order = members_.size();
  state.epoch = member.epoch;
  state.aggregator = member.aggregator;
  state.present = true;
  StopGrace(*it);
  if (!state.in_cohort) {
    if (!member.aggregator &&
        !InCohort(plan_.seed, plan_.round, member.id, plan_.cohort_fraction)) {
      return;
    }
    state.in_cohort = true;
    state.answer = Answer::kAwaited;
    ++cohort_;
    had_members_ = true;
  } else {
    if (IsIn(state.answer)) return;
    if (!newer && (state.answer == Answer::kUploading || IsAnswered(state.answer))) return;
    if (state.answer == Answer::kUploading) AbortAttempt(state.ticket, actions);
    SetAnswer(*it, Answer::kAwaited);
  }
  actions->push_back({.kind = Action::Kind::kTask, .member = member.id});
}

std::vector<Action> RoundMachine::Left(const std::string& id, uint64_t epoch, absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ != Phase::kOpen) return actions;
  const auto it = members_.find(id);
  if (it == members_.end() || it->second.epoch != epoch || !it->second.present) return actions;
  State& state = it->second;
  state.present = false;
  if (!state.in_cohort) {
    members_.erase(it);
  } else if (IsPending(state.answer)) {
    state.given_up_at = now_ + plan_.rejoin_grace;
    StartGrace(*it);
    Advance(now_, &actions);  // a grace of nothing is over at once
  }
  return actions;
}

void RoundMachine::SetAnswer(Entry& member, Answer answer) {
  State& state = member.second;
  gone_ = gone_ + (answer == Answer::kGone) - (state.answer == Answer::kGone);
  answered_ = answered_ + IsAnswered(answer) - IsAnswered(state.answer);
  folding_ = folding_ + (answer == Answer::kFolding) - (state.answer == Answer::kFolding);
  state.answer = answer;
  if (!IsPending(answer)) StopGrace(member);
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

// ---- Offers

Admission RoundMachine::Stale(const std::string& message) {
  late_ = AddSaturating(late_, 1);
  return {.verdict = Verdict::kStale, .reason = "round", .message = message};
}

Admission RoundMachine::Reject(const std::string& reason, const std::string& message) {
  CountRejected(reason, 1);
  return {.verdict = Verdict::kReject, .reason = reason, .message = message};
}

// A refused offer is an answer, but the member's older attempt, if there is one, goes on.
Admission RoundMachine::Answered(Entry& member, Admission refusal) {
  if (member.second.answer == Answer::kAwaited) SetAnswer(member, Answer::kRejected);
  return refusal;
}

Admission RoundMachine::Offer(const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
                              const std::vector<std::string>& clients, absl::Duration now) {
  now_ = std::max(now_, now);
  const bool is_open = phase_ == Phase::kOpen && now_ < deadline_at_;
  if (round != plan_.round) {
    return Stale(absl::StrCat("the update of \"", id, "\" is for round ", round, ", round ",
                              plan_.round, is_open ? " is open" : " is the latest and has closed",
                              "; wait for the next task"));
  }
  const auto it = members_.find(id);
  if (it != members_.end() && it->second.epoch == epoch && IsIn(it->second.answer)) {
    return {.verdict = Verdict::kDuplicate,
            .message = absl::StrCat("the update of \"", id, "\" for round ", round,
                                    " is in already; nothing is to be sent again")};
  }
  if (!is_open) {
    return Stale(absl::StrCat("the update of \"", id, "\" came after round ", round,
                              " had closed; wait for the next task"));
  }
  if (auto refusal = CheckSession(id, epoch, now_)) return *std::move(refusal);
  if (auto refusal = CheckRoom(*it, weight, clients)) return Answered(*it, *std::move(refusal));
  if (!it->second.aggregator) return Admit(*it, static_cast<uint64_t>(weight), {id});
  return Admit(*it, static_cast<uint64_t>(weight), clients);
}

std::optional<Admission> RoundMachine::CheckSession(const std::string& id, uint64_t epoch,
                                                    absl::Duration now) {
  const auto it = members_.find(id);
  if (it == members_.end()) {
    return Reject("session", absl::StrCat("\"", id, "\" has not joined; join first"));
  }
  const State& state = it->second;
  if (state.epoch != epoch) {
    return Reject("session", absl::StrCat("the session of \"", id, "\" is of epoch ", state.epoch,
                                          ", the update of epoch ", epoch, "; join again"));
  }
  if (!state.in_cohort) {
    return Reject("cohort", absl::StrCat("\"", id, "\" is not in the cohort of round ", plan_.round,
                                         "; wait for a task"));
  }
  // Without a session only a member that is still awaited counts; its grace may be over unnoticed.
  if (!state.present && (!IsPending(state.answer) || state.given_up_at <= now)) {
    return Reject("session", absl::StrCat("the session of \"", id, "\" ended; join again"));
  }
  return std::nullopt;
}

std::optional<Admission> RoundMachine::CheckRoom(Entry& member, int64_t weight,
                                                 const std::vector<std::string>& clients) {
  const auto& [id, state] = member;
  if (weight <= 0) {
    return Reject("weight",
                  absl::StrCat("the weight of \"", id, "\" is ", weight, "; it must be 1 or more"));
  }
  const auto w = static_cast<uint64_t>(weight);
  if (!state.aggregator && w > plan_.max_client_weight) {
    return Reject("weight", absl::StrCat("the weight of \"", id, "\" is ", w, ", the most is ",
                                         plan_.max_client_weight,
                                         "; raise [aggregation] max_client_weight or send less"));
  }
  // What an older attempt of the same member holds would be freed.
  uint64_t held_weight = held_weight_;
  uint64_t held_clients = held_clients_;
  if (state.ticket != 0) {
    const Attempt& older = attempts_.at(state.ticket);
    held_weight -= older.weight;
    held_clients -= older.clients.size();
  }
  if (w > plan_.max_weight - held_weight) {
    return Reject("full", absl::StrCat("round ", plan_.round, " has room for a weight of ",
                                       plan_.max_weight - held_weight, " of ", plan_.max_weight,
                                       ", that of \"", id, "\" is ", w,
                                       "; raise [aggregation] max_round_weight"));
  }
  if (state.aggregator) {
    if (auto refusal = CheckClients(member, clients)) return refusal;
  }
  const uint64_t count = state.aggregator ? clients.size() : 1;
  if (plan_.maximum > 0 && held_clients + count > plan_.maximum) {
    return Reject(
        "full", absl::StrCat("round ", plan_.round, " admits ", plan_.maximum, " clients and has ",
                             held_clients, ", \"", id, "\" brings ", count, "; raise the maximum"));
  }
  if (state.aggregator) return std::nullopt;
  const auto claim = claims_.find(id);
  if (claim == claims_.end() || claim->second == &member) return std::nullopt;
  return Reject("duplicate_clients", absl::StrCat("\"", id, "\" is counted under \"",
                                                  claim->second->first, "\" already"));
}

std::optional<Admission> RoundMachine::CheckClients(Entry& member,
                                                    const std::vector<std::string>& clients) {
  if (clients.empty()) {
    return Reject("malformed", absl::StrCat("the partial sum of \"", member.first,
                                            "\" names no clients; report an empty rack instead"));
  }
  absl::flat_hash_set<absl::string_view> seen;
  seen.reserve(clients.size());
  for (const std::string& client : clients) {
    if (!seen.insert(client).second) {
      return Reject("duplicate_clients", absl::StrCat("the partial sum of \"", member.first,
                                                      "\" names \"", client, "\" twice"));
    }
    const auto claim = claims_.find(client);
    if (claim == claims_.end() || claim->second == &member) continue;
    return Reject("duplicate_clients",
                  absl::StrCat("\"", client, "\" in the partial sum of \"", member.first,
                               "\" is counted under \"", claim->second->first, "\" already"));
  }
  return std::nullopt;
}

Admission RoundMachine::Admit(Entry& member, uint64_t weight, std::vector<std::string> clients) {
  Admission admission{.verdict = Verdict::kAdmit, .replaces = member.second.ticket};
  if (admission.replaces != 0) Release(admission.replaces);
  // A driver that keeps a ticket past its round must not meet it again in the next.
  admission.ticket = (plan_.round << 32) | next_ticket_++;
  held_weight_ += weight;
  held_clients_ += clients.size();
  for (const std::string& client : clients) claims_[client] = &member;
  attempts_[admission.ticket] = {
      .member = &member, .weight = weight, .clients = std::move(clients)};
  member.second.ticket = admission.ticket;
  SetAnswer(member, Answer::kUploading);
  return admission;
}

// ---- Attempts

void RoundMachine::Release(uint64_t ticket) {
  const auto it = attempts_.find(ticket);
  const Attempt& attempt = it->second;
  held_weight_ -= attempt.weight;
  held_clients_ -= attempt.clients.size();
  for (const std::string& client : attempt.clients) claims_.erase(client);
  attempt.member->second.ticket = 0;
  attempts_.erase(it);
}

void RoundMachine::AbortAttempt(uint64_t ticket, Actions* actions) {
  actions->push_back({.kind = Action::Kind::kAbort,
                      .member = attempts_.at(ticket).member->first,
                      .ticket = ticket});
  Release(ticket);
}

bool RoundMachine::Commit(uint64_t ticket) {
  const auto it = attempts_.find(ticket);
  if (phase_ != Phase::kOpen || it == attempts_.end() || it->second.folding) return false;
  Attempt& attempt = it->second;
  attempt.folding = true;
  weight_ += attempt.weight;
  SetAnswer(*attempt.member, Answer::kFolding);
  return true;
}

std::vector<Action> RoundMachine::Folded(uint64_t ticket, absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || !it->second.folding) return actions;
  Entry& member = *it->second.member;
  accepted_clients_ = AddSaturating(accepted_clients_, it->second.clients.size());
  member.second.ticket = 0;
  attempts_.erase(it);  // its claims stay
  SetAnswer(member, Answer::kAccepted);
  if (phase_ == Phase::kClosing) FinishIfDrained(&actions);
  Advance(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Aborted(uint64_t ticket, absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.folding) return actions;
  Entry& member = *it->second.member;
  Release(ticket);
  SetAnswer(member, Answer::kAwaited);
  StartGrace(member);  // where its session has ended; over already, perhaps
  Advance(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Refused(uint64_t ticket, const std::string& reason,
                                          absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.folding) return actions;
  Entry& member = *it->second.member;
  Release(ticket);
  CountRejected(reason, 1);
  SetAnswer(member, Answer::kRejected);
  Advance(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Reported(const std::string& id, uint64_t epoch, uint64_t clients,
                                           absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  const auto it = members_.find(id);
  if (phase_ != Phase::kOpen || it == members_.end()) return actions;
  State& state = it->second;
  if (!state.in_cohort || state.epoch != epoch || !IsPending(state.answer)) return actions;
  if (state.ticket != 0) AbortAttempt(state.ticket, &actions);
  const bool counts = clients > 0 && (state.aggregator || claims_.try_emplace(id, &*it).second);
  if (counts) {
    const uint64_t count = state.aggregator ? clients : 1;
    held_clients_ = AddSaturating(held_clients_, count);
    accepted_clients_ = AddSaturating(accepted_clients_, count);
  }
  SetAnswer(*it, counts ? Answer::kAccepted : Answer::kDeclined);
  Advance(now_, &actions);
  return actions;
}

void RoundMachine::CountRejected(const std::string& reason, uint64_t count) {
  const bool known = rejected_.contains(reason) || rejected_.size() < kMaxReasons;
  uint64_t& counter = rejected_[known ? reason : "other"];
  counter = AddSaturating(counter, count);
}

void RoundMachine::CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t late) {
  for (const auto& [reason, count] : rejected) CountRejected(reason, count);
  late_ = AddSaturating(late_, late);
}

// ---- Time and the end

uint64_t RoundMachine::Needed() const {
  const uint64_t awaited = cohort_ - gone_;
  if (awaited == 0) return 0;
  // 0.55 * 100 is 55.00000000000001 in doubles, and needs 55 answers, not 56.
  const double share = plan_.quorum * static_cast<double>(awaited) * (1 - 1e-12);
  if (!(share < static_cast<double>(awaited))) return awaited;
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(std::max(share, 0.0))), 1, awaited);
}

bool RoundMachine::CloseDue() const {
  if (plan_.maximum > 0 && accepted_clients_ >= plan_.maximum) return true;
  return had_members_ && answered_ >= Needed();
}

// Lets happen what is due at `now`, in the order of its times, as if each timer had been called.
void RoundMachine::Advance(absl::Duration now, Actions* actions) {
  now_ = std::max(now_, now);
  if (phase_ != Phase::kOpen) return;
  const absl::Duration until = std::min(now_, deadline_at_);
  while (!CloseDue() && !graces_.empty() && graces_.begin()->first.first <= until) {
    Entry& member = *graces_.begin()->second;
    graces_.erase(graces_.begin());
    // A stream may outlive its session and end well; where it breaks off, Aborted gives the member
    // up.
    if (member.second.answer == Answer::kAwaited) SetAnswer(member, Answer::kGone);
  }
  if (CloseDue() || now_ >= deadline_at_) Close(actions);
}

std::vector<Action> RoundMachine::Timer(absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  return actions;
}

std::optional<absl::Duration> RoundMachine::NextTimer() const {
  if (phase_ != Phase::kOpen) return std::nullopt;
  if (CloseDue()) return now_;
  if (graces_.empty()) return deadline_at_;
  return std::min(deadline_at_, graces_.begin()->first.first);
}

std::vector<Action> RoundMachine::CloseNow(absl::Duration now) {
  Actions actions;
  Advance(now, &actions);
  if (phase_ == Phase::kOpen || phase_ == Phase::kIdle) Close(&actions);
  return actions;
}

void RoundMachine::Close(Actions* actions) {
  phase_ = Phase::kClosing;
  graces_.clear();
  std::vector<uint64_t> uploading;
  for (const auto& [ticket, attempt] : attempts_) {
    if (!attempt.folding) uploading.push_back(ticket);
  }
  for (const uint64_t ticket : uploading) {
    Entry& member = *attempts_.at(ticket).member;
    AbortAttempt(ticket, actions);
    SetAnswer(member, Answer::kAwaited);
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
                      " clients that it needs: of ", cohort_, " members ", answered_,
                      " answered and ", gone_, " are gone, ", refused, " offers were refused and ",
                      late_, " came too late; lower the minimum or allow more time");
}

RoundResult RoundMachine::Result() const {
  RoundResult result;
  result.success = accepted_clients_ >= plan_.minimum;
  result.why_not = WhyNot();
  result.weight = weight_;
  result.clients = accepted_clients_;
  for (const auto& [id, state] : members_) {
    if (state.answer == Answer::kAccepted) result.children.push_back(id);
  }
  std::sort(result.children.begin(), result.children.end());
  result.contributors.reserve(claims_.size());
  for (const auto& [client, member] : claims_) {
    if (member->second.answer == Answer::kAccepted) result.contributors.push_back(client);
  }
  std::sort(result.contributors.begin(), result.contributors.end());
  result.rejected = rejected_;
  result.late = late_;
  return result;
}

}  // namespace tributary::aggregation
