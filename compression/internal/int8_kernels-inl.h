// What int8 does to one block, compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_INT8_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_INT8_KERNELS_INL_H_
#undef TRIBUTARY_COMPRESSION_INT8_KERNELS_INL_H_
#else
#define TRIBUTARY_COMPRESSION_INT8_KERNELS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>

#include "compression/internal/fold-inl.h"
#include "compression/internal/int8.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

HWY_INLINE uint32_t MaxBits(const float* x, size_t n) {
  uint32_t max = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const size_t lanes = hn::Lanes(df);
  auto m0 = hn::Zero(di), m1 = m0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    m0 = hn::Max(m0, hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i))));
    m1 = hn::Max(m1, hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i + lanes))));
  }
  max = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, hn::Max(m0, m1))));
#endif
  for (; i < n; ++i) max = std::max(max, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF);
  return max;
}

// q = floor(x / scale + r / 65536), x / scale having 16 fractional bits, or rne(x / scale).
template <bool kStochastic>
HWY_INLINE void QuantizeBlock(const float* x, size_t n, float scale, const uint16_t* random,
                              int8_t* q) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<int8_t, Floats> d8;
  const auto scales = hn::Set(df, scale);
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto y = hn::Div(hn::LoadU(df, x + i), scales);
    hn::Vec<decltype(di)> rounded;
    if constexpr (kStochastic) {
      const auto fixed = hn::NearestInt(hn::Mul(y, hn::Set(df, 65536.0f)));
      const auto r = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, Floats>(), random + i));
      rounded = hn::ShiftRight<16>(hn::Add(fixed, r));
    } else {
      rounded = hn::NearestInt(y);
    }
    hn::StoreU(hn::DemoteTo(d8, rounded), d8, q + i);
  }
#endif
  for (; i < n; ++i) {
    if constexpr (kStochastic) {
      q[i] = static_cast<int8_t>((Int8Fixed(x[i], scale) + random[i]) >> 16);
    } else {
      q[i] = static_cast<int8_t>(RoundNearestEven(static_cast<double>(x[i] / scale)));
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE hn::Vec<Doubles> PromoteInt8(const uint8_t* p) {
  const hn::Rebind<int32_t, Doubles> d32;
  return hn::PromoteTo(Doubles(), hn::PromoteTo(d32, LoadBytes(hn::Rebind<int8_t, Doubles>(), p)));
}
#endif

// args.scale is the block's scale * 2^f, exact; so is its product with q8, which has 32 bits.
template <bool kNarrow>
HWY_INLINE void FoldBlock(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (const size_t lanes = hn::Lanes(Doubles()); i + lanes <= n; i += lanes) {
    if constexpr (kNarrow) {
      FoldNarrow(PromoteInt8(p + i), args, acc + i);
    } else {
      FoldWide(PromoteInt8(p + i), args, acc + i);
    }
  }
#endif
  for (; i < n; ++i) FoldOne(static_cast<int8_t>(p[i]), args, acc + i);
}

HWY_INLINE void DecodeBlock(const uint8_t* p, size_t n, float scale, float* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<int8_t, Floats> d8;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto q = hn::ConvertTo(df, hn::PromoteTo(di, LoadBytes(d8, p + i)));
    hn::StoreU(hn::Mul(q, hn::Set(df, scale)), df, out + i);
  }
#endif
  for (; i < n; ++i) out[i] = static_cast<float>(static_cast<int8_t>(p[i])) * scale;
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
