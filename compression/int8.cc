// Codec int8, the kernels: Philox in vectors, quantising (QSGD: Alistarh et al., NeurIPS 2017),
// folding, decoding.
#include "compression/internal/int8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/philox.h"
#include "compression/internal/runs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/int8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/int8_kernels-inl.h"
#include "compression/internal/philox-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

void Scales(const float* x, size_t n, size_t block, uint8_t* out, uint32_t* max_bits) {
  uint32_t max = 0;
  for (size_t at = 0; at < n; at += block, out += kInt8ScaleBytes + block) {
    const uint32_t here = MaxBits(x + at, std::min(block, n - at));
    StoreLe(Int8Scale(std::bit_cast<float>(here)), out);
    max = std::max(max, here);
  }
  *max_bits = max;
}

void Quantize(const float* x, size_t n, size_t block, const EncodeContext* context, uint8_t* out) {
  // Random numbers are made for a stretch of whole blocks at a time: they stay in the first-level
  // cache.
  constexpr size_t kStretch = kMaxBlock;
  HWY_ALIGN uint16_t random[kStretch];
  for (size_t from = 0; from < n; from += kStretch) {
    const size_t to = std::min(n, from + kStretch);
    if (context != nullptr) {
      FillRandom(*context, (context->first + from) / 8, (to - from + 7) / 8, random);
    }
    for (size_t at = from; at < to; at += block, out += kInt8ScaleBytes + block) {
      const size_t length = std::min(block, to - at);
      const float scale = LoadLe<float>(out);
      auto* q = reinterpret_cast<int8_t*>(out + kInt8ScaleBytes);
      if (scale == 0) {
        std::fill_n(q, length, int8_t{0});  // dividing by 0 is not for the kernel
      } else if (context != nullptr) {
        QuantizeBlock<true>(x + at, length, scale, random + (at - from), q);
      } else {
        QuantizeBlock<false>(x + at, length, scale, nullptr, q);
      }
    }
  }
}

void FoldBlocks(const uint8_t* p, size_t blocks, size_t length, const FoldArgs& args,
                int64_t* acc) {
  FoldArgs scaled = args;
  for (size_t b = 0; b < blocks; ++b, p += kInt8ScaleBytes + length, acc += length) {
    scaled.scale = static_cast<double>(LoadLe<float>(p)) * args.scale;
    const uint8_t* const elements = p + kInt8ScaleBytes;
#if HWY_TARGET <= HWY_AVX3
    for (size_t i = FoldVectors(elements, 1, length, scaled, acc, PromoteInt8); i < length; ++i) {
      FoldOne(static_cast<int8_t>(elements[i]), scaled, acc + i);
    }
#else
    // A scale has 24 bits, so below 2^24 the largest q is at most (2^24 - 1) * 128 < 2^31.
    if (args.narrow_limit >= 0 && scaled.scale < 0x1p24) {
      FoldBlock<true>(elements, length, scaled, acc);
    } else {
      FoldBlock<false>(elements, length, scaled, acc);
    }
#endif
  }
}

void DecodeBlocks(const uint8_t* p, size_t blocks, size_t length, float* out) {
  for (size_t b = 0; b < blocks; ++b, p += kInt8ScaleBytes + length, out += length) {
    DecodeBlock(p + kInt8ScaleBytes, length, LoadLe<float>(p), out);
  }
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Scales);
HWY_EXPORT(Quantize);
HWY_EXPORT(FoldBlocks);
HWY_EXPORT(DecodeBlocks);

uint32_t Int8Scales(const float* x, size_t n, size_t block, uint8_t* out) {
  uint32_t max = 0;
  HWY_DYNAMIC_DISPATCH(Scales)(x, n, block, out, &max);
  return max;
}
void Int8Quantize(const float* x, size_t n, size_t block, const EncodeContext* context,
                  uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Quantize)(x, n, block, context, out);
}
void Int8Fold(const uint8_t* p, size_t blocks, size_t length, const FoldArgs& args, int64_t* acc) {
  HWY_DYNAMIC_DISPATCH(FoldBlocks)(p, blocks, length, args, acc);
}
void Int8Decode(const uint8_t* p, size_t blocks, size_t length, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeBlocks)(p, blocks, length, out);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
