// Codec fp32: IEEE 754 binary32 as they are.
#include <algorithm>
#include <bit>
#include <cstring>

#include "compression/internal/element_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/fp32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/fold-inl.h"
#include "compression/internal/fold_many-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

uint32_t Max32(const uint8_t* p, size_t n) {
  uint32_t max = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::RebindToSigned<Floats> di;
  const size_t lanes = hn::Lanes(di);
  const auto magnitude = hn::Set(di, 0x7FFFFFFF);
  auto m0 = hn::Zero(di), m1 = m0, m2 = m0, m3 = m0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const uint8_t* at = p + 4 * i;
    m0 = hn::Max(m0, hn::And(LoadBytes(di, at), magnitude));
    m1 = hn::Max(m1, hn::And(LoadBytes(di, at + 4 * lanes), magnitude));
    m2 = hn::Max(m2, hn::And(LoadBytes(di, at + 8 * lanes), magnitude));
    m3 = hn::Max(m3, hn::And(LoadBytes(di, at + 12 * lanes), magnitude));
  }
  m0 = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
  max = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, m0)));
#endif
  for (; i < n; ++i) max = std::max(max, LoadLe<uint32_t>(p + 4 * i) & 0x7FFFFFFF);
  return max;
}

#if HWY_TARGET > HWY_AVX3 && HWY_TARGET != HWY_SCALAR
// `n` is a multiple of four vectors of double: unrolled, so that the loads run ahead.
template <class FoldOneVector>
HWY_INLINE void FoldRun(const uint8_t* p, size_t n, int64_t* acc, FoldOneVector fold) {
  const Doubles dd;
  const HalfFloats dh;
  const size_t step = hn::Lanes(dd);
  for (size_t i = 0; i < n; i += 4 * step) {
    for (size_t j = i; j < i + 4 * step; j += step) {
      fold(hn::PromoteTo(dd, LoadBytes(dh, p + 4 * j)), acc + j);
    }
  }
}

size_t FoldRuns(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  // One test of whether the narrow product does for so many elements: 4 KiB, which stay in L1. A
  // test for each few vectors cost a fifth of the fold.
  constexpr size_t kRun = 1024;
  size_t i = 0;
  const size_t whole = n - n % (4 * hn::Lanes(Doubles()));
  for (size_t run = 0; i < whole; i += run) {
    run = std::min(kRun, whole - i);
    const uint8_t* at = p + 4 * i;
    if (HWY_LIKELY(static_cast<int32_t>(Max32(at, run)) <= args.narrow_limit)) {
      FoldRun(at, run, acc + i, [&](auto v, int64_t* to) { FoldNarrow(v, args, to); });
    } else {
      FoldRun(at, run, acc + i, [&](auto v, int64_t* to) { FoldWide(v, args, to); });
    }
  }
  return i;
}
#endif

struct Fp32Format {
  static constexpr size_t kWidth = 4;
#if HWY_TARGET != HWY_SCALAR
  using Integers = hn::RebindToSigned<Floats>;
  static HWY_INLINE hn::Vec<Doubles> Promote(const uint8_t* p) {
    return hn::PromoteTo(Doubles(), LoadBytes(HalfFloats(), p));
  }
#endif
};

void Fold32(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  i = FoldVectors(p, 4, n, args, acc, [](const uint8_t* at) { return Fp32Format::Promote(at); });
#elif HWY_TARGET != HWY_SCALAR
  i = FoldRuns(p, n, args, acc);
#endif
  for (; i < n; ++i) FoldOne(LoadLe<float>(p + 4 * i), args, acc + i);
}

void Fold32Many(const ManyRun* runs, size_t count, size_t n, const FoldArgs& args, int64_t* acc) {
  FoldManyNumbers<Fp32Format>(runs, count, n, args, acc, Fold32);
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Fold32);
HWY_EXPORT(Fold32Many);
HWY_EXPORT(Max32);

uint32_t MaxMagnitudeOf(const float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(Max32)(reinterpret_cast<const uint8_t*>(x), n);
}

std::shared_ptr<const Codec> MakeFp32() {
  ElementFormat format;
  format.capabilities = {.id = CodecId::kFp32,
                         .name = "fp32",
                         .linear = false,
                         .unbiased = true,
                         .needs_error_feedback = false,
                         .deterministic = true,
                         .minimum_elements = 0};
  format.width = 4;
  format.largest_finite = 0x7F7FFFFF;
  format.first_overflow = 0x7F800000;
  format.value = [](uint32_t m) { return static_cast<double>(std::bit_cast<float>(m)); };
  format.bits = [](const uint8_t* p) { return LoadLe<uint32_t>(p) & 0x7FFFFFFF; };
  format.max_magnitude = [](const uint8_t* p, size_t n) {
    return HWY_DYNAMIC_DISPATCH(Max32)(p, n);
  };
  format.fold = [](const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
    HWY_DYNAMIC_DISPATCH(Fold32)(p, n, args, acc);
  };
  format.fold_many = [](const ManyRun* runs, size_t count, size_t n, const FoldArgs& args,
                        int64_t* acc) {
    HWY_DYNAMIC_DISPATCH(Fold32Many)(runs, count, n, args, acc);
  };
  format.decode = [](const uint8_t* p, size_t n, float* out) { std::memcpy(out, p, 4 * n); };
  format.append = [](std::span<const float> x, std::vector<uint8_t>* out) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(x.data());
    out->insert(out->end(), bytes, bytes + x.size_bytes());
  };
  return std::make_shared<ElementCodec>(std::move(format));
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
