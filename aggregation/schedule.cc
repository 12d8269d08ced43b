// Learning-rate schedules.
#include "aggregation/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tributary::aggregation {

std::vector<std::string> ScheduleKinds() { return {"constant", "step", "exponential", "cosine"}; }

absl::Status CheckSchedule(const Schedule& schedule) {
  if (!std::isfinite(schedule.rate) || schedule.rate <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("a server learning rate of ", schedule.rate,
                                                   " cannot be; 1 is plain averaging"));
  }
  const auto kinds = ScheduleKinds();
  if (std::find(kinds.begin(), kinds.end(), schedule.kind) == kinds.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no learning-rate schedule is called \"",
                                                   schedule.kind,
                                                   "\"; known: ", absl::StrJoin(kinds, ", ")));
  }
  const bool may_end_at_zero = schedule.kind == "cosine";
  if (!(schedule.factor <= 1) || !(may_end_at_zero ? schedule.factor >= 0 : schedule.factor > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule's factor of ", schedule.factor, " cannot be; above 0, at most 1"));
  }
  if (schedule.rounds == 0) {
    return absl::InvalidArgumentError("a schedule of 0 rounds cannot be; 1 or more");
  }
  return absl::OkStatus();
}

double RateAt(const Schedule& schedule, uint64_t round) {
  const auto passed = static_cast<double>(std::max<uint64_t>(round, 1) - 1);
  double rate = schedule.rate;
  if (schedule.kind == "step") {
    rate *= std::pow(schedule.factor, std::floor(passed / static_cast<double>(schedule.rounds)));
  } else if (schedule.kind == "exponential") {
    rate *= std::pow(schedule.factor, passed);
  } else if (schedule.kind == "cosine") {
    const auto last = static_cast<double>(std::max<uint64_t>(schedule.rounds - 1, 1));
    const double share = 0.5 * (1 + std::cos(std::numbers::pi * std::min(passed / last, 1.0)));
    rate *= schedule.factor + (1 - schedule.factor) * share;
  }
  if (schedule.warmup > 0) {
    rate *= std::min(1.0, (passed + 1) / static_cast<double>(schedule.warmup));
  }
  return rate;
}

}  // namespace tributary::aggregation
