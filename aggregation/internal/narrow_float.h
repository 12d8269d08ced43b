// double -> fp16 and bf16, rounded once, to nearest with ties to even, and back.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tributary::aggregation::internal {

// Rounds to a format of `kMantissa` stored mantissa bits and `kExponent` exponent bits; IEEE 754
// throughout: subnormals, overflow to infinity, quiet NaN. Straight from double, since going
// through float would round twice.
template <int kMantissa, int kExponent>
uint16_t Narrow(double value) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr uint16_t kInfinity = ((1 << kExponent) - 1) << kMantissa;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 63 << (kMantissa + kExponent));
  if (std::isnan(value)) return static_cast<uint16_t>(sign | kInfinity | 1 << (kMantissa - 1));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | kInfinity);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  // Bits of the double's 52 that are dropped: more of them for a result that is subnormal.
  const int dropped = 52 - kMantissa + (exponent < 1 - kBias ? 1 - kBias - exponent : 0);
  if (exponent == -1023 || dropped > 54) return sign;  // below half of the smallest subnormal
  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  const uint64_t half = uint64_t{1} << (dropped - 1);
  const uint64_t kept = significand >> dropped;
  const uint64_t rest = significand & (2 * half - 1);
  const uint64_t rounded = kept + (rest > half || (rest == half && kept % 2 == 1));
  // A carry out of the mantissa runs into the exponent, which is then right by itself.
  const int64_t biased = exponent < 1 - kBias ? 0 : exponent + kBias - 1;
  const int64_t encoded = (biased << kMantissa) + static_cast<int64_t>(rounded);
  return static_cast<uint16_t>(sign | (encoded >= kInfinity ? kInfinity : encoded));
}

// Exact.
template <int kMantissa, int kExponent>
double Widen(uint16_t bits) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr int kMost = (1 << kExponent) - 1;
  const int mantissa = bits & ((1 << kMantissa) - 1);
  const int exponent = bits >> kMantissa & kMost;
  double value = 0;
  if (exponent == kMost) {
    value = mantissa == 0 ? HUGE_VAL : NAN;
  } else {
    // 2^(exponent - bias - mantissa bits), built as bits: ldexp is a call.
    const int64_t power = (exponent == 0 ? 1 : exponent) - kBias - kMantissa;
    const int significand = exponent == 0 ? mantissa : mantissa | 1 << kMantissa;
    value = significand * std::bit_cast<double>((power + 1023) << 52);
  }
  return bits >> (kMantissa + kExponent) & 1 ? -value : value;
}

inline uint16_t ToF16(double value) { return Narrow<10, 5>(value); }
inline double FromF16(uint16_t bits) { return Widen<10, 5>(bits); }
inline uint16_t ToBf16(double value) { return Narrow<7, 8>(value); }
inline double FromBf16(uint16_t bits) { return Widen<7, 8>(bits); }

}  // namespace tributary::aggregation::internal
