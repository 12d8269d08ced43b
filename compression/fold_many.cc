// The kernels that fold up to 16 updates' blocks at once, their sums in registers.
#include "compression/internal/fold_many.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/fold_many.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/block_fold-inl.h"
#include "compression/internal/fold_many-inl.h"
#include "compression/internal/fold_many_mini-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// A block's codes of one update; args.scale is the block's.
struct BlockPart {
  const uint8_t* codes;
  FoldArgs args;
};

// Before elements [i, i + n): what comes later is fetched. `bits` a code.
HWY_INLINE void PrefetchAhead(const BlockPart* parts, size_t count, size_t i, size_t n, size_t bits,
                              const int64_t* acc) {
  PrefetchSums(acc + i, n);
  const size_t byte = i * bits / 8;
  if (byte % 64 >= n * bits / 8 && i > 0) return;  // the cache line was fetched before
  for (size_t u = 0; u < count; ++u) PrefetchPart(parts[u].codes + byte);
}

// Each returns how many of the block's elements it folded; the rest are left to others.

// Codes of a byte.
template <class Load>
HWY_INLINE size_t ManyBytes(const BlockPart* parts, size_t count, size_t length, int64_t* acc,
                            Load load) {
  constexpr size_t kVectors = 8;
  const size_t lanes = hn::Lanes(Doubles());
  size_t i = 0;
  const auto part = [&](size_t u, size_t k) { return load(parts[u].codes + i + k * lanes); };
  const auto args = [&](size_t u) -> const FoldArgs& { return parts[u].args; };
  for (; i + kVectors * lanes <= length; i += kVectors * lanes) {
    PrefetchAhead(parts, count, i, kVectors * lanes, 8, acc);
    AddMany<kVectors>(count, args, part, acc + i);
  }
  for (; i + 4 * lanes <= length; i += 4 * lanes) {
    PrefetchAhead(parts, count, i, 4 * lanes, 8, acc);
    AddMany<4>(count, args, part, acc + i);
  }
  return i;
}

HWY_INLINE size_t ManyIntegers(const BlockPart* parts, size_t count, size_t length, int64_t* acc) {
  const hn::Rebind<int32_t, Doubles> d32;
  const hn::Rebind<int8_t, Doubles> d8;
  return ManyBytes(parts, count, length, acc, [&](const uint8_t* p) {
    return hn::PromoteTo(Doubles(), hn::PromoteTo(d32, LoadBytes(d8, p)));
  });
}

template <class F>
HWY_INLINE size_t ManyMinis(const BlockPart* parts, size_t count, size_t length, int64_t* acc) {
  return ManyBytes(parts, count, length, acc, [](const uint8_t* p) {
    return hn::PromoteTo(Doubles(), MiniFloats<F>(HalfFloats(), p));
  });
}

// One bit an element. A bit of 1 changes an update's term by a difference; the terms of bits of 0
// are one sum for all elements. Of any scale.
HWY_INLINE size_t ManySigns(const BlockPart* parts, size_t count, size_t length, int64_t* acc) {
  const hn::RebindToSigned<Doubles> d;
  uint64_t base = 0;
  int64_t changes[kMany];
  for (size_t u = 0; u < count; ++u) {
    int64_t plus = 0, minus = 0;
    FoldOne(1, parts[u].args, &plus);
    FoldOne(-1, parts[u].args, &minus);
    base += static_cast<uint64_t>(plus);
    changes[u] = static_cast<int64_t>(static_cast<uint64_t>(minus) - static_cast<uint64_t>(plus));
  }
  const auto start = hn::Set(d, static_cast<int64_t>(base));
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  for (; i + 64 <= length; i += 64) {
    PrefetchAhead(parts, count, i, 64, 1, acc);
    Eight<__m512i> s;
    s.ForEach([&](size_t k, __m512i& sum) {
      sum = _mm512_add_epi64(_mm512_loadu_si512(acc + i + 8 * k), start.raw);
    });
    for (size_t u = 0; u < count; ++u) {
      const __m512i change = _mm512_set1_epi64(changes[u]);
      const uint8_t* const bits = parts[u].codes + i / 8;
      s.ForEach(
          [&](size_t k, __m512i& sum) { sum = _mm512_mask_add_epi64(sum, bits[k], sum, change); });
    }
    s.ForEach([&](size_t k, __m512i& sum) { _mm512_storeu_si512(acc + i + 8 * k, sum); });
  }
#endif
  const size_t lanes = hn::Lanes(d);
  for (; i + 8 <= length; i += 8) {
    for (size_t j = 0; j < 8; j += lanes) {
      auto sum = hn::Add(hn::LoadU(d, acc + i + j), start);
      for (size_t u = 0; u < count; ++u) {
        const auto bits = static_cast<uint8_t>(parts[u].codes[i / 8] >> j);
        const auto change = hn::Set(d, changes[u]);
        sum = hn::Add(sum, hn::IfThenElseZero(hn::LoadMaskBits(d, &bits), change));
      }
      hn::StoreU(sum, d, acc + i + j);
    }
  }
  return i;
}

