// The round's rules. Every event costs O(log n) at most; only Begin, Awaited and Result walk the members.
#include "aggregation/round.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace tributary::aggregation {

bool InCohort(uint64_t seed, uint64_t round, const std::string& id, double fraction) {
  if (fraction >= 1) return true;
  // fraction * 2^64 is exact in double up to rounding of the product, and the same on every machine.
  const double threshold = fraction * 0x1p64;
  return static_cast<double>(SeededHash(seed, "cohort", absl::StrCat(round, "/", id))) < threshold;
}

bool RoundMachine::InCohortHere(const Member& member) const {
  return member.aggregator || InCohort(plan_.seed, plan_.round, member.id, plan_.cohort_fraction);
}

// ---- Members

std::vector<Action> RoundMachine::Begin(const std::vector<Member>& members, absl::Duration now) {
  Actions actions;
  phase_ = Phase::kOpen;
  deadline_ = now + plan_.deadline;
  for (const Member& member : members) {
    if (!InCohortHere(member)) continue;
    State& state = members_[member.id];
    state = {.aggregator = member.aggregator, .present = true, .epoch = member.epoch};
    ++awaited_;
    actions.push_back({.kind = Action::Kind::kTask, .member = member.id});
  }
  return actions;
}

std::vector<Action> RoundMachine::Joined(const Member& member, absl::Duration now) {
  Actions actions;
  if (phase_ != Phase::kOpen || !InCohortHere(member)) return actions;
  const auto [it, fresh] = members_.try_emplace(member.id);
  State& state = it->second;
  if (!fresh && member.epoch < state.epoch) return actions;
  if (fresh) {
    ++awaited_;
  } else if (!state.present) {
    away_.erase({state.left_at + plan_.rejoin_grace, member.id});
  }
  const bool newer_life = !fresh && member.epoch > state.epoch;
  state.present = true;
  state.aggregator = member.aggregator;
  state.epoch = member.epoch;
  if (state.answer == Answer::kUploading && newer_life) {
    actions.push_back({.kind = Action::Kind::kAbort, .member = member.id, .ticket = state.ticket});
    Free(state.ticket);
    SetAnswer(member.id, state, Answer::kAwaited);
  } else if (state.answer == Answer::kGone || (state.answer == Answer::kDeclined && newer_life)) {
    SetAnswer(member.id, state, Answer::kAwaited);
  }
  if (state.answer == Answer::kAwaited) actions.push_back({.kind = Action::Kind::kTask, .member = member.id});
  CloseIfDue(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Left(const std::string& id, uint64_t epoch, absl::Duration now) {
  Actions actions;
  const auto it = members_.find(id);
  if (phase_ != Phase::kOpen || it == members_.end() || epoch < it->second.epoch || !it->second.present) return actions;
  State& state = it->second;
  state.present = false;
  state.left_at = now;
  if (state.answer == Answer::kAwaited || state.answer == Answer::kUploading) {
    away_.insert({now + plan_.rejoin_grace, id});
  }
  return actions;
}

void RoundMachine::SetAnswer(const std::string& id, State& state, Answer answer) {
  const auto awaited = [](Answer a) {
    return a == Answer::kAwaited || a == Answer::kUploading || a == Answer::kFolding;
  };
  const auto answered = [](Answer a) {
    return a == Answer::kAccepted || a == Answer::kRejected || a == Answer::kDeclined;
  };
  awaited_ -= awaited(state.answer) ? 1 : 0;
  answered_ -= answered(state.answer) ? 1 : 0;
  state.answer = answer;
  awaited_ += awaited(answer) ? 1 : 0;
  answered_ += answered(answer) ? 1 : 0;
  if (!state.present) {
    // Only who may still send is worth waiting for.
    const std::pair<absl::Duration, std::string> key = {state.left_at + plan_.rejoin_grace, id};
    if (answer == Answer::kAwaited || answer == Answer::kUploading) {
      away_.insert(key);
    } else {
      away_.erase(key);
    }
  }
}

// ---- Offers

Admission RoundMachine::Refuse(const std::string& reason, std::string message) {
  ++rejected_[reason];
  return {.verdict = Verdict::kReject, .reason = reason, .message = std::move(message)};
}

std::string RoundMachine::CheckWeight(const State& state, const std::string& id, int64_t weight,
                                      std::string* reason) const {
  *reason = "weight";
  if (weight <= 0) {
    return absl::StrCat("\"", id, "\" sends weight ", weight, "; a weight is at least 1: send the number of examples");
  }
  const auto value = static_cast<uint64_t>(weight);
  if (!state.aggregator && value > plan_.max_client_weight) {
    return absl::StrCat("\"", id, "\" sends weight ", value, ", over the cap of ", plan_.max_client_weight,
                        " a client; raise [aggregation] max_client_weight or send less");
  }
  *reason = "full";
  // Its own earlier attempt, if any, is replaced: what that reserved does not stand in the way.
  uint64_t others = weight_;
  if (const auto mine = attempts_.find(state.ticket); mine != attempts_.end()) {
    others -= static_cast<uint64_t>(mine->second.weight);
  }
  if (value > plan_.max_weight || others > plan_.max_weight - value) {
    return absl::StrCat("round ", plan_.round, " holds weight ", others, " of at most ", plan_.max_weight,
                        "; the ", value, " of \"", id, "\" would pass it: raise [aggregation] max_round_weight");
  }
  return "";
}

Admission RoundMachine::Offer(const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
                              const std::vector<std::string>& clients, absl::Duration now) {
  if (round != plan_.round || phase_ != Phase::kOpen || now >= deadline_) {
    ++late_;
    return {.verdict = Verdict::kStale,
            .reason = "round",
            .message = absl::StrCat("the update of \"", id, "\" is for round ", round, "; round ", plan_.round,
                                    phase_ == Phase::kOpen && now < deadline_ ? " is open" : " is closed")};
  }
  const auto it = members_.find(id);
  if (it == members_.end()) {
    if (!InCohort(plan_.seed, plan_.round, id, plan_.cohort_fraction)) {
      return Refuse("cohort", absl::StrCat("\"", id, "\" is not in the cohort of round ", round, "; wait for a task"));
    }
    return Refuse("session", absl::StrCat("\"", id, "\" has not joined round ", round, "; join first"));
  }
  State& state = it->second;
  if (epoch < state.epoch) {
    return Refuse("session", absl::StrCat("a later life of \"", id, "\" has joined; this one (epoch ", epoch, ") is over"));
  }
  if (state.answer == Answer::kFolding || state.answer == Answer::kAccepted) {
    return {.verdict = Verdict::kDuplicate,
            .reason = "",
            .message = absl::StrCat("the update of \"", id, "\" for round ", round, " is in already")};
  }
  std::string reason;
  if (std::string message = CheckWeight(state, id, weight, &reason); !message.empty()) {
    return Refuse(reason, std::move(message));
  }
  const std::vector<std::string> ids = state.aggregator ? clients : std::vector<std::string>{id};
  uint64_t others = clients_;
  if (const auto mine = attempts_.find(state.ticket); mine != attempts_.end()) others -= mine->second.clients.size();
  if (plan_.maximum > 0 && others + ids.size() > plan_.maximum) {
    return Refuse("full", absl::StrCat("round ", round, " has its maximum of ", plan_.maximum, " clients"));
  }
  for (const std::string& client : ids) {
    const auto counted = counted_.find(client);
    if (counted != counted_.end() && counted->second != state.ticket) {
      return Refuse("duplicate_clients", absl::StrCat("the sum of \"", id, "\" holds client \"", client,
                                                      "\", which is counted already"));
    }
  }
  Admission admission = {.verdict = Verdict::kAdmit, .ticket = next_ticket_++};
  if (state.answer == Answer::kUploading) {
    admission.replaces = state.ticket;
    Free(state.ticket);
  }
  for (const std::string& client : ids) counted_[client] = admission.ticket;
  weight_ += static_cast<uint64_t>(weight);
  clients_ += ids.size();
  attempts_[admission.ticket] = {.member = id, .weight = weight, .clients = ids};
  state.ticket = admission.ticket;
  SetAnswer(id, state, Answer::kUploading);
  return admission;
}

void RoundMachine::Free(uint64_t ticket) {
  if (const auto it = attempts_.find(ticket); it != attempts_.end()) Free(it);
}

void RoundMachine::Free(absl::flat_hash_map<uint64_t, Attempt>::iterator attempt) {
  weight_ -= static_cast<uint64_t>(attempt->second.weight);
  clients_ -= attempt->second.clients.size();
  for (const std::string& client : attempt->second.clients) counted_.erase(client);
  attempts_.erase(attempt);
}

bool RoundMachine::Commit(uint64_t ticket) {
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.committed || phase_ != Phase::kOpen) return false;
  it->second.committed = true;
  ++folding_;
  SetAnswer(it->second.member, members_[it->second.member], Answer::kFolding);
  return true;
}

std::vector<Action> RoundMachine::Folded(uint64_t ticket, absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || !it->second.committed) return actions;
  State& state = members_[it->second.member];
  if (state.answer != Answer::kFolding || state.ticket != ticket) return actions;
  --folding_;
  accepted_ += it->second.clients.size();
  SetAnswer(it->second.member, state, Answer::kAccepted);
  if (phase_ == Phase::kClosing) FinishClosing(&actions);
  CloseIfDue(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Aborted(uint64_t ticket, absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.committed) return actions;
  const std::string member = it->second.member;
  Free(it);
  SetAnswer(member, members_[member], Answer::kAwaited);
  CloseIfDue(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Refused(uint64_t ticket, const std::string& reason, absl::Duration now) {
  Actions actions;
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.committed) return actions;
  const std::string member = it->second.member;
  Free(it);
  ++rejected_[reason];
  SetAnswer(member, members_[member], Answer::kRejected);
  CloseIfDue(now, &actions);
  return actions;
}

std::vector<Action> RoundMachine::Reported(const std::string& id, uint64_t epoch, uint64_t clients,
                                           absl::Duration now) {
  Actions actions;
  const auto it = members_.find(id);
  if (phase_ != Phase::kOpen || it == members_.end() || epoch < it->second.epoch ||
      it->second.answer != Answer::kAwaited) {
    return actions;
  }
  accepted_ += clients;
  SetAnswer(id, it->second, clients > 0 ? Answer::kAccepted : Answer::kDeclined);
  CloseIfDue(now, &actions);
  return actions;
}

void RoundMachine::CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t late) {
  for (const auto& [reason, count] : rejected) rejected_[reason] += count;
  late_ += late;
}

// ---- Closing

bool RoundMachine::QuorumReached() const {
  const uint64_t all = awaited_ + answered_;
  if (all == 0) return !members_.empty();  // everybody came and went
  return static_cast<double>(answered_) >= std::ceil(plan_.quorum * static_cast<double>(all));
}

void RoundMachine::CloseIfDue(absl::Duration now, Actions* actions) {
  if (phase_ != Phase::kOpen) return;
  const bool full = plan_.maximum > 0 && accepted_ >= plan_.maximum;
  if (now >= deadline_ || full || QuorumReached()) StartClosing(actions);
}

void RoundMachine::StartClosing(Actions* actions) {
  phase_ = Phase::kClosing;
  std::vector<uint64_t> cut;
  for (const auto& [ticket, attempt] : attempts_) {
    if (!attempt.committed) cut.push_back(ticket);
  }
  // In order, so that the same events give the same trace.
  std::sort(cut.begin(), cut.end());
  for (const uint64_t ticket : cut) {
    const std::string member = attempts_[ticket].member;
    actions->push_back({.kind = Action::Kind::kAbort, .member = member, .ticket = ticket});
    Free(ticket);
    SetAnswer(member, members_[member], Answer::kAwaited);
    ++late_;
  }
  FinishClosing(actions);
}

void RoundMachine::FinishClosing(Actions* actions) {
  if (folding_ > 0) return;
  phase_ = Phase::kClosed;
  actions->push_back({.kind = Action::Kind::kClosed});
}

std::vector<Action> RoundMachine::Timer(absl::Duration now) {
  Actions actions;
  if (phase_ != Phase::kOpen) return actions;
  while (!away_.empty() && away_.begin()->first <= now) {
    const std::string id = away_.begin()->second;
    State& state = members_[id];
    if (state.answer == Answer::kUploading) {
      // Its stream outlived its session, and may still end well: the deadline bounds it.
      away_.erase(away_.begin());
      continue;
    }
    SetAnswer(id, state, Answer::kGone);
  }
  CloseIfDue(now, &actions);
  return actions;
}

std::optional<absl::Duration> RoundMachine::NextTimer() const {
  if (phase_ != Phase::kOpen) return std::nullopt;
  return away_.empty() ? deadline_ : std::min(deadline_, away_.begin()->first);
}

std::vector<Action> RoundMachine::CloseNow(absl::Duration) {
  Actions actions;
  if (phase_ == Phase::kOpen) StartClosing(&actions);
  return actions;
}

// ---- What became of it

Answer RoundMachine::AnswerOf(const std::string& id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? Answer::kGone : it->second.answer;
}

std::vector<std::string> RoundMachine::Awaited() const {
  std::vector<std::string> out;
  for (const auto& [id, state] : members_) {
    if (state.answer == Answer::kAwaited || state.answer == Answer::kUploading || state.answer == Answer::kFolding) {
      out.push_back(id);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

RoundResult RoundMachine::Result() const {
  RoundResult result;
  for (const auto& [ticket, attempt] : attempts_) {
    result.children.push_back(attempt.member);
    result.contributors.insert(result.contributors.end(), attempt.clients.begin(), attempt.clients.end());
  }
  std::sort(result.children.begin(), result.children.end());
  std::sort(result.contributors.begin(), result.contributors.end());
  result.weight = weight_;
  result.clients = accepted_;
  result.rejected = rejected_;
  result.late = late_;
  result.success = accepted_ >= plan_.minimum;
  if (!result.success) {
    result.why_not = absl::StrCat(accepted_, " of at least ", plan_.minimum, " clients accepted, ", answered_, " of ",
                                  members_.size(), " members answered");
    for (const auto& [reason, count] : rejected_) absl::StrAppend(&result.why_not, ", ", count, " refused (", reason, ")");
    if (late_ > 0) absl::StrAppend(&result.why_not, ", ", late_, " late");
  }
  return result;
}

}  // namespace tributary::aggregation
