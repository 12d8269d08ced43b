// Updates and racks' sums on their way into the buffer: offered, admitted, committed, folded.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "aggregation/async.h"
#include "aggregation/cohort.h"
#include "aggregation/internal/round_answers.h"

namespace tributary::aggregation {

using Actions = AsyncMachine::Actions;

namespace {

constexpr size_t kMostReasons = 64;  // words that racks may count refusals under

}  // namespace

Admission AsyncMachine::Reject(const std::string& reason, const std::string& message) {
  ++rejected_[reason];
  return {.verdict = aggregation::Verdict::kReject, .reason = reason, .message = message};
}

Admission AsyncMachine::Offer(const std::string& id, uint64_t epoch, uint64_t base, int64_t weight,
                              absl::Duration now) {
  now_ = std::max(now_, now);
  State* state = Find(id, epoch);
  if (state == nullptr || state->aggregator) {
    return Reject("session", absl::StrCat("\"", id, "\" has no session of epoch ", epoch));
  }
  if (base > version_) {
    Freed(id, *state, base);
    return Reject("round", absl::StrCat("the update of \"", id, "\" starts from model version ",
                                        base, ", the newest is ", version_));
  }
  if (version_ - base > plan_.max_staleness) {
    Freed(id, *state, base);
    ++stale_;
    return {.verdict = aggregation::Verdict::kStale,
            .reason = "staleness",
            .message = absl::StrCat("the update of \"", id, "\" starts from model version ", base,
                                    ", ", version_ - base, " behind version ", version_,
                                    "; [async] max_staleness = ", plan_.max_staleness)};
  }
  if (Voided({base, id})) {
    Freed(id, *state, base);
    ++stale_;
    return {.verdict = aggregation::Verdict::kStale,
            .reason = "staleness",
            .message = absl::StrCat("the update of \"", id, "\" from model version ", base,
                                    base < counted_from_
                                        ? absl::StrCat(" is older than version ", counted_from_,
                                                       ", before which nobody knows what counts")
                                        : ", which its client was told does not count")};
  }
  if (Counts({base, id})) {
    Freed(id, *state, base);
    return {.verdict = aggregation::Verdict::kDuplicate,
            .message =
                absl::StrCat("the update of \"", id, "\" from version ", base, " counts already")};
  }
  if (weight <= 0 || static_cast<uint64_t>(weight) > plan_.max_client_weight ||
      static_cast<uint64_t>(weight) > plan_.max_weight) {
    Freed(id, *state, base);
    return Reject(
        "weight",
        absl::StrCat("the update of \"", id, "\" has weight ", weight, ", 1 to ",
                     std::min(plan_.max_client_weight, plan_.max_weight), " are allowed"));
  }
  Admission admission{.verdict = aggregation::Verdict::kAdmit};
  if (const auto old = receiving_.find(id); old != receiving_.end()) {
    admission.replaces = old->second;
    attempts_.erase(old->second);
  }
  admission.ticket = next_ticket_++;
  admission.staleness = version_ - base;
  admission.weight = static_cast<uint64_t>(
      StaleWeight(weight, admission.staleness));  // by the version now; Commit says what it is then
  attempts_[admission.ticket] = {.id = id, .base = base, .weight = static_cast<uint64_t>(weight)};
  receiving_[id] = admission.ticket;
  return admission;
}

// "": it holds.
std::string AsyncMachine::CheckSum(const std::vector<Contribution>& contributions, uint64_t weight,
                                   std::string* reason) const {
  *reason = "malformed";
  if (contributions.empty()) return "names no contributions";
  unsigned __int128 total = 0;
  for (size_t i = 0; i < contributions.size(); ++i) {
    const Contribution& c = contributions[i];
    if (i > 0 &&
        std::pair(contributions[i - 1].id, contributions[i - 1].base) >= std::pair(c.id, c.base)) {
      return absl::StrCat("names \"", c.id, "\" out of order or twice");
    }
    if (c.base > version_ || c.staleness != version_ - c.base || c.weight == 0) {
      return absl::StrCat("says of \"", c.id, "\": from version ", c.base, ", ", c.staleness,
                          " behind, weight ", c.weight, "; that cannot be at version ", version_);
    }
    total += c.weight;
    if (c.staleness > plan_.max_staleness) {
      *reason = "staleness";
      return absl::StrCat("holds an update of \"", c.id, "\" that is ", c.staleness,
                          " versions old");
    }
    if (Voided({c.base, c.id})) {
      *reason = "staleness";
      return absl::StrCat("holds the update of \"", c.id, "\" from version ", c.base,
                          ", which can count no more");
    }
    if (Counts({c.base, c.id})) {
      *reason = "duplicate_clients";
      return absl::StrCat("holds the update of \"", c.id, "\" from version ", c.base,
                          ", which counts already");
    }
  }
  if (total != weight) return absl::StrCat("says weight ", weight, ", its parts have another");
  *reason = "full";
  if (weight > plan_.max_weight - std::min(weight_, plan_.max_weight)) {
    return absl::StrCat("weighs ", weight, ", ", weight_, " of ", plan_.max_weight, " are taken");
  }
  return "";
}

Admission AsyncMachine::OfferSum(const std::string& id, uint64_t epoch, uint64_t version,
                                 uint64_t attempt, uint64_t weight,
                                 const std::vector<Contribution>& contributions,
                                 absl::Duration now) {
  now_ = std::max(now_, now);
  State* state = Find(id, epoch);
  if (state == nullptr || !state->aggregator) {
    return Reject("session", absl::StrCat("\"", id, "\" has no session of epoch ", epoch));
  }
  state->missed = false;
  const bool current = version == version_ && attempt == plan_.attempt;
  if (sums_in_.contains(id) && current) {
    return {.verdict = aggregation::Verdict::kDuplicate,
            .message = absl::StrCat("the sum of \"", id, "\" on version ", version, " is in")};
  }
  if (!current || !open() || !state->tasked) {
    return {.verdict = aggregation::Verdict::kStale,
            .reason = "round",
            .message = absl::StrCat("the sum of \"", id, "\" on version ", version,
                                    " comes too late for version ", version_)};
  }
  std::string reason;
  if (const std::string wrong = CheckSum(contributions, weight, &reason); !wrong.empty()) {
    state->collecting = state->tasked = false;
    due_ = true;
    return Reject(reason, absl::StrCat("the sum of \"", id, "\" ", wrong));
  }
  Admission admission{.verdict = aggregation::Verdict::kAdmit};
  if (const auto old = receiving_.find(id); old != receiving_.end()) {
    admission.replaces = old->second;
    attempts_.erase(old->second);
  }
  admission.ticket = next_ticket_++;
  admission.weight = weight;
  attempts_[admission.ticket] = {
      .id = id, .aggregator = true, .weight = weight, .sum = contributions};
  receiving_[id] = admission.ticket;
  return admission;
}

void AsyncMachine::AbortSum(const std::string& id, Actions* actions) {
  const auto it = receiving_.find(id);
  if (it == receiving_.end() || !attempts_.at(it->second).aggregator) return;
  actions->push_back({AsyncAction::Kind::kAbort, id, it->second});
  attempts_.erase(it->second);
  receiving_.erase(it);
}

void AsyncMachine::Enter(const Contribution& c) {
  in_buffer_.emplace(Key(c.base, c.id), c);
  clients_in_buffer_.insert(c.id);
  weight_ += c.weight;
}

AsyncMachine::Verdict AsyncMachine::CommitSum(Attempt& attempt) {
  const auto member = members_.find(attempt.id);
  if (member != members_.end()) member->second.collecting = false;
  due_ = true;
  std::string reason;
  // What was free when it was offered may have come in by another way since.
  if (!open() || !CheckSum(attempt.sum, attempt.weight, &reason).empty()) return {};
  for (const Contribution& c : attempt.sum) Enter(c);
  sums_in_.insert(attempt.id);
  return {.kind = Verdict::Kind::kFold, .weight = attempt.weight};
}

AsyncMachine::Verdict AsyncMachine::Commit(uint64_t ticket) {
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.folding) return {};
  Attempt& attempt = it->second;
  Verdict verdict;
  if (attempt.aggregator) {
    verdict = CommitSum(attempt);
  } else {
    verdict.staleness = version_ - attempt.base;
    verdict.weight =
        static_cast<uint64_t>(StaleWeight(static_cast<int64_t>(attempt.weight), verdict.staleness));
    const bool room = verdict.weight <= plan_.max_weight - std::min(weight_, plan_.max_weight);
    const auto member = members_.find(attempt.id);
    const bool present = member != members_.end() && !member->second.aggregator;
    if (verdict.staleness > plan_.max_staleness || Voided({attempt.base, attempt.id})) {
      ++stale_;
      if (present) Freed(attempt.id, member->second, attempt.base);
    } else if (Counts({attempt.base, attempt.id})) {
      verdict.kind = Verdict::Kind::kDuplicate;
      if (present) Freed(attempt.id, member->second, attempt.base);
    } else if (!open() || !room) {
      verdict.kind = Verdict::Kind::kWait;
      if (open()) full_ = due_ = true;
    } else {
      verdict.kind = Verdict::Kind::kFold;
      Enter({attempt.id, attempt.base, verdict.staleness, verdict.weight});
      if (present && attempt.base >= member->second.base)
        SetWork(attempt.id, member->second, Work::kPending);
    }
  }
  attempt.waits = verdict.kind == Verdict::Kind::kWait;
  if (attempt.waits) return verdict;
  receiving_.erase(attempt.id);
  if (verdict.kind == Verdict::Kind::kFold) {
    children_.insert(attempt.id);
    attempt.folding = true;
    ++folding_;
  } else {
    attempts_.erase(it);
  }
  return verdict;
}