#if HWY_TARGET <= HWY_AVX3
// Codes of two or four bits look up their terms, as in FoldLookedUp.
template <int kBits>
HWY_INLINE size_t ManyLookedUp(const BlockPart* parts, size_t count, size_t length,
                               const int8_t* table, int64_t* acc) {
  if (length < 64) return 0;
  HWY_ALIGN int64_t terms[kMany][16];
  const Doubles dd;
  for (size_t c = 0; c < 16; c += 8) {
    HWY_ALIGN double codes[8];
    for (size_t j = 0; j < 8; ++j) codes[j] = table[(c + j) & ((1u << kBits) - 1)];
    const auto v = hn::Load(dd, codes);
    const hn::RebindToSigned<Doubles> d;
    for (size_t u = 0; u < count; ++u) hn::Store(NarrowTerm(v, parts[u].args), d, terms[u] + c);
  }
  const __m512i first =
      _mm512_set_epi64(7 * kBits, 6 * kBits, 5 * kBits, 4 * kBits, 3 * kBits, 2 * kBits, kBits, 0);
  constexpr size_t kPerWord = 64 / kBits;  // codes
  size_t i = 0;
  for (; i + 64 <= length; i += 64) {
    PrefetchAhead(parts, count, i, 64, kBits, acc);
    Eight<__m512i> s;
    s.ForEach([&](size_t k, __m512i& sum) { sum = _mm512_loadu_si512(acc + i + 8 * k); });
    for (size_t u = 0; u < count; ++u) {
      const __m512i low = _mm512_load_si512(terms[u]), high = _mm512_load_si512(terms[u] + 8);
      const uint8_t* const p = parts[u].codes + i * kBits / 8;
      s.ForEach([&](size_t k, __m512i& sum) {
        int64_t word;
        std::memcpy(&word, p + 8 * k / kPerWord * 8, 8);
        const __m512i shift = _mm512_add_epi64(first, _mm512_set1_epi64(8 * k % kPerWord * kBits));
        const __m512i index = _mm512_srlv_epi64(_mm512_set1_epi64(word), shift);
        sum = _mm512_add_epi64(sum, _mm512_permutex2var_epi64(low, index, high));
      });
    }
    s.ForEach([&](size_t k, __m512i& sum) { _mm512_storeu_si512(acc + i + 8 * k, sum); });
  }
  return i;
}
#endif

#if HWY_TARGET <= HWY_AVX3
// Bytes in one step for all, a multiple of the grid's: sum over the updates of weight times code in
// 32 bits, and the step once. Two updates' codes lie side by side, as a pair of 16-bit products is
// added in one instruction. Weights are below 2^15, so that 16 of them times 128 stay below 2^26.
HWY_INLINE size_t ManyWhole(const BlockPart* parts, size_t count, size_t length, int shift,
                            int64_t* acc) {
  const size_t pairs = (count + 1) / 2;
  const __m128i by = _mm_cvtsi32_si128(shift);
  size_t i = 0;
  for (; i + 64 <= length; i += 64) {
    PrefetchAhead(parts, count, i, 64, 8, acc);
    __m512i t0 = _mm512_setzero_si512(), t1 = t0, t2 = t0, t3 = t0;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const BlockPart& one = parts[2 * pair];
      const bool alone = 2 * pair + 1 == count;
      const BlockPart& other = alone ? one : parts[2 * pair + 1];
      const __m512i a = _mm512_loadu_si512(one.codes + i), b = _mm512_loadu_si512(other.codes + i);
      const uint64_t second = alone ? 0 : other.args.weight;
      const __m512i w = _mm512_set1_epi32(static_cast<int32_t>(one.args.weight | second << 16));
      const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
      const auto products = [&](__m256i codes) {
        return _mm512_madd_epi16(_mm512_cvtepi8_epi16(codes), w);
      };
      t0 = _mm512_add_epi32(t0, products(_mm512_castsi512_si256(low)));
      t1 = _mm512_add_epi32(t1, products(_mm512_extracti64x4_epi64(low, 1)));
      t2 = _mm512_add_epi32(t2, products(_mm512_castsi512_si256(high)));
      t3 = _mm512_add_epi32(t3, products(_mm512_extracti64x4_epi64(high, 1)));
    }
    // Unpacking goes by 16 bytes: of each 16, the lower eight are in t0 and t1, the others in t2,
    // t3.
    const auto add = [&](size_t at, __m256i sums) {
      int64_t* const to = acc + i + at;
      const __m512i wide = _mm512_sll_epi64(_mm512_cvtepi32_epi64(sums), by);
      _mm512_storeu_si512(to, _mm512_add_epi64(_mm512_loadu_si512(to), wide));
    };
    add(0, _mm512_castsi512_si256(t0));
    add(8, _mm512_castsi512_si256(t2));
    add(16, _mm512_extracti64x4_epi64(t0, 1));
    add(24, _mm512_extracti64x4_epi64(t2, 1));
    add(32, _mm512_castsi512_si256(t1));
    add(40, _mm512_castsi512_si256(t3));
    add(48, _mm512_extracti64x4_epi64(t1, 1));
    add(56, _mm512_extracti64x4_epi64(t3, 1));
  }
  return i;
}

