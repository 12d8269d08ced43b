// Counts, and what follows from them.
#include "aggregation/participation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {
namespace {

std::string Field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out.push_back('"');
    out.push_back(c);
  }
  out.push_back('"');
  return out;
}

// Of ascending values: 2 sum(i x_i) / (n sum(x)) - (n + 1) / n, i from 1.
double Gini(const std::vector<uint32_t>& ascending) {
  double sum = 0, ranked = 0;
  for (size_t i = 0; i < ascending.size(); ++i) {
    sum += ascending[i];
    ranked += static_cast<double>(i + 1) * ascending[i];
  }
  const auto n = static_cast<double>(ascending.size());
  return sum > 0 ? 2 * ranked / (n * sum) - (n + 1) / n : 0;
}

}  // namespace

void Participation::Observe(std::string_view client, bool in) {
  const absl::string_view key(client.data(), client.size());
  auto it = counts_.find(key);
  if (it == counts_.end()) {
    if (counts_.size() >= most_clients_) {
      ++uncounted_;
      return;
    }
    it = counts_.emplace(std::string(client), Counts()).first;
  }
  ++it->second.asked;
  if (in) ++it->second.in;
}

void Participation::ObserveRound(const std::vector<std::string>& in) {
  for (auto& [id, counts] : counts_) ++counts.asked;
  for (const std::string& id : in) {
    if (const auto it = counts_.find(id); it != counts_.end()) {
      ++it->second.in;
    } else {
      Observe(id, true);
    }
  }
}

double Participation::Probability(std::string_view client) const {
  const auto it = counts_.find(absl::string_view(client.data(), client.size()));
  if (it == counts_.end()) return 1;
  return (it->second.in + 1.0) / (it->second.asked + 1.0);
}

double Participation::Factor(std::string_view client, double floor) const {
  return floor / std::max(floor, Probability(client));
}

ParticipationSummary Participation::Summary() const {
  ParticipationSummary out;
  out.clients = counts_.size();
  out.uncounted = uncounted_;
  if (counts_.empty()) return out;
  std::vector<double> shares;
  std::vector<uint32_t> in;
  for (const auto& [id, counts] : counts_) {
    shares.push_back(static_cast<double>(counts.in) / counts.asked);
    in.push_back(counts.in);
    if (counts.in == 0) ++out.never;
  }
  std::sort(shares.begin(), shares.end());
  std::sort(in.begin(), in.end());
  out.least = shares.front();
  out.median = shares[(shares.size() - 1) / 2];
  out.most = shares.back();
  out.gini = Gini(in);
  return out;
}

std::string Participation::Csv() const {
  std::vector<const std::pair<const std::string, Counts>*> lines;
  for (const auto& entry : counts_) lines.push_back(&entry);
  std::sort(lines.begin(), lines.end(),
            [](const auto* a, const auto* b) { return a->first < b->first; });
  std::string out = "client,asked,in\n";
  for (const auto* line : lines) {
    absl::StrAppend(&out, Field(line->first), ",", line->second.asked, ",", line->second.in, "\n");
  }
  return out;
}

}  // namespace tributary::aggregation
