// Small floats and MX blocks of up to 16 updates at once, where the CPU multiplies and adds 52 bits
// in one instruction (IFMA); compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_FOLD_MANY_MINI_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_FOLD_MANY_MINI_INL_H_
#undef TRIBUTARY_COMPRESSION_FOLD_MANY_MINI_INL_H_
#else
#define TRIBUTARY_COMPRESSION_FOLD_MANY_MINI_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "compression/internal/block_fold-inl.h"
#include "compression/internal/block_format.h"
#include "compression/internal/fold_many-inl.h"
#include "compression/internal/mini_float.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
#pragma GCC push_options
#pragma GCC target("avx512ifma")

// What has been added for nothing, a bias times each factor, is taken from the sums at the end;
// they are written where every update's block fits, and 0 is returned where one does not.
template <class V>
HWY_INLINE size_t StoreFour(Four<V>& s, uint64_t biases, bool fits, int64_t* acc) {
  if (HWY_UNLIKELY(!fits)) return 0;
  const __m512i bias = _mm512_set1_epi64(static_cast<int64_t>(biases));
  s.ForEach([&](size_t k, __m512i& sum) {
    const __m512i before = _mm512_loadu_si512(acc + 8 * k);
    _mm512_storeu_si512(acc + 8 * k, _mm512_add_epi64(before, _mm512_sub_epi64(sum, bias)));
  });
  return kMxBlock;
}

// MX blocks of integers (mxint8, and mxfp4 in halves) have units that are powers of two, 2^k of
// the grid's, so that with k >= 0 nothing is rounded: weight * rne(code * 2^k) = code * (weight <<
// k), no double in it. A code takes a byte plus kBias, to be no less than 0; k is below 23, where
// elements are narrow, so that with a weight of 19 bits the product has under 51. A block whose
// unit is so small that each code is nothing (k <= -9, a block of zeros among them) adds nothing.
// In between blocks are rounded: not here.
struct MxFactors {
  int base;  // k = the scale's byte - this
  uint64_t biases = 0;
  bool fits = true;
  template <uint64_t kBias>
  HWY_INLINE __m512i Next(uint8_t scale, int32_t weight) {
    const int k = scale - base;
    fits &= (k >= 0 && k <= 22) || k <= -9;
    const uint64_t factor = k < 0 ? 0 : static_cast<uint64_t>(weight) << (k & 31);
    biases += kBias * factor;
    return _mm512_set1_epi64(static_cast<int64_t>(factor));
  }
};

// Codes of four bits as bytes, 32 of them in order, by a table of 16.
HWY_INLINE __m256i Nibbles(const uint8_t* p, __m128i table) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i mask = _mm_set1_epi8(0x0F);
  const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(v, mask));
  const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(v, 4), mask));
  return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
}

// One block of 32 at `at` of each update; its 32, or 0. Has52's weights. `exponent`: of the grid's
// scale and the format's unit together.
template <bool kBytes>
size_t ManyMx52(const ManyRun* runs, size_t count, size_t at, int exponent, int64_t* acc) {
  constexpr uint64_t kBias = kBytes ? 128 : 12;
  MxFactors factors{127 - exponent};
  // CodeTable's values of e2m1 in halves, with the bias.
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m512i zero = _mm512_setzero_si512();
  Four<__m512i> s{zero, zero, zero, zero};
  PrefetchSums(acc, kMxBlock);
  for (size_t u = 0; u < count; ++u) {
    const uint8_t* const p = runs[u].p + at;
    PrefetchPart(p);
    const __m512i factor = factors.Next<kBias>(p[0], runs[u].weight);
    __m256i codes;
    if constexpr (kBytes) {
      codes = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 1)),
                               _mm256_set1_epi8(static_cast<char>(0x80)));
    } else {
      codes = Nibbles(p + 1, table);
    }
    const __m128i low = _mm256_castsi256_si128(codes), high = _mm256_extracti128_si256(codes, 1);
    const auto add = [&](__m512i sum, __m128i bytes) {
      return _mm512_madd52lo_epu64(sum, _mm512_cvtepu8_epi64(bytes), factor);
    };
    s.v0 = add(s.v0, low), s.v1 = add(s.v1, _mm_unpackhi_epi64(low, low));
    s.v2 = add(s.v2, high), s.v3 = add(s.v3, _mm_unpackhi_epi64(high, high));
  }
  return StoreFour(s, factors.biases, factors.fits, acc);
}

// Small floats of eight bits: as ones of sixteen, which the CPU widens. e5m2 is the upper byte of
// such a one; of e4m3, exponent and mantissa move to their places there, which takes 2^8 from the
// value (the exponents' biases are 7 and 15), so that its scale has kUp more.
template <class F>
struct Minis52 {
  static constexpr bool kE4M3 = F::kMantissa == 3;
  static constexpr int kUp = kE4M3 ? 8 : 0;
  __m512d scale;
  __m512i weight;
  static HWY_INLINE __m512d Adder() { return _mm512_set1_pd(0x1p52 + 0x1p32); }