#if HWY_COMPILER_GCC_ACTUAL
// Bytes where the CPU multiplies and adds 52 bits in one instruction (IFMA). A byte v as the double
// D = 1.5 * 2^52 + v needs no conversion: D * scale + C, with C = 2^52 + 2^32 - 1.5 * 2^52 * scale,
// is 2^52 + 2^32 + v * scale, rounded once to an integer and to the even one of two (2^32 is even),
// as FoldNarrow's is, if C is exact. With scale = m * 2^e, m of 24 bits, 1.5 * 2^52 * scale is a
// multiple of 2^(e + 51) below 2^(e + 77), so C is one of 2^min(32, e + 51) below 2^max(53, e +
// 77): 53 bits or fewer for e from -51 to 8. Scales from 2^-26 to 2^24 (narrow ones are below that)
// have e from -49 to 0. The sum's low 52 bits are q + 2^32, from 2^31 to 1.5 * 2^32; times a weight
// below 2^19 that is still 52 bits. The weights times 2^32 are taken away once.
#pragma GCC push_options
#pragma GCC target("avx512ifma")
constexpr double kLeast52Scale = 0x1p-26;

// What an update brings to a block, where one load spreads it over a vector.
struct Part52 {
  const uint8_t* codes;
  double scale, adder;
  int64_t weight;
};

HWY_INLINE __m512i Add52(const Part52& part, const uint8_t* codes, __m512i sum) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m512i bits = _mm512_add_epi64(_mm512_set1_epi64(kMagicBits), _mm512_cvtepi8_epi64(bytes));
  const __m512d q = _mm512_fmadd_pd(_mm512_castsi512_pd(bits), _mm512_set1_pd(part.scale),
                                    _mm512_set1_pd(part.adder));
  return _mm512_madd52lo_epu64(sum, _mm512_castpd_si512(q), _mm512_set1_epi64(part.weight));
}

