// Moving what has no learning rate: integers, and floats that are not averaged.
#include "aggregation/internal/move_model.h"

#include "absl/strings/str_cat.h"
#include "aggregation/internal/text.h"

namespace tributary::aggregation::internal {
namespace {

// sum / weight to the nearest integer, ties to even. In integers: double would lose bits past 2^53.
int64_t DivideHalfEven(int64_t sum, uint64_t weight) {
  const auto magnitude = sum < 0 ? 0 - static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
  uint64_t quotient = magnitude / weight;
  const uint64_t rest = magnitude % weight;
  const uint64_t to_next = weight - rest;  // rest < weight
  if (rest > to_next || (rest == to_next && quotient % 2 == 1)) ++quotient;
  return static_cast<int64_t>(sum < 0 ? 0 - quotient : quotient);
}

int64_t IntegerDelta(const TileJob& job, int64_t sum) {
  switch (job.tensor->policy) {
    case Policy::kMean:
      return DivideHalfEven(sum, job.weight);
    case Policy::kMax:
      return sum == kNothing ? 0 : sum;
    default:
      return sum;
  }
}

template <class Stored>
absl::Status MoveIntegersAs(const TileJob& job) {
  for (uint64_t i = 0; i < job.count; ++i) {
    Stored stored;
    std::memcpy(&stored, job.base + i * sizeof(Stored), sizeof(Stored));
    const int64_t delta = IntegerDelta(job, job.sums[i]);
    Stored result;
    if (__builtin_add_overflow(stored, delta, &result)) {
      return absl::OutOfRangeError(
          absl::StrCat("tensor ", Quoted(job.tensor->name), ", element ", job.first + i, ": ",
                       static_cast<int64_t>(stored), " moved by ", delta, " leaves the range of ",
                       Text(DTypeName(job.tensor->dtype)),
                       "; give the tensor policy first, max or skip, or a wider dtype"));
    }
    std::memcpy(job.next + i * sizeof(Stored), &result, sizeof(Stored));
  }
  return absl::OkStatus();
}

void MoveBools(const TileJob& job) {
  for (uint64_t i = 0; i < job.count; ++i) {
    const __int128 moved = static_cast<__int128>(job.base[i]) + IntegerDelta(job, job.sums[i]);
    job.next[i] = moved != 0 ? 1 : 0;
  }
}

}  // namespace

void MoveFloatsByPolicy(const TileJob& job, double unit) {
  if (job.tensor->policy == Policy::kMax) {
    return MoveFloats(job, [=](uint64_t, int64_t sum) {
      return sum == kNothing ? 0 : static_cast<double>(sum) * unit;
    });
  }
  return MoveFloats(job, [=](uint64_t, int64_t sum) { return static_cast<double>(sum) * unit; });
}

absl::Status MoveIntegers(const TileJob& job) {
  switch (job.tensor->dtype) {
    case DType::kI64:
      return MoveIntegersAs<int64_t>(job);
    case DType::kI32:
      return MoveIntegersAs<int32_t>(job);
    case DType::kU8:
      return MoveIntegersAs<uint8_t>(job);
    default:
      MoveBools(job);
      return absl::OkStatus();
  }
}

}  // namespace tributary::aggregation::internal
