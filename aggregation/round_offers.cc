// The round's way with updates: offered, admitted, committed, folded; or aborted, or refused.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "aggregation/internal/round_answers.h"
#include "aggregation/round.h"

namespace tributary::aggregation {

using internal::AddSaturating;
using internal::IsIn;
using internal::IsPending;

// Reasons come from children too: a faulty one must not fill the memory with inventions. Twice the
// words there are, and some.
constexpr size_t kMaxReasons = 64;

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
  member.second.supplement = false;
  if (member.second.answer == Answer::kAwaited) SetAnswer(member, Answer::kRejected);
  return refusal;
}

Admission RoundMachine::Offer(const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
                              const std::vector<std::string>& clients, absl::Duration now,
                              uint32_t part) {
  now_ = std::max(now_, now);
  const bool is_open = phase_ == Phase::kOpen && now_ < ClosesAt();
  const auto it = members_.find(id);
  const bool carried = round != plan_.round && it != members_.end() && it->second.owes == round &&
                       it->second.epoch == epoch;
  if (round != plan_.round && !carried) {
    return Stale(absl::StrCat("the update of \"", id, "\" is for round ", round, ", round ",
                              plan_.round, is_open ? " is open" : " is the latest and has closed",
                              "; wait for the next task"));
  }
  const bool in = it != members_.end() && it->second.epoch == epoch &&
                  (it->second.aggregator ? part < it->second.parts : IsIn(it->second.answer));
  if (in || (it != members_.end() && it->second.elsewhere)) {
    return {.verdict = Verdict::kDuplicate,
            .message = absl::StrCat("the update of \"", id, "\" for round ", round,
                                    " is in already; nothing is to be sent again")};
  }
  if (!is_open || (it != members_.end() && it->second.left_out)) {
    return Stale(absl::StrCat("the update of \"", id, "\" came after round ", round,
                              " had closed; wait for the next task"));
  }
  if (auto refusal = CheckSession(id, epoch, now_)) return *std::move(refusal);
  if (auto refusal = CheckPart(it->second, id, part)) return *std::move(refusal);
  if (it->second.owes != 0 && !carried) {
    return Reject("round", absl::StrCat("\"", id, "\" has no task of round ", round,
                                        ": it still owes that of round ", it->second.owes));
  }
  if (auto refusal = CheckWeight(*it, weight)) return Answered(*it, *std::move(refusal));
  const uint64_t staleness = plan_.round - round;
  if (carried) weight = StaleWeight(weight, staleness);
  if (auto refusal = CheckRoom(*it, weight, clients)) return Answered(*it, *std::move(refusal));
  Admission admission = Admit(*it, static_cast<uint64_t>(weight),
                              it->second.aggregator ? clients : std::vector<std::string>{id});
  admission.staleness = staleness;
  return admission;
}

std::optional<Admission> RoundMachine::CheckSession(const std::string& id, uint64_t epoch,
                                                    absl::Duration now) {
  const auto it = members_.find(id);
  if (it == members_.end() && Crowded()) {
    return Reject("full", absl::StrCat("\"", id, "\" is new to round ", plan_.round, ", which ",
                                       away_, " members have left, as many as it remembers; wait ",
                                       "for the next task"));
  }
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

std::optional<Admission> RoundMachine::CheckPart(const State& state, const std::string& id,
                                                 uint32_t part) {
  if (state.fenced) {
    return Reject("fenced", absl::StrCat("\"", id,
                                         "\" was away, and clients of it were given to "
                                         "another aggregator: what it has of round ",
                                         plan_.round, " does not count"));
  }
  if (state.unclaimed) {
    return Reject("unclaimed", absl::StrCat("\"", id, "\" came while round ", plan_.round,
                                            " was running, and may be counted elsewhere"));
  }
  if (state.aggregator && part > state.parts) {
    return Reject("part", absl::StrCat("\"", id, "\" offers partial sum ", part + 1, " of round ",
                                       plan_.round, ", ", state.parts, " are in"));
  }
  if (part >= kMostParts) {
    return Reject("part", absl::StrCat("\"", id, "\" offers partial sum ", part + 1, " of round ",
                                       plan_.round, "; the most are ", kMostParts));
  }
  return std::nullopt;
}

std::optional<Admission> RoundMachine::CheckWeight(Entry& member, int64_t weight) {
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
  return std::nullopt;
}

std::optional<Admission> RoundMachine::CheckRoom(Entry& member, int64_t weight,
                                                 const std::vector<std::string>& clients) {
  const auto& [id, state] = member;
  const auto w = static_cast<uint64_t>(weight);
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
  return state.aggregator ? std::nullopt : CheckClaim(member);
}

std::optional<Admission> RoundMachine::CheckClaim(Entry& member) {
  const std::string& id = member.first;
  const auto claim = claims_.find(id);
  if (claim == claims_.end() || claim->second.member == &member) return std::nullopt;
  return Reject("duplicate_clients", absl::StrCat("\"", id, "\" is counted under \"",
                                                  claim->second.member->first, "\" already"));
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
    if (claim == claims_.end()) continue;
    if (claim->second.member == &member && !claim->second.counted) continue;
    return Reject("duplicate_clients", absl::StrCat("\"", client, "\" in the partial sum of \"",
                                                    member.first, "\" is counted under \"",
                                                    claim->second.member->first, "\" already"));
  }
  return std::nullopt;
}