size_t ManyIntegers52(const Part52* own, size_t count, size_t length, int64_t* acc) {
  uint64_t weights = 0;
  for (size_t u = 0; u < count; ++u) weights += static_cast<uint64_t>(own[u].weight);
  const __m512i start = _mm512_set1_epi64(static_cast<int64_t>(0 - (weights << 32)));
  size_t i = 0;
  const auto load = [&](size_t k) {
    return _mm512_add_epi64(_mm512_loadu_si512(acc + i + 8 * k), start);
  };
  const auto store = [&](size_t k, __m512i sum) { _mm512_storeu_si512(acc + i + 8 * k, sum); };
  for (; i + 128 <= length; i += 128) {
    PrefetchSums(acc + i, 128);
    __m512i s0 = load(0), s1 = load(1), s2 = load(2), s3 = load(3);
    __m512i s4 = load(4), s5 = load(5), s6 = load(6), s7 = load(7);
    __m512i s8 = load(8), s9 = load(9), s10 = load(10), s11 = load(11);
    __m512i s12 = load(12), s13 = load(13), s14 = load(14), s15 = load(15);
    for (size_t u = 0; u < count; ++u) {
      // One address and constants beside it: sixteen of their own would not stay in registers.
      const uint8_t* const codes = own[u].codes + i;
      PrefetchPart(codes);
      PrefetchPart(codes + 64);
      const auto add = [&](size_t k, __m512i sum) { return Add52(own[u], codes + 8 * k, sum); };
      s0 = add(0, s0), s1 = add(1, s1), s2 = add(2, s2), s3 = add(3, s3);
      s4 = add(4, s4), s5 = add(5, s5), s6 = add(6, s6), s7 = add(7, s7);
      s8 = add(8, s8), s9 = add(9, s9), s10 = add(10, s10), s11 = add(11, s11);
      s12 = add(12, s12), s13 = add(13, s13), s14 = add(14, s14), s15 = add(15, s15);
    }
    store(0, s0), store(1, s1), store(2, s2), store(3, s3);
    store(4, s4), store(5, s5), store(6, s6), store(7, s7);
    store(8, s8), store(9, s9), store(10, s10), store(11, s11);
    store(12, s12), store(13, s13), store(14, s14), store(15, s15);
  }
  for (; i + 32 <= length; i += 32) {
    PrefetchSums(acc + i, 32);
    __m512i s0 = load(0), s1 = load(1), s2 = load(2), s3 = load(3);
    for (size_t u = 0; u < count; ++u) {
      const uint8_t* const codes = own[u].codes + i;
      PrefetchPart(codes);
      s0 = Add52(own[u], codes, s0), s1 = Add52(own[u], codes + 8, s1);
      s2 = Add52(own[u], codes + 16, s2), s3 = Add52(own[u], codes + 24, s3);
    }
    store(0, s0), store(1, s1), store(2, s2), store(3, s3);
  }
  for (; i + 8 <= length; i += 8) {
    __m512i sum = load(0);
    for (size_t u = 0; u < count; ++u) sum = Add52(own[u], own[u].codes + i, sum);
    store(0, sum);
  }
  return i;
}
#pragma GCC pop_options

// A block of bytes at `at` of each update: ManyIntegers52 where all of their scales fit, else 0.
// The weights are Has52's.
HWY_INLINE size_t ManyBytes52(const BlockFormat& format, const ManyRun* runs, size_t count,
                              size_t at, size_t length, double grid_scale, int64_t* acc) {
  Part52 own[kMany];
  const size_t head = format.scale_bytes();
  bool fits = true;
  for (size_t u = 0; u < count; ++u) {
    const uint8_t* const p = runs[u].p + at;
    const double scale = static_cast<double>(BlockUnit(format, p)) * grid_scale;
    fits &= NarrowScale(format, scale) & ((scale == 0) | (scale >= kLeast52Scale));
    own[u] = {p + head, scale, 0x1p52 + 0x1p32 - kMagic * scale, runs[u].weight};
  }
  return fits ? ManyIntegers52(own, count, length, acc) : 0;
}
#endif

// Whether ManyWhole can: one step for the run, no smaller than the grid's, and weights of 15 bits.
HWY_INLINE bool Whole(const BlockFormat& format, const BlockPart* parts, size_t count) {
  if (format.scale_kind != ScaleKind::kShared || parts[0].args.scale < 1) return false;
  for (size_t u = 0; u < count; ++u) {
    if (parts[u].args.weight > INT16_MAX) return false;
  }
  return true;
}
#endif

// Codes of less than a byte: unpacked, so many at a time that all updates' stay in the first-level
// cache.
HWY_INLINE size_t ManyUnpacked(const BlockFormat& format, const BlockPart* parts, size_t count,
                               size_t length, int64_t* acc) {
  constexpr size_t kStretch = 512;
  HWY_ALIGN int8_t room[kMany][kStretch];
  BlockPart unpacked[kMany];
  size_t i = 0;
  for (; i < length; i += kStretch) {
    const size_t n = std::min(kStretch, length - i);
    for (size_t u = 0; u < count; ++u) {
      const uint8_t* const p = parts[u].codes + i * static_cast<size_t>(format.bits) / 8;
      unpacked[u] = {Unpack(format, p, n, room[u]), parts[u].args};
    }
    const size_t done = ManyIntegers(unpacked, count, n, acc + i);
    if (done < n) return i + done;
  }
  return length;
}

