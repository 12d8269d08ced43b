// Scalar forms of what the kernels do, for tails, for the SCALAR target, and for error paths. They
// define the values; every vector kernel must give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "compression/codec.h"

namespace tributary::compression {

static_assert(std::endian::native == std::endian::little, "payloads are read in place");

// 1.5 * 2^52: adding it to |v| <= 2^51 leaves rne(v) in the low bits of the sum.
inline constexpr double kMagic = 0x1.8p52;
inline constexpr uint64_t kMagicBits = 0x4338000000000000;
static_assert(std::bit_cast<uint64_t>(kMagic) == kMagicBits);

template <class T>
T LoadLe(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
void StoreLe(T value, uint8_t* p) {
  std::memcpy(p, &value, sizeof(T));
}

// rne(v) for |v| <= 2^51 in the default rounding mode.
inline int64_t RoundNearestEven(double v) {
  return static_cast<int64_t>(std::bit_cast<uint64_t>(v + kMagic) - kMagicBits);
}

// What a fold kernel needs, worked out once a call.
struct FoldArgs {
  double scale = 1;     // 2^f
  uint64_t weight = 1;  // modulo 2^64
  // Elements with |bits| <= narrow_limit give |q| < 2^31, so that one 32x32-bit product does; -1
  // where the weight does not fit in 31 bits.
  int32_t narrow_limit = -1;
};

// acc += weight * rne(v * 2^f), modulo 2^64 on the way (the sum itself never overflows).
inline void FoldOne(double v, const FoldArgs& args, int64_t* acc) {
  const auto q = static_cast<uint64_t>(RoundNearestEven(v * args.scale));
  *acc = static_cast<int64_t>(static_cast<uint64_t>(*acc) + args.weight * q);
}

inline float HalfToFloat(uint16_t half) {
  // The half's exponent and mantissa in a float's place are 2^112 too small; the product is exact,
  // for subnormals too. Infinities and NaNs do not get past Validate.
  const float magnitude =
      std::bit_cast<float>(static_cast<uint32_t>(half & 0x7FFF) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) |
                              (static_cast<uint32_t>(half & 0x8000) << 16));
}

// Nearest, ties to even, for |x| < 65520 (what rounds to a finite half).
inline uint16_t FloatToHalf(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half;
  if (magnitude < 0x38800000) {
    // Below 2^-14 a half is a multiple of 2^-24: adding 0.5 makes the float adder round to one.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  } else {
    half = (magnitude - (uint32_t{112} << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000));
}

inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Nearest, ties to even, for x that rounds to a finite bf16.
inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The largest magnitude bits in [0, top] whose value is <= bound; `value` rises with the bits. -1
// where even zero is beyond it (a negative or NaN bound).
template <class Value>
int64_t LargestBitsAtMost(double bound, uint32_t top, Value value) {
  if (!(bound >= 0)) return -1;
  uint32_t low = 0, high = top;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (value(middle) <= bound) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace tributary::compression
