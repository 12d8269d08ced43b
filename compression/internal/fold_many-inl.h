// Sums in registers while several updates pass over them, compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_FOLD_MANY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_FOLD_MANY_INL_H_
#undef TRIBUTARY_COMPRESSION_FOLD_MANY_INL_H_
#else
#define TRIBUTARY_COMPRESSION_FOLD_MANY_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "compression/internal/fold-inl.h"
#include "compression/internal/fold_many.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

// The CPU's own prefetcher loses a stream at the end of each page, and 16 streams side by side end
// often: 1 KiB ahead is some hundred nanoseconds at the speed of these folds. Into the second
// level: streams whose addresses are equal modulo 4 KiB would put each other out of the first.
HWY_INLINE void PrefetchPart(const uint8_t* p) {
  constexpr size_t kAhead = 1024;
  __builtin_prefetch(p + kAhead, 0, 2);
}
// The sums of `n` elements, 512 elements ahead; into the second level, too: what waits for the
// first holds up the loads of the updates (sixteen of fp32 were a fifth slower).
HWY_INLINE void PrefetchSums(const int64_t* acc, size_t n) {
  constexpr size_t kAhead = 512;
  for (size_t at = 0; at < n; at += 8) __builtin_prefetch(acc + kAhead + at, 1, 2);
}

#if HWY_TARGET != HWY_SCALAR

// Eight vectors by name, which an array of them would not surely be: they are registers.
template <class V>
struct Eight {
  V v0, v1, v2, v3, v4, v5, v6, v7;
  // visit(k, vector k)
  template <class Visit>
  HWY_INLINE void ForEach(Visit visit) {
    visit(size_t{0}, v0);
    visit(size_t{1}, v1);
    visit(size_t{2}, v2);
    visit(size_t{3}, v3);
    visit(size_t{4}, v4);
    visit(size_t{5}, v5);
    visit(size_t{6}, v6);
    visit(size_t{7}, v7);
  }
};
template <class V>
struct Four {
  V v0, v1, v2, v3;
  template <class Visit>
  HWY_INLINE void ForEach(Visit visit) {
    visit(size_t{0}, v0);
    visit(size_t{1}, v1);
    visit(size_t{2}, v2);
    visit(size_t{3}, v3);
  }
};

// weight * rne(v * scale), as FoldNarrow adds it.
HWY_INLINE hn::Vec<hn::RebindToSigned<Doubles>> NarrowTerm(hn::Vec<Doubles> v,
                                                           hn::Vec<Doubles> scale, int32_t weight) {
  const hn::Repartition<int32_t, Doubles> di32;
  const auto q = hn::BitCast(di32, hn::MulAdd(v, scale, hn::Set(Doubles(), kMagic)));
  return hn::MulEven(q, hn::Set(di32, weight));
}
HWY_INLINE hn::Vec<hn::RebindToSigned<Doubles>> NarrowTerm(hn::Vec<Doubles> v,
                                                           const FoldArgs& args) {
  return NarrowTerm(v, hn::Set(Doubles(), args.scale), static_cast<int32_t>(args.weight));
}

// acc, kVectors (4 or 8) vectors of sums, += the terms of `count` updates; part(u, k) is update u's
// k-th vector, args(u) its scale and weight, narrow both.
template <size_t kVectors, class Args, class Part>
HWY_INLINE void AddMany(size_t count, Args args, Part part, int64_t* acc) {
  using D = hn::RebindToSigned<Doubles>;
  const D d;
  const size_t lanes = hn::Lanes(d);
  std::conditional_t<kVectors == 8, Eight<hn::Vec<D>>, Four<hn::Vec<D>>> s;
  s.ForEach([&](size_t k, hn::Vec<D>& sum) { sum = hn::LoadU(d, acc + k * lanes); });
  for (size_t u = 0; u < count; ++u) {
    const auto scale = hn::Set(Doubles(), args(u).scale);
    const auto weight = static_cast<int32_t>(args(u).weight);
    s.ForEach([&](size_t k, hn::Vec<D>& sum) {
      sum = hn::Add(sum, NarrowTerm(part(u, k), scale, weight));
    });
  }
  s.ForEach([&](size_t k, hn::Vec<D>& sum) { hn::StoreU(sum, d, acc + k * lanes); });
}

#endif  // HWY_TARGET != HWY_SCALAR

// The numbers of one stretch whose magnitudes, the largest of which is kept, are still to be looked
// at: those of one update, and what comes 1 KiB behind them is fetched.
template <class Format, class V>
HWY_INLINE V MostOf(const uint8_t* p, size_t stretch, V most) {
  using Integers = typename Format::Integers;
  const Integers di;
  const auto magnitude = hn::Set(di, static_cast<hn::TFromD<Integers>>(
                                         ~(hn::TFromD<Integers>{1} << (8 * Format::kWidth - 1))));
  for (size_t at = 0; at < Format::kWidth * stretch; at += 64) PrefetchPart(p + at);
  // A stretch is so many vectors of bytes.
  for (size_t k = 0; k < Format::kWidth; ++k) {
    const auto bits = LoadBytes(di, p + k * Format::kWidth * hn::Lanes(di));
    most = hn::Max(most, hn::And(bits, magnitude));
  }
  return most;
}

#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
// Weights below this can be multiplied by 33 bits within the 52 that IFMA multiplies.
constexpr int32_t kBelow52Weight = int32_t{1} << 19;