  // Two vectors of sums += weight * (rne(v * scale) + 2^32), of 16 codes.
  HWY_INLINE void Add(const uint8_t* codes, __m512i* first, __m512i* second) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), kE4M3 ? 7 : 8);
    // The sign went to the bit before its place, too.
    const __m256i half = kE4M3 ? _mm256_and_si256(wide, _mm256_set1_epi16(-0x4001)) : wide;
    AddEight(_mm256_castsi256_si128(half), first);
    AddEight(_mm256_extracti128_si256(half, 1), second);
  }
  HWY_INLINE void AddEight(__m128i halves, __m512i* sum) const {
    const __m512d v = _mm512_cvtps_pd(_mm256_cvtph_ps(halves));
    const __m512i q = _mm512_castpd_si512(_mm512_fmadd_pd(v, scale, Adder()));
    *sum = _mm512_madd52lo_epu64(*sum, q, weight);
  }
};

// As FoldManyNumbers52, with each update's own scale. `length` is a multiple of 32.
template <class F>
size_t ManyMinis52(const BlockFormat& format, const ManyRun* runs, size_t count, size_t at,
                   size_t length, double grid_scale, int64_t* acc) {
  struct Part {
    const uint8_t* codes;
    double scale;
    int64_t weight;
  };
  Part own[kMany];
  bool fits = true;
  uint64_t weights = 0;
  for (size_t u = 0; u < count; ++u) {
    const uint8_t* const p = runs[u].p + at;
    const double scale = static_cast<double>(BlockUnit(format, p)) * grid_scale;
    fits &= NarrowScale(format, scale);
    own[u] = {p + format.scale_bytes(), scale * (1 << Minis52<F>::kUp), runs[u].weight};
    weights += static_cast<uint64_t>(runs[u].weight);
  }
  for (size_t i = 0; i < length; i += kMxBlock) {
    const __m512i zero = _mm512_setzero_si512();
    Four<__m512i> s{zero, zero, zero, zero};
    PrefetchSums(acc + i, kMxBlock);
    for (size_t u = 0; u < count; ++u) {
      const uint8_t* const codes = own[u].codes + i;
      PrefetchPart(codes);
      const Minis52<F> part{_mm512_set1_pd(own[u].scale), _mm512_set1_epi64(own[u].weight)};
      part.Add(codes, &s.v0, &s.v1);
      part.Add(codes + 16, &s.v2, &s.v3);
    }
    if (StoreFour(s, weights << 32, fits, acc + i) == 0) return 0;
  }
  return length;
}

// Of MX blocks, whose scales are doubles without a multiplication.
template <class F>
size_t ManyMxMinis52(const ManyRun* runs, size_t count, size_t at, int exponent, int64_t* acc) {
  constexpr int kMost = Minis52<F>::kE4M3 ? 22 : 15;  // NarrowScale: the largest are 7 * 2^6, 2^13
  const __m512i zero = _mm512_setzero_si512();
  Four<__m512i> s{zero, zero, zero, zero};
  PrefetchSums(acc, kMxBlock);
  bool fits = true;
  uint64_t weights = 0;
  for (size_t u = 0; u < count; ++u) {
    const uint8_t* const p = runs[u].p + at;
    PrefetchPart(p);
    const int k = p[0] - 127 + exponent;
    fits &= k <= kMost;
    weights += static_cast<uint64_t>(runs[u].weight);
    const auto bits = static_cast<int64_t>(static_cast<uint64_t>(k + Minis52<F>::kUp + 1023) << 52);
    const Minis52<F> part{_mm512_castsi512_pd(_mm512_set1_epi64(bits)),
                          _mm512_set1_epi64(runs[u].weight)};
    part.Add(p + 1, &s.v0, &s.v1);
    part.Add(p + 17, &s.v2, &s.v3);
  }
  return StoreFour(s, weights << 32, fits, acc);
}
#pragma GCC pop_options

// A block at `at` of each update, of formats that have a kernel above; else 0.
HWY_INLINE size_t ManyMini52(const BlockFormat& format, const ManyRun* runs, size_t count,
                             size_t at, size_t length, double grid_scale, int64_t* acc) {
  if (length % kMxBlock != 0) return 0;
  const bool e4m3 = format.code_kind == CodeKind::kE4M3;
  if (format.scale_kind == ScaleKind::kFloat32) {
    return e4m3 ? ManyMinis52<E4M3>(format, runs, count, at, length, grid_scale, acc)
                : ManyMinis52<E5M2>(format, runs, count, at, length, grid_scale, acc);
  }
  const int exponent = std::ilogb(grid_scale) + format.unit_exponent;
  if (format.floats()) {
    return e4m3 ? ManyMxMinis52<E4M3>(runs, count, at, exponent, acc)
                : ManyMxMinis52<E5M2>(runs, count, at, exponent, acc);
  }
  return format.bits == 8 ? ManyMx52<true>(runs, count, at, exponent, acc)
                          : ManyMx52<false>(runs, count, at, exponent, acc);
}
#endif

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
