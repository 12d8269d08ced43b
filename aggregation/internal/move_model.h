// How a tile of the model is moved by its sums: each dtype's loads and stores, one pass, one
// rounding.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "aggregation/accumulator.h"
#include "aggregation/internal/narrow_float.h"
#include "aggregation/layout.h"

namespace tributary::aggregation::internal {

// Each stored float type: its bytes, and what it is in arithmetic. Memory is read with memcpy: a
// model's tensors lie back to back, so an element may lie at any address.
template <class T>
struct Plain {
  using Stored = T;
  static double Load(T stored) { return static_cast<double>(stored); }
  static T Store(double value) { return static_cast<T>(value); }
};
struct F16 {
  using Stored = uint16_t;
  static double Load(uint16_t stored) { return FromF16(stored); }
  static uint16_t Store(double value) { return ToF16(value); }
};
struct Bf16 {
  using Stored = uint16_t;
  static double Load(uint16_t stored) { return FromBf16(stored); }
  static uint16_t Store(double value) { return ToBf16(value); }
};

// One tile, of one tensor.
struct TileJob {
  const TensorSpec* tensor;
  uint64_t first;  // the tile's first element within the tensor
  uint64_t count;
  const int64_t* sums;
  uint64_t weight;
  const uint8_t* base;
  uint8_t* next;
};

// next[i] = base[i] + delta(i, S[i]), in double, rounded once to the dtype.
template <class Type, class Delta>
void MoveFloatsAs(const TileJob& job, Delta delta) {
  using Stored = typename Type::Stored;
  for (uint64_t i = 0; i < job.count; ++i) {
    Stored stored;
    std::memcpy(&stored, job.base + i * sizeof(Stored), sizeof(Stored));
    stored = Type::Store(Type::Load(stored) + delta(i, job.sums[i]));
    std::memcpy(job.next + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <class Delta>
void MoveFloats(const TileJob& job, Delta delta) {
  switch (job.tensor->dtype) {
    case DType::kF32:
      return MoveFloatsAs<Plain<float>>(job, delta);
    case DType::kF64:
      return MoveFloatsAs<Plain<double>>(job, delta);
    case DType::kF16:
      return MoveFloatsAs<F16>(job, delta);
    default:
      return MoveFloatsAs<Bf16>(job, delta);
  }
}

// SUM, MAX and FIRST of a float tensor, `unit` being 2^-f.
void MoveFloatsByPolicy(const TileJob& job, double unit);
// Integers and booleans, whatever the policy. OUT_OF_RANGE names tensor and element.
absl::Status MoveIntegers(const TileJob& job);

}  // namespace tributary::aggregation::internal
