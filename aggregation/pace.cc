// Medians over short windows, two thresholds, two counts.
#include "aggregation/pace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tributary::aggregation {
namespace {

template <class Iterator>
double QuantileOf(Iterator begin, Iterator end, double share) {
  std::vector<float> sorted(begin, end);
  const double rank = std::ceil(share * static_cast<double>(sorted.size()) * (1 - 1e-12));
  const size_t index = std::clamp<size_t>(static_cast<size_t>(rank), 1, sorted.size()) - 1;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(index),
                   sorted.end());
  return static_cast<double>(sorted[index]);
}

}  // namespace

const char* PaceMetricName(PaceMetric metric) {
  constexpr const char* kNames[kPaceMetrics] = {"round",  "download", "train",
                                                "upload", "forward",  "throughput"};
  return kNames[static_cast<int>(metric)];
}

PaceTracker::Member* PaceTracker::Find(const std::string& id) {
  const auto it = members_.find(id);
  if (it != members_.end()) return &it->second;
  return members_.size() < options_.most_members ? &members_[id] : nullptr;
}

void PaceTracker::Observe(const std::string& id, PaceMetric metric, double value) {
  if (!std::isfinite(value) || value < 0) return;
  Member* const found = Find(id);
  if (found == nullptr) return;
  Member& member = *found;
  Values& values = member.values[static_cast<int>(metric)];
  values.push_back(static_cast<float>(value));
  if (values.size() > options_.window) values.erase(values.begin());
  if (metric == PaceMetric::kRound) member.observed = true;
}

void PaceTracker::Missed(const std::string& id, double seconds, bool at_deadline) {
  const auto median = Quantile(id, PaceMetric::kRound, 0.5);
  if (at_deadline || !median.has_value() || seconds > *median) {
    Observe(id, PaceMetric::kRound, seconds);
  }
  Member* const member = at_deadline ? Find(id) : nullptr;
  if (member != nullptr) member->missed = true;
}

void PaceTracker::Forget(const std::string& id) { members_.erase(id); }

bool PaceTracker::degraded(const std::string& id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.degraded;
}

std::vector<std::string> PaceTracker::Degraded() const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    if (member.degraded) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::optional<double> PaceTracker::Quantile(const std::string& id, PaceMetric metric,
                                            double share) const {
  const auto it = members_.find(id);
  if (it == members_.end()) return std::nullopt;
  const Values& values = it->second.values[static_cast<int>(metric)];
  if (values.empty()) return std::nullopt;
  return QuantileOf(values.begin(), values.end(), share);
}

double PaceTracker::Now(const Values& values) const {
  const size_t recent = std::min<size_t>(options_.recent, values.size());
  if (recent == 0) return 0;
  return QuantileOf(values.end() - static_cast<std::ptrdiff_t>(recent), values.end(), 0.5);
}

double PaceTracker::Past(const Member& member, PaceMetric metric) const {
  if (metric == PaceMetric::kRound && member.degraded) return member.past;
  const Values& values = member.values[static_cast<int>(metric)];
  if (values.size() < options_.recent + options_.minimum_past) return 0;
  return QuantileOf(values.begin(), values.end() - options_.recent, 0.5);
}

// Updates the counts; true where the member changes between degraded and not.
bool PaceTracker::Judge(Member& member, double now, double peers) {
  const double past = Past(member, PaceMetric::kRound);
  const auto above = [now](double reference, double times) {
    return reference > 0 && now > times * reference;
  };
  const bool missed = std::exchange(member.missed, false);
  const bool slow = missed || above(past, options_.enter_own) || above(peers, options_.enter_peers);
  const bool healthy =
      !missed && !above(past, options_.leave_own) && !above(peers, options_.leave_peers);
  member.slow_rounds = slow ? member.slow_rounds + 1 : 0;
  member.healthy_rounds = healthy ? member.healthy_rounds + 1 : 0;
  if (!member.degraded && member.slow_rounds >= options_.enter_rounds) {
    member.past = past;
    member.degraded = true;
    return true;
  }
  if (member.degraded && member.healthy_rounds >= options_.leave_rounds) {
    member.degraded = false;
    return true;
  }
  return false;
}

std::string PaceTracker::Why(const Member& member, double now, double past, double peers) const {
  std::string text = absl::StrFormat("round %.3g s", now);
  if (past > 0) absl::StrAppendFormat(&text, ", its own median %.3g s", past);
  if (peers > 0) absl::StrAppendFormat(&text, ", its peers' %.3g s", peers);
  double most = 0;
  PaceMetric culprit = PaceMetric::kRound;
  for (int m = 1; m < kPaceMetrics; ++m) {
    const auto metric = static_cast<PaceMetric>(m);
    const double own = Past(member, metric);
    const double current = Now(member.values[m]);
    if (own <= 0 || current <= 0) continue;
    const double ratio = metric == PaceMetric::kThroughput ? own / current : current / own;
    if (ratio > most) {
      most = ratio;
      culprit = metric;
    }
  }
  if (most > 1) {
    absl::StrAppendFormat(&text, "; most: %s, %.3g times", PaceMetricName(culprit), most);
  }
  return text;
}

std::vector<PaceChange> PaceTracker::EndRound() {
  std::vector<float> nows;
  for (const auto& [id, member] : members_) {
    if (member.observed) {
      nows.push_back(static_cast<float>(Now(member.values[static_cast<int>(PaceMetric::kRound)])));
    }
  }
  const double peers =
      nows.size() < options_.minimum_peers ? 0 : QuantileOf(nows.begin(), nows.end(), 0.5);
  std::vector<PaceChange> changes;
  for (auto& [id, member] : members_) {
    if (!member.observed) continue;
    member.observed = false;
    member.last_seen = round_;
    const double now = Now(member.values[static_cast<int>(PaceMetric::kRound)]);
    const double past = Past(member, PaceMetric::kRound);
    if (!Judge(member, now, peers)) continue;
    changes.push_back(
        {.id = id, .degraded = member.degraded, .why = Why(member, now, past, peers)});
  }
  std::sort(changes.begin(), changes.end(),
            [](const PaceChange& a, const PaceChange& b) { return a.id < b.id; });
  ForgetTheLongUnseen();
  ++round_;
  return changes;
}

// Ids come and go; those that are gone must not fill the memory. Looked for now and then, since it
// walks them all.
void PaceTracker::ForgetTheLongUnseen() {
  if (options_.forget_rounds == 0 || round_ % options_.forget_rounds != 0) return;
  absl::erase_if(members_, [this](const auto& entry) {
    return round_ - entry.second.last_seen >= options_.forget_rounds;
  });
}

}  // namespace tributary::aggregation
