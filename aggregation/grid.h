// The grid that makes sums exact: an exponent, a bound, and the proof that int64 cannot overflow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tributary/v1/model.pb.h"

namespace tributary::aggregation {

struct Grid {
  int fraction_bits = 30;         // f: one unit is 2^-f
  double bound = 4096;            // C: |element| <= C; a power of two, bound * 2^f <= 2^50
  uint64_t max_weight = 1 << 20;  // W_max, in weight units
  int weight_fraction_bits = 0;   // one weight unit is 2^-this: 0 or 16

  // Integer tensors have f = 0 and this bound on |delta|: the largest with bound * max_weight <
  // 2^63.
  int64_t IntegerBound() const;
  v1::Grid ToProto() const;
  static absl::StatusOr<Grid> FromProto(
      const v1::Grid& proto);  // proves it again: a peer is not believed
};

struct GridRequest {
  int fraction_bits = 30;          // wished
  int minimum_fraction_bits = 20;  // not lowered beyond this
  std::optional<double>
      bound;  // wished; rounded down to a power of two; default: the largest that is proved
  double minimum_bound = 16;        // a smaller C counts as too little: f is lowered instead
  uint64_t max_weight = 1 << 20;    // the most weight that a round can admit, in examples
  bool fractional_weights = false;  // weights in 1/65,536
};

// The grid with bound * 2^f * W_max < 2^63 and bound * 2^f <= 2^50. Where C would be too little, f
// is lowered (`*note` says so, when given); FAILED_PRECONDITION with the numbers where even that
// does not do.
absl::StatusOr<Grid> ProveGrid(const GridRequest& request, std::string* note = nullptr);

// A weight in examples as units of the grid: rounded here, once, to nearest even. INVALID_ARGUMENT:
// not above 0, rounded to nothing, beyond 2^40 units, or a fraction where units are whole examples.
absl::StatusOr<int64_t> WeightUnits(double examples, uint32_t weight_fraction_bits);

// rne(value * 2^30) for metrics; INVALID_ARGUMENT unless |value| <= 4096.
absl::StatusOr<int64_t> MetricToGrid(double value);
double MetricMean(const v1::MetricSum& sum);  // sum / weight * 2^-30; NaN where weight is 0
// Adds by name, `into` sorted by name. INVALID_ARGUMENT on overflow, more than 32 names, or a name
// over 64 bytes.
absl::Status MergeMetrics(const google::protobuf::RepeatedPtrField<v1::MetricSum>& from,
                          google::protobuf::RepeatedPtrField<v1::MetricSum>* into);
// A client's metrics as sums of one contributor.
absl::StatusOr<google::protobuf::RepeatedPtrField<v1::MetricSum>> MetricsToSums(
    const google::protobuf::RepeatedPtrField<v1::Metric>& metrics);

}  // namespace tributary::aggregation
