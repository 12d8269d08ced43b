// The block codecs' kernels: quantising into codes, packing, unpacking, folding, decoding.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "compression/internal/block_format.h"
#include "compression/internal/runs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/block_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/block_fold-inl.h"
#include "compression/internal/block_kernels-inl.h"
#include "compression/internal/int8_kernels-inl.h"
#include "compression/internal/philox-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

HWY_INLINE void Pack(const BlockFormat& format, const int8_t* codes, size_t n, uint8_t* out) {
  switch (format.bits) {
    case 1:
      return PackCodes<1>(codes, n, out);
    case 2:
      return PackCodes<2>(codes, n, out);
    case 4:
      return PackCodes<4>(codes, n, out);
    default:
      std::memcpy(out, codes, n);
  }
}

// Writes the scale and returns it times the unit.
HWY_INLINE float WriteScale(const BlockFormat& format, const float* x, size_t n, uint8_t* out) {
  if (format.code_kind == CodeKind::kSign && format.scale_kind == ScaleKind::kFloat32) {
    StoreLe(MeanMagnitude(x, n), out);
  } else if (format.scale_kind != ScaleKind::kShared) {
    const float max = std::bit_cast<float>(MaxBits(x, n));
    if (format.scale_kind == ScaleKind::kE8M0) {
      out[0] = MxScale(max, format.top_exponent);
    } else {
      const float levels = format.floats() ? format.largest : static_cast<float>(format.levels);
      StoreLe(ScaleFor(max, levels), out);
    }
  }
  return BlockUnit(format, out);
}

// Integer codes; `random` is null for nearest rounding. Where the scale may leave elements beyond
// the levels, those become the outermost ones.
HWY_INLINE void IntegerCodes(const BlockFormat& format, const float* x, size_t n, float scale,
                             const uint16_t* random, int8_t* codes) {
  HWY_ALIGN float clamped[kMaxBlock];
  if (format.scale_kind != ScaleKind::kFloat32) {
    const float most = static_cast<float>(format.levels) * scale;
    for (size_t i = 0; i < n; ++i) clamped[i] = std::min(std::max(x[i], -most), most);
    x = clamped;
  }
  if (random != nullptr) {
    QuantizeBlock<true>(x, n, scale, random, codes);
  } else {
    QuantizeBlock<false>(x, n, scale, nullptr, codes);
  }
}

HWY_INLINE void Codes(const BlockFormat& format, const float* x, size_t n, float scale,
                      const uint16_t* random, int8_t* codes) {
  if (scale == 0) {
    std::fill_n(codes, n, int8_t{0});
    return;
  }
  switch (format.code_kind) {
    case CodeKind::kInteger:
      return IntegerCodes(format, x, n, scale, random, codes);
    case CodeKind::kSign:
      for (size_t i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(x[i] < 0 ? -1 : 1);
      return;
    case CodeKind::kE2M1:  // halves: the unit is one of e2m1's
      return MiniEncode<E2M1>(x, n, scale * 2, codes);
    case CodeKind::kE4M3:
      return MiniEncode<E4M3>(x, n, scale, codes);
    case CodeKind::kE5M2:
      return MiniEncode<E5M2>(x, n, scale, codes);
  }
}

HWY_INLINE void DecodeOneBlock(const BlockFormat& format, const uint8_t* p, size_t n, float* out) {
  const float scale = BlockUnit(format, p);
  const uint8_t* codes = p + format.scale_bytes();
  if (format.code_kind == CodeKind::kE4M3) return MiniDecode<E4M3>(codes, n, scale, out);
  if (format.code_kind == CodeKind::kE5M2) return MiniDecode<E5M2>(codes, n, scale, out);
  HWY_ALIGN int8_t room[kMaxBlock];
  DecodeBlock(Unpack(format, codes, n, room), n, scale, out);
}

void BlockEncode(const BlockFormat& format, const float* x, size_t n, const EncodeContext& context,
                 uint8_t* out) {
  HWY_ALIGN uint16_t random[kMaxBlock];
  HWY_ALIGN int8_t codes[kMaxBlock];
  for (size_t from = 0; from < n; from += kMaxBlock) {
    const size_t to = std::min(n, from + kMaxBlock);
    if (format.stochastic)
      FillRandom(context, (context.first + from) / 8, (to - from + 7) / 8, random);
    for (size_t at = from; at < to; at += format.block) {
      const size_t length = std::min<size_t>(format.block, to - at);
      const float scale = WriteScale(format, x + at, length, out);
      Codes(format, x + at, length, scale, format.stochastic ? random + (at - from) : nullptr,
            codes);
      Pack(format, codes, length, out + format.scale_bytes());
      out += format.BlockBytes(length);
    }
  }
}

void BlockFold(const BlockFormat& format, const uint8_t* p, size_t blocks, size_t length,
               const FoldArgs& args, int64_t* acc) {
  FoldArgs scaled = args;
  const size_t width = format.BlockBytes(length);
  for (size_t b = 0; b < blocks; ++b, p += width, acc += length) {
    scaled.scale = static_cast<double>(BlockUnit(format, p)) * args.scale;
    const bool narrow = args.narrow_limit >= 0 && NarrowScale(format, scaled.scale);
    FoldAnyCodes(format, p + format.scale_bytes(), length, narrow, scaled, acc);
  }
}

void BlockDecode(const BlockFormat& format, const uint8_t* p, size_t blocks, size_t length,
                 float* out) {
  const size_t width = format.BlockBytes(length);
  for (size_t b = 0; b < blocks; ++b, p += width, out += length) {
    DecodeOneBlock(format, p, length, out);
  }
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(BlockEncode);
HWY_EXPORT(BlockFold);
HWY_EXPORT(BlockDecode);

void EncodeBlocks(const BlockFormat& format, const float* x, size_t n, const EncodeContext& context,
                  uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(BlockEncode)(format, x, n, context, out);
}
void FoldBlocks(const BlockFormat& format, const uint8_t* p, size_t blocks, size_t length,
                const FoldArgs& args, int64_t* acc) {
  HWY_DYNAMIC_DISPATCH(BlockFold)(format, p, blocks, length, args, acc);
}
void DecodeBlocks(const BlockFormat& format, const uint8_t* p, size_t blocks, size_t length,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(BlockDecode)(format, p, blocks, length, out);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
