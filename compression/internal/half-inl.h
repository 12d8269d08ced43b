// Loops that the two 16-bit float formats share, compiled once for each Highway target. A format is
// a struct with Promote (elements -> vector of double), ToFloat, Encode and their scalar forms.
#if defined(TRIBUTARY_COMPRESSION_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_HALF_INL_H_
#undef TRIBUTARY_COMPRESSION_HALF_INL_H_
#else
#define TRIBUTARY_COMPRESSION_HALF_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "compression/internal/fold-inl.h"
#include "compression/internal/scalar.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
using Shorts = hn::ScalableTag<int16_t>;
using HalfShorts = hn::Rebind<uint16_t, Floats>;      // as many lanes as Floats
using QuarterShorts = hn::Rebind<uint16_t, Doubles>;  // as many lanes as Doubles
#endif

#if HWY_TARGET > HWY_AVX3 && HWY_TARGET != HWY_SCALAR
template <class Format>
HWY_INLINE size_t FoldGroups(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  const Shorts ds;
  const size_t lanes = hn::Lanes(ds);
  const size_t step = hn::Lanes(Doubles());
  const auto limit = hn::Set(ds, static_cast<int16_t>(args.narrow_limit));
  const auto magnitude = hn::Set(ds, int16_t{0x7FFF});
  size_t i = 0;
  for (const size_t group = 2 * lanes; i + group <= n; i += group) {
    const uint8_t* at = p + 2 * i;
    const auto max = hn::Max(hn::And(LoadBytes(ds, at), magnitude),
                             hn::And(LoadBytes(ds, at + 2 * lanes), magnitude));
    if (HWY_LIKELY(hn::AllFalse(ds, hn::Gt(max, limit)))) {
      for (size_t j = 0; j < group; j += step) {
        FoldNarrow(Format::Promote(at + 2 * j), args, acc + i + j);
      }
    } else {
      for (size_t j = 0; j < group; j += step) {
        FoldWide(Format::Promote(at + 2 * j), args, acc + i + j);
      }
    }
  }
  return i;
}
#endif

template <class Format>
HWY_INLINE void FoldHalves(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  i = FoldVectors(p, 2, n, args, acc, [](const uint8_t* at) { return Format::Promote(at); });
#elif HWY_TARGET != HWY_SCALAR
  i = FoldGroups<Format>(p, n, args, acc);
#endif
  for (; i < n; ++i) FoldOne(Format::ToFloatOne(LoadLe<uint16_t>(p + 2 * i)), args, acc + i);
}

// One name, one body for both formats: the magnitude bits know nothing of the split.
HWY_INLINE uint32_t MaxHalves(const uint8_t* p, size_t n) {
  uint32_t max = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Shorts ds;
  const size_t lanes = hn::Lanes(ds);
  const auto magnitude = hn::Set(ds, int16_t{0x7FFF});
  auto m0 = hn::Zero(ds), m1 = m0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    m0 = hn::Max(m0, hn::And(LoadBytes(ds, p + 2 * i), magnitude));
    m1 = hn::Max(m1, hn::And(LoadBytes(ds, p + 2 * i + 2 * lanes), magnitude));
  }
  HWY_ALIGN int16_t rest[hn::MaxLanes(ds)];
  hn::Store(hn::Max(m0, m1), ds, rest);
  for (size_t j = 0; j < lanes; ++j) max = std::max(max, static_cast<uint32_t>(rest[j]));
#endif
  for (; i < n; ++i) max = std::max(max, uint32_t{LoadLe<uint16_t>(p + 2 * i)} & 0x7FFF);
  return max;
}

template <class Format>
HWY_INLINE void DecodeHalves(const uint8_t* p, size_t n, float* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    hn::StoreU(Format::ToFloat(LoadBytes(HalfShorts(), p + 2 * i)), df, out + i);
  }
#endif
  for (; i < n; ++i) out[i] = Format::ToFloatOne(LoadLe<uint16_t>(p + 2 * i));
}

template <class Format>
HWY_INLINE void EncodeHalves(const float* x, size_t n, uint8_t* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    StoreBytes(HalfShorts(), Format::Encode(hn::LoadU(df, x + i)), out + 2 * i);
  }
#endif
  for (; i < n; ++i) StoreLe(Format::EncodeOne(x[i]), out + 2 * i);
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
