// Between int8_codec.cc (checks, pieces) and int8.cc (kernels). A block is a float32 scale and then
// its int8s; every function takes whole blocks that lie contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "compression/codec.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

inline constexpr uint32_t kInt8DefaultBlock = 128;
inline constexpr uint32_t kInt8MinBlock = 16;
inline constexpr size_t kInt8ScaleBytes = 4;
// Magnitude bits of the smallest float beyond 2^127: up to there scale * 127 stays finite.
inline constexpr uint32_t kInt8FirstOverflow = 0x7F000001;

enum class Int8Rounding { kStochastic, kNearest };
// `block` is a power of two in [kInt8MinBlock, kMaxBlock].
std::shared_ptr<const Codec> MakeInt8(uint32_t block, Int8Rounding rounding);

// Writes the scale of each block of x to its place in `out`; returns the largest |bits| of x, by
// which the caller sees what cannot be encoded (the scales are then worthless).
uint32_t Int8Scales(const float* x, size_t n, size_t block, uint8_t* out);
// Writes the int8s, by the scales already in `out`. Stochastic where `context` is not null, else
// nearest.
void Int8Quantize(const float* x, size_t n, size_t block, const EncodeContext* context,
                  uint8_t* out);
// Folds `blocks` blocks of `length` elements. args.narrow_limit only says whether the weight is
// narrow.
void Int8Fold(const uint8_t* p, size_t blocks, size_t length, const FoldArgs& args, int64_t* acc);
void Int8Decode(const uint8_t* p, size_t blocks, size_t length, float* out);

// The smallest float >= max/127 or its neighbour above: max / scale never exceeds 127, so nothing
// is clamped and stochastic rounding stays unbiased. 0 only for 0: the smallest subnormal has scale
// 2^-149.
inline float Int8Scale(float max) {
  const float scale = max / 127.0f;
  if (static_cast<double>(scale) * 127.0 >= static_cast<double>(max)) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) + 1);
}

// x / scale in units of 2^-16, rounded to nearest even: what the 16 random bits are added to.
inline int32_t Int8Fixed(float x, float scale) {
  return static_cast<int32_t>(RoundNearestEven(static_cast<double>(x / scale * 65536.0f)));
}

}  // namespace tributary::compression
