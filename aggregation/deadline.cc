// Quantile, margin, pacer.
#include "aggregation/deadline.h"

#include <algorithm>
#include <cmath>

namespace tributary::aggregation {
namespace {

// Where the quantile is unknown the next wait is so much longer.
constexpr double kGrowth = 1.5;
constexpr double kPaceStep = 1.25;
constexpr double kMostPace = 8;

}  // namespace

absl::Duration AdaptiveDeadline::Next() const {
  if (!options_.adaptive || last_ == absl::InfiniteDuration()) return options_.ceiling;
  return std::clamp(last_ * pace_, options_.floor, std::max(options_.floor, options_.ceiling));
}

WithinRound AdaptiveDeadline::Within() const {
  if (!options_.adaptive || last_ < absl::InfiniteDuration()) return {};
  return {.quantile = options_.quantile, .margin = options_.margin, .floor = options_.floor};
}

void AdaptiveDeadline::Observe(std::span<const absl::Duration> times) {
  if (times.empty()) return;
  rounds_.emplace_back(times.begin(), times.end());
  if (rounds_.size() > options_.window) rounds_.pop_front();

  const auto in = std::count_if(times.begin(), times.end(),
                                [](absl::Duration t) { return t < absl::InfiniteDuration(); });
  const double share = static_cast<double>(in) / static_cast<double>(times.size());
  pace_ = share < options_.participation ? std::min(kMostPace, pace_ * kPaceStep)
                                         : std::max(1.0, pace_ / kPaceStep);

  std::vector<absl::Duration> all;
  for (const auto& round : rounds_) all.insert(all.end(), round.begin(), round.end());
  if (all.size() < options_.minimum_times) return;
  // The smallest time that at least `quantile` of all do not exceed.
  const double rank = std::ceil(options_.quantile * static_cast<double>(all.size()) * (1 - 1e-12));
  const size_t index = std::clamp<size_t>(static_cast<size_t>(rank), 1, all.size()) - 1;
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(index), all.end());
  const absl::Duration quantile = all[index];
  if (quantile < absl::InfiniteDuration()) {
    last_ = quantile * options_.margin;
  } else if (last_ < absl::InfiniteDuration()) {
    last_ = std::min(std::max(last_, options_.floor) * kGrowth, options_.ceiling);
  }
}

}  // namespace tributary::aggregation