Actions AsyncMachine::Folded(uint64_t ticket, absl::Duration now) {
  now_ = std::max(now_, now);
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || !it->second.folding) return {};
  attempts_.erase(it);
  --folding_;
  return Advance(now);
}

Actions AsyncMachine::Aborted(uint64_t ticket, absl::Duration now) {
  now_ = std::max(now_, now);
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.folding) return {};
  receiving_.erase(it->second.id);
  attempts_.erase(it);
  return Advance(now);
}

Actions AsyncMachine::Refused(uint64_t ticket, const std::string& reason, absl::Duration now) {
  now_ = std::max(now_, now);
  const auto it = attempts_.find(ticket);
  if (it == attempts_.end() || it->second.folding) return {};
  ++rejected_[reason];
  const auto member = members_.find(it->second.id);
  if (member != members_.end()) {
    if (member->second.aggregator) {
      member->second.collecting = member->second.tasked = false;
    } else {
      Freed(it->second.id, member->second, it->second.base);
    }
  }
  receiving_.erase(it->second.id);
  attempts_.erase(it);
  return Advance(now);
}

void AsyncMachine::CountBelow(const std::map<std::string, uint64_t>& rejected, uint64_t stale) {
  for (const auto& [word, count] : rejected) {
    const std::string reason = internal::ReasonToCount(word);
    if (rejected_.size() >= kMostReasons && !rejected_.contains(reason)) continue;
    rejected_[reason] = internal::AddSaturating(rejected_[reason], count);
  }
  stale_ = internal::AddSaturating(stale_, stale);
}

}  // namespace tributary::aggregation
