// Steps, normalised and averaged.
#include "aggregation/fednova.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "aggregation/grid.h"

namespace tributary::aggregation {

double NormalisedSteps(uint64_t steps, double momentum) {
  const auto tau = static_cast<double>(steps);
  return (tau - momentum * (1 - std::pow(momentum, tau)) / (1 - momentum)) / (1 - momentum);
}

absl::StatusOr<double> EffectiveSteps(
    const google::protobuf::RepeatedPtrField<v1::MetricSum>& sums) {
  for (const v1::MetricSum& sum : sums) {
    if (sum.name() != kStepsMetric || sum.weight() == 0) continue;
    if (const double steps = MetricMean(sum) * kStepsUnit; steps > 0) return steps;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("[training] fednova = 1, but no client reported the metric \"", kStepsMetric,
                   "\": they must be of a release that knows FedNova"));
}

}  // namespace tributary::aggregation