HWY_INLINE bool Has52(const ManyRun* runs, size_t count) {
  static const bool has = __builtin_cpu_supports("avx512ifma") != 0;
  bool fits = has;
  for (size_t u = 0; u < count; ++u) fits = fits && runs[u].weight < kBelow52Weight;
  return fits;
}

// As FoldManyNumbers, where the CPU multiplies and adds 52 bits in one instruction (IFMA): the low
// 52 bits of v * scale + 2^52 + 2^32 are rne(v * scale) + 2^32, from 2^31 to 1.5 * 2^32 for a
// narrow number; the weights times 2^32 are taken away once. Returns how many elements it folded.
#pragma GCC push_options
#pragma GCC target("avx512ifma")
template <class Format, class OneByOne>
size_t FoldManyNumbers52(const ManyRun* runs, size_t count, size_t n, const FoldArgs& args,
                         int64_t* acc, OneByOne one_by_one) {
  using Integers = typename Format::Integers;
  const Integers di;
  const size_t lanes = hn::Lanes(Doubles());
  const size_t stretch = 8 * lanes;
  const auto limit = hn::Set(di, static_cast<hn::TFromD<Integers>>(args.narrow_limit));
  const __m512d scale = _mm512_set1_pd(args.scale), adder = _mm512_set1_pd(0x1p52 + 0x1p32);
  uint64_t weights = 0;
  for (size_t u = 0; u < count; ++u) weights += static_cast<uint64_t>(runs[u].weight);
  const __m512i start = _mm512_set1_epi64(static_cast<int64_t>(0 - (weights << 32)));
  size_t i = 0;
  for (; i + stretch <= n; i += stretch) {
    Eight<__m512i> s;
    auto most = hn::Zero(di);
    PrefetchSums(acc + i, stretch);
    s.ForEach([&](size_t k, __m512i& sum) {
      sum = _mm512_add_epi64(_mm512_loadu_si512(acc + i + k * lanes), start);
    });
    for (size_t u = 0; u < count; ++u) {
      const uint8_t* const p = runs[u].p + Format::kWidth * i;
      most = MostOf<Format>(p, stretch, most);
      const __m512i weight = _mm512_set1_epi64(runs[u].weight);
      s.ForEach([&](size_t k, __m512i& sum) {
        const __m512d v = Format::Promote(p + Format::kWidth * k * lanes).raw;
        const __m512d q = _mm512_fmadd_pd(v, scale, adder);
        sum = _mm512_madd52lo_epu64(sum, _mm512_castpd_si512(q), weight);
      });
    }
    if (HWY_LIKELY(hn::AllFalse(di, hn::Gt(most, limit)))) {
      s.ForEach([&](size_t k, __m512i& sum) { _mm512_storeu_si512(acc + i + k * lanes, sum); });
    } else {
      one_by_one(i, stretch);
    }
  }
  return i;
}
#pragma GCC pop_options
#endif

// n plain numbers of each of `count` updates. Format has kWidth bytes a number, Promote(bytes) as a
// vector of double, and Integers, the vectors in which magnitude bits are compared with
// args.narrow_limit; alone(bytes, n, args, acc) folds one update's. Sums are written where every
// number of a stretch was narrow, and a stretch with another is folded update by update.
template <class Format, class Alone>
HWY_INLINE void FoldManyNumbers(const ManyRun* runs, size_t count, size_t n, const FoldArgs& args,
                                int64_t* acc, Alone alone) {
  size_t i = 0;
  const auto one_by_one = [&](size_t from, size_t elements) {
    FoldArgs own = args;
    for (size_t u = 0; u < count; ++u) {
      own.weight = static_cast<uint64_t>(runs[u].weight);
      alone(runs[u].p + Format::kWidth * from, elements, own, acc + from);
    }
  };
#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
  if (Has52(runs, count)) i = FoldManyNumbers52<Format>(runs, count, n, args, acc, one_by_one);
#endif
#if HWY_TARGET != HWY_SCALAR
  using D = hn::RebindToSigned<Doubles>;
  using Integers = typename Format::Integers;
  const D d;
  const Integers di;
  const size_t lanes = hn::Lanes(d);
  const size_t stretch = 8 * lanes;
  const auto limit = hn::Set(di, static_cast<hn::TFromD<Integers>>(args.narrow_limit));
  const auto scale = hn::Set(Doubles(), args.scale);
  for (; i + stretch <= n; i += stretch) {
    Eight<hn::Vec<D>> s;
    auto most = hn::Zero(di);
    PrefetchSums(acc + i, stretch);
    s.ForEach([&](size_t k, hn::Vec<D>& sum) { sum = hn::LoadU(d, acc + i + k * lanes); });
    for (size_t u = 0; u < count; ++u) {
      const uint8_t* const p = runs[u].p + Format::kWidth * i;
      most = MostOf<Format>(p, stretch, most);
      s.ForEach([&](size_t k, hn::Vec<D>& sum) {
        const auto v = Format::Promote(p + Format::kWidth * k * lanes);
        sum = hn::Add(sum, NarrowTerm(v, scale, runs[u].weight));
      });
    }
    if (HWY_LIKELY(hn::AllFalse(di, hn::Gt(most, limit)))) {
      s.ForEach([&](size_t k, hn::Vec<D>& sum) { hn::StoreU(sum, d, acc + i + k * lanes); });
    } else {
      one_by_one(i, stretch);
    }
  }
#endif
  if (i < n) one_by_one(i, n - i);
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
