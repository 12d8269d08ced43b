// FedNova (Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
// Optimization", 2020): clients that did different numbers of steps count as if they had done the
// same. A client divides its delta by its normalised steps and tells them as a metric, which goes
// through the tiers as an exact sum; the root's step is times their mean.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "tributary/v1/model.pb.h"

namespace tributary::aggregation {

// What `steps` (at least 1) of SGD with this momentum move the model by, in steps without momentum:
// ||a||_1 = (steps - momentum (1 - momentum^steps) / (1 - momentum)) / (1 - momentum).
double NormalisedSteps(uint64_t steps, double momentum);

// The metric, in units of 1,024 steps, since a metric's value is at most 4,096.
inline constexpr char kStepsMetric[] = "local_kilosteps";
inline constexpr double kStepsUnit = 1024;

// The mean over the examples of the round's sums; FAILED_PRECONDITION where no client told it.
absl::StatusOr<double> EffectiveSteps(
    const google::protobuf::RepeatedPtrField<v1::MetricSum>& sums);

}  // namespace tributary::aggregation
