// Sums of products in an order that is fixed, compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_DOT_INL_H_
#undef TRIBUTARY_COMPRESSION_DOT_INL_H_
#else
#define TRIBUTARY_COMPRESSION_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compression/internal/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE hn::Vec<Doubles> LoadDoubles(const double* p) { return hn::LoadU(Doubles(), p); }
HWY_INLINE hn::Vec<Doubles> LoadDoubles(const float* p) {
  return hn::PromoteTo(Doubles(), hn::LoadU(HalfFloats(), p));
}
HWY_INLINE hn::Vec<Doubles> LoadDoubles(const int8_t* p) {
  const hn::Rebind<int32_t, Doubles> d32;
  return hn::PromoteTo(Doubles(), hn::PromoteTo(d32, hn::LoadU(hn::Rebind<int8_t, Doubles>(), p)));
}
#endif

// out[k] is the sum over i < n of a[i] * b[k * stride + i] in binary64: eight sums, of the places
// that are the same modulo 8, added in pairs. Vectors hold those eight, so the order is one
// everywhere. kExact: no product needs rounding, so that a fused and an unfused sum agree.
template <bool kExact, size_t kMany, class A, class B>
HWY_INLINE void Dots(const A* a, const B* b, size_t stride, size_t n, double* out) {
  alignas(64) double sums[kMany][8] = {};
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles d;
  constexpr size_t kLanes = hn::MaxLanes(Doubles()), kVectors = 8 / kLanes;
  static_assert(kLanes * kVectors == 8);
  hn::Vec<Doubles> s[kMany][kVectors];
  for (auto& of_k : s) {
    for (auto& v : of_k) v = hn::Zero(d);
  }
  for (; i + 8 <= n; i += 8) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto x = LoadDoubles(a + i + v * kLanes);
      for (size_t k = 0; k < kMany; ++k) {
        const auto y = LoadDoubles(b + k * stride + i + v * kLanes);
        s[k][v] = kExact ? hn::MulAdd(x, y, s[k][v]) : hn::Add(s[k][v], hn::Mul(x, y));
      }
    }
  }
  for (size_t k = 0; k < kMany; ++k) {
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(s[k][v], d, sums[k] + v * kLanes);
  }
#endif
  for (; i < n; ++i) {
    for (size_t k = 0; k < kMany; ++k) {
      sums[k][i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[k * stride + i]);
    }
  }
  for (size_t k = 0; k < kMany; ++k) {
    const double* s = sums[k];
    out[k] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}

template <bool kExact, class A, class B>
HWY_INLINE double Dot(const A* a, const B* b, size_t n) {
  double sum;
  Dots<kExact, 1>(a, b, 0, n, &sum);
  return sum;
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