// Of a block whose elements are narrow, or of signs.
HWY_INLINE size_t ManyCodes(const BlockFormat& format, const BlockPart* parts, size_t count,
                            size_t length, int64_t* acc) {
  if (format.code_kind == CodeKind::kE4M3) return ManyMinis<E4M3>(parts, count, length, acc);
  if (format.code_kind == CodeKind::kE5M2) return ManyMinis<E5M2>(parts, count, length, acc);
#if HWY_TARGET <= HWY_AVX3
  if (format.bits == 8 && Whole(format, parts, count)) {
    return ManyWhole(parts, count, length, std::ilogb(parts[0].args.scale), acc);
  }
#endif
  if (format.bits == 8) return ManyIntegers(parts, count, length, acc);
  if (format.bits == 1) return ManySigns(parts, count, length, acc);
#if HWY_TARGET <= HWY_AVX3
  const int8_t* table = CodeTable(format);
  if (length >= 64) {
    return format.bits == 4 ? ManyLookedUp<4>(parts, count, length, table, acc)
                            : ManyLookedUp<2>(parts, count, length, table, acc);
  }
#endif
  return ManyUnpacked(format, parts, count, length, acc);
}

// A block at `at` of each update, where all are narrow or of signs; else 0.
HWY_INLINE size_t ManyOfAny(const BlockFormat& format, const ManyRun* runs, size_t count, size_t at,
                            size_t length, double grid_scale, int64_t* acc) {
  BlockPart parts[kMany];
  bool narrow = true;
  for (size_t u = 0; u < count; ++u) {
    const uint8_t* const p = runs[u].p + at;
    const double scale = static_cast<double>(BlockUnit(format, p)) * grid_scale;
    parts[u] = {p + format.scale_bytes(), {scale, static_cast<uint64_t>(runs[u].weight), 0}};
    narrow = narrow && NarrowScale(format, scale);
  }
  return narrow || format.bits == 1 ? ManyCodes(format, parts, count, length, acc) : 0;
}

#endif  // HWY_TARGET != HWY_SCALAR

void ManyBlocks(const BlockFormat& format, const ManyRun* runs, size_t count, size_t blocks,
                size_t length, double grid_scale, int64_t* acc) {
  if (format.scale_kind == ScaleKind::kShared && blocks > 1) {
    // With no bytes between them, several blocks are as good as a long one.
    const size_t joined = kMaxBlock / length;
    for (size_t b = 0; b < blocks; b += joined) {
      ManyRun at[kMany];
      for (size_t u = 0; u < count; ++u) {
        at[u] = {runs[u].p + b * format.BlockBytes(length), runs[u].weight};
      }
      const size_t here = std::min(joined, blocks - b) * length;
      ManyBlocks(format, at, count, 1, here, grid_scale, acc + b * length);
    }
    return;
  }
  const size_t width = format.BlockBytes(length);
  const size_t head = format.scale_bytes();
#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
  // ManyWhole is faster still.
  const double shared = format.scale_kind == ScaleKind::kShared
                            ? static_cast<double>(BlockUnit(format, runs[0].p)) * grid_scale
                            : 0;
  const bool has52 = Has52(runs, count);
  const bool mini52 = has52 && (format.scale_kind == ScaleKind::kE8M0 || format.floats());
  const bool bytes52 =
      has52 && !mini52 && format.bits == 8 && format.code_kind == CodeKind::kInteger && shared < 1;
#endif
  for (size_t b = 0; b < blocks; ++b, acc += length) {
    size_t done = 0;
#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
    if (mini52) done = ManyMini52(format, runs, count, b * width, length, grid_scale, acc);
    if (bytes52) done = ManyBytes52(format, runs, count, b * width, length, grid_scale, acc);
#endif
#if HWY_TARGET != HWY_SCALAR
    if (done == 0) done = ManyOfAny(format, runs, count, b * width, length, grid_scale, acc);
#endif
    if (done == length) continue;
    for (size_t u = 0; u < count; ++u) {
      const uint8_t* const p = runs[u].p + b * width;
      const double scale = static_cast<double>(BlockUnit(format, p)) * grid_scale;
      FoldAnyCodes(format, p + head + done * static_cast<size_t>(format.bits) / 8, length - done,
                   NarrowScale(format, scale), {scale, static_cast<uint64_t>(runs[u].weight), 0},
                   acc + done);
    }
  }
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(ManyBlocks);

void FoldManyBlocks(const BlockFormat& format, std::span<const ManyRun> runs, size_t blocks,
                    size_t length, double grid_scale, int64_t* acc) {
  HWY_DYNAMIC_DISPATCH(ManyBlocks)
  (format, runs.data(), runs.size(), blocks, length, grid_scale, acc);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
