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
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

void Fold32(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles dd;
  const HalfFloats dh;
  const hn::RebindToSigned<Floats> di;
  const size_t lanes = hn::Lanes(di);
  const size_t step = hn::Lanes(dd);
  const auto limit = hn::Set(di, args.narrow_limit);
  const auto magnitude = hn::Set(di, 0x7FFFFFFF);
  // Groups of four vectors share one test of whether the narrow product does.
  for (const size_t group = 4 * lanes; i + group <= n; i += group) {
    const uint8_t* at = p + 4 * i;
    const auto m0 = hn::Max(hn::And(LoadBytes(di, at), magnitude),
                            hn::And(LoadBytes(di, at + 4 * lanes), magnitude));
    const auto m1 = hn::Max(hn::And(LoadBytes(di, at + 8 * lanes), magnitude),
                            hn::And(LoadBytes(di, at + 12 * lanes), magnitude));
    if (HWY_LIKELY(hn::AllFalse(di, hn::Gt(hn::Max(m0, m1), limit)))) {
      for (size_t j = 0; j < group; j += step) {
        FoldNarrow(hn::PromoteTo(dd, LoadBytes(dh, at + 4 * j)), args, acc + i + j);
      }
    } else {
      for (size_t j = 0; j < group; j += step) {
        FoldWide(hn::PromoteTo(dd, LoadBytes(dh, at + 4 * j)), args, acc + i + j);
      }
    }
  }
#endif
  for (; i < n; ++i) FoldOne(LoadLe<float>(p + 4 * i), args, acc + i);
}

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

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Fold32);
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
  format.decode = [](const uint8_t* p, size_t n, float* out) { std::memcpy(out, p, 4 * n); };
  format.append = [](std::span<const float> x, std::vector<uint8_t>* out, float* residual) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(x.data());
    out->insert(out->end(), bytes, bytes + x.size_bytes());
    if (residual != nullptr) std::fill_n(residual, x.size(), 0.0f);
  };
  return std::make_shared<ElementCodec>(std::move(format));
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