Admission RoundMachine::Admit(Entry& member, uint64_t weight, std::vector<std::string> clients) {
  Admission admission{
      .verdict = Verdict::kAdmit, .replaces = member.second.ticket, .weight = weight};
  if (admission.replaces != 0) Release(admission.replaces);
  // A driver that keeps a ticket past its round must not meet it again in the next.
  admission.ticket = (plan_.round << 32) | next_ticket_++;
  held_weight_ += weight;
  held_clients_ += clients.size();
  for (const std::string& client : clients) claims_[client].member = &member;
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
  for (const std::string& client : attempt.clients) {
    const auto claim = claims_.find(client);
    if (claim != claims_.end() && !claim->second.granted) claims_.erase(claim);
  }
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
  for (const std::string& client : attempt.clients) {
    Holder& holder = claims_[client];
    holder.counted = true;
    holder.part = part_;
  }
  State& state = attempt.member->second;
  state.ticket = 0;  // the member's next partial sum may come before this one is folded
  ++state.parts;
  ++state.parts_at[part_];
  CountAway(state);
  if (state.parts > 1) state.supplement = false;
  SetAnswer(*attempt.member, Answer::kFolding);
  return true;
}

std::vector<Action> RoundMachine::Folded(uint64_t ticket, absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || !it->second.folding) return actions;
  Entry& member = *it->second.member;
  accepted_clients_ = AddSaturating(accepted_clients_, it->second.clients.size());
  attempts_.erase(it);  // its claims stay
  if (member.second.owes != 0) ++carried_;
  now_ = std::max(now_, now);
  if (member.second.parts <= 1) member.second.until = now_;
  if (member.second.answer == Answer::kFolding) SetAnswer(member, Answer::kAccepted);
  if (phase_ == Phase::kOpen) LearnSoftDeadline();
  ResolveClaims(&actions);
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
  SetAnswer(member, Fallback(member.second));
  if (member.second.parts == 0) StartGrace(member);  // where its session has ended; over already?
  ResolveClaims(&actions);
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
  member.second.supplement = false;
  SetAnswer(member, member.second.parts > 0 ? Answer::kAccepted : Answer::kRejected);
  ResolveClaims(&actions);
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
  const bool counts =
      clients > 0 &&
      (state.aggregator || claims_.try_emplace(id, Holder{.member = &*it, .counted = true}).second);
  if (counts) {
    state.parts = state.parts_at[0] = 1;
    state.until = now_;
  }
  CountAway(state);
  if (counts) {
    const uint64_t count = state.aggregator ? clients : 1;
    held_clients_ = AddSaturating(held_clients_, count);
    accepted_clients_ = AddSaturating(accepted_clients_, count);
  }
  SetAnswer(*it, counts            ? Answer::kAccepted
                 : state.parts > 0 ? Answer::kAccepted
                                   : Answer::kDeclined);
  LearnSoftDeadline();
  ResolveClaims(&actions);
  AskNextInLine(&actions);
  Advance(now_, &actions);
  return actions;
}

void RoundMachine::CountRejected(const std::string& reason, uint64_t count) {
  const bool known = rejected_.contains(reason) || rejected_.size() < kMaxReasons;
  uint64_t& counter = rejected_[known ? reason : "other"];
  counter = AddSaturating(counter, count);
}

void RoundMachine::CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t late) {
  for (const auto& [reason, count] : rejected) {
    CountRejected(internal::ReasonToCount(reason), count);
  }
  late_ = AddSaturating(late_, late);
}

}  // namespace tributary::aggregation
