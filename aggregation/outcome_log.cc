// One number a client; what is too old is thrown out when a round is added.
#include "aggregation/outcome_log.h"

#include <algorithm>

namespace tributary::aggregation {

void OutcomeLog::Begin(uint64_t round) {
  last_.clear();
  known_from_ = round;
  newest_ = 0;
}

void OutcomeLog::Running(uint64_t round) {
  if (round <= newest_) Begin(round);
}

void OutcomeLog::Committed(uint64_t round, std::span<const std::string> clients) {
  newest_ = round;
  for (const std::string& client : clients) last_[client] = round;
  if (round >= rounds_) known_from_ = std::max(known_from_, round - rounds_ + 1);
  if (last_.size() > most_clients_) known_from_ = round;
  absl::erase_if(last_, [this](const auto& entry) { return entry.second < known_from_; });
}

Fate OutcomeLog::Of(absl::string_view client, uint64_t round) const {
  const auto it = last_.find(client);
  if (it != last_.end() && it->second >= round) return Fate::kCounted;
  return round >= known_from_ ? Fate::kNotCounted : Fate::kUnknown;
}

}  // namespace tributary::aggregation
