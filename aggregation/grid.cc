// The proof that a round's sums cannot overflow, and the search for a grid that has one.
#include "aggregation/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tributary::aggregation {
namespace {

constexpr int kMaxFractionBits = 50;
// Element integers up to 2^50: the fold kernels' rounding is exact to 2^51 only.
constexpr int kMaxElementBits = 50;
// One update's weight, and so W_max, fits the kernels' 64-bit products.
constexpr uint64_t kMaxWeight = uint64_t{1} << 40;
constexpr int kFractionalWeightBits = 16;

// log2 of a power of two; nullopt for anything else.
std::optional<int> ExactLog2(double value) {
  int exponent = 0;
  if (!std::isfinite(value) || std::frexp(value, &exponent) != 0.5) return std::nullopt;
  return exponent - 1;
}

// The largest e with 2^e * weight < 2^63 and e <= 50: the bits that an element integer may have.
int ProvedElementBits(uint64_t max_weight) {
  int bits = kMaxElementBits;
  while (bits >= 0 && (static_cast<unsigned __int128>(max_weight) << bits) >> 63 != 0) --bits;
  return bits;
}

absl::Status CheckWeight(uint64_t max_weight) {
  if (max_weight >= 1 && max_weight <= kMaxWeight) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a round's largest weight is ", max_weight,
      " units; it must be 1 to 2^40 (fractional weights count 65,536 units an example): lower the "
      "maximum of clients or the largest weight of one"));
}

absl::Status CheckRequest(const GridRequest& request) {
  if (request.minimum_fraction_bits < 1 || request.fraction_bits > kMaxFractionBits ||
      request.minimum_fraction_bits > request.fraction_bits) {
    return absl::InvalidArgumentError(
        absl::StrCat("fraction bits ", request.fraction_bits, " with a minimum of ",
                     request.minimum_fraction_bits, "; need 1 <= minimum <= wished <= 50"));
  }
  for (const double bound : {request.bound.value_or(1), request.minimum_bound}) {
    if (!std::isfinite(bound) || bound < 0x1p-20 || bound > 0x1p49) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "an element bound of %g is out of range; choose one within [2^-20, 2^49]", bound));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Grid::IntegerBound() const {
  return static_cast<int64_t>(static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) /
                              std::max<uint64_t>(max_weight, 1));
}

v1::Grid Grid::ToProto() const {
  v1::Grid proto;
  proto.set_fraction_bits(fraction_bits);
  proto.set_bound(bound);
  proto.set_max_weight(max_weight);
  proto.set_weight_fraction_bits(weight_fraction_bits);
  return proto;
}

absl::StatusOr<Grid> Grid::FromProto(const v1::Grid& proto) {
  if (proto.fraction_bits() < 1 || proto.fraction_bits() > kMaxFractionBits) {
    return absl::InvalidArgumentError(absl::StrCat("the grid has ", proto.fraction_bits(),
                                                   " fraction bits; 1 to 50 are allowed"));
  }
  const std::optional<int> bound_log2 = ExactLog2(proto.bound());
  if (!bound_log2.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the grid's bound is %g; it must be a power of two", proto.bound()));
  }
  if (proto.weight_fraction_bits() != 0 && proto.weight_fraction_bits() != kFractionalWeightBits) {
    return absl::InvalidArgumentError(absl::StrCat("the grid has ", proto.weight_fraction_bits(),
                                                   " weight fraction bits; 0 or 16 are allowed"));
  }
  if (const absl::Status status = CheckWeight(proto.max_weight()); !status.ok()) return status;
  const int64_t bits = int64_t{*bound_log2} + proto.fraction_bits();
  if (bits < 0 || bits > ProvedElementBits(proto.max_weight())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the grid is not proved: bound %g * 2^%d must be 1 to 2^50, and times the "
                        "largest weight %d "
                        "under 2^63; lower the bound, the fraction bits or the weight",
                        proto.bound(), proto.fraction_bits(), proto.max_weight()));
  }
  return Grid{static_cast<int>(proto.fraction_bits()), proto.bound(), proto.max_weight(),
              static_cast<int>(proto.weight_fraction_bits())};
}

absl::StatusOr<int64_t> WeightUnits(double examples, uint32_t weight_fraction_bits) {
  if (weight_fraction_bits != 0 && weight_fraction_bits != kFractionalWeightBits) {
    return absl::InvalidArgumentError(
        absl::StrCat("the grid has ", weight_fraction_bits, " weight fraction bits; 0 or 16"));
  }
  // Exact: a power of two.
  const double units = std::nearbyint(std::ldexp(examples, static_cast<int>(weight_fraction_bits)));
  if (!(units >= 1 && units <= static_cast<double>(kMaxWeight))) {  // not so for NaN either
    return absl::InvalidArgumentError(
        absl::StrFormat("a weight of %g examples is out of range; it must be 2^-%d to 2^%d",
                        examples, weight_fraction_bits, 40 - weight_fraction_bits));
  }
  if (weight_fraction_bits == 0 && units != examples) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a weight of %g is not a whole number of examples, and this run takes no "
                        "others; set [aggregation] fractional_weights = true at the root",
                        examples));
  }
  return static_cast<int64_t>(units);
}

absl::StatusOr<Grid> ProveGrid(const GridRequest& request, std::string* note) {
  if (const absl::Status status = CheckRequest(request); !status.ok()) return status;
  Grid grid;
  grid.weight_fraction_bits = request.fractional_weights ? kFractionalWeightBits : 0;
  // Past the limit anyway, and must not wrap.
  const bool wraps = request.max_weight > kMaxWeight;
  grid.max_weight = wraps ? request.max_weight : request.max_weight << grid.weight_fraction_bits;
  if (const absl::Status status = CheckWeight(grid.max_weight); !status.ok()) return status;

  const int proved = ProvedElementBits(grid.max_weight);
  // The bound that must be reached, as a power of two: the wished one (down), else the least useful
  // (up).
  const int needed = request.bound.has_value()
                         ? std::ilogb(*request.bound)
                         : static_cast<int>(std::ceil(std::log2(request.minimum_bound)));
  grid.fraction_bits = std::min(request.fraction_bits, proved - needed);
  if (grid.fraction_bits < request.minimum_fraction_bits) {
    return absl::FailedPreconditionError(
        absl::StrFormat("no grid is exact for this round: weights up to %d units leave %d bits for "
                        "an element (bound * "
                        "2^f <= 2^%d), but a bound of %g with f >= %d needs %d; lower the largest "
                        "weight of a round, the "
                        "bound or the least f",
                        grid.max_weight, proved, proved, std::ldexp(1, needed),
                        request.minimum_fraction_bits, needed + request.minimum_fraction_bits));
  }
  grid.bound = std::ldexp(1, request.bound.has_value() ? needed : proved - grid.fraction_bits);
  if (note != nullptr && grid.fraction_bits < request.fraction_bits) {
    *note = absl::StrFormat(
        "fraction bits lowered from %d to %d: weights up to %d units leave a bound of %g at f = "
        "%d, "
        "less than the %g needed",
        request.fraction_bits, grid.fraction_bits, grid.max_weight,
        std::ldexp(1, proved - request.fraction_bits), request.fraction_bits,
        std::ldexp(1, needed));
  }
  return grid;
}

}  // namespace tributary::aggregation
