// The sparse codecs' kernels: finding what is kept, values into bytes and into terms of sums,
// randk's places.
#include "compression/internal/sparse_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/sparse_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/fold-inl.h"
#include "compression/internal/int8_kernels-inl.h"
#include "compression/internal/philox-inl.h"
#include "compression/internal/sparse_places.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

HWY_INLINE uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFF; }

#if HWY_TARGET != HWY_SCALAR
using Ints = hn::RebindToSigned<Floats>;

// visit(index) for each vector of those groups of four in which a |bits| is above `limit`: mostly
// few elements are kept. Returns where the scalar tail begins.
template <class Visit>
HWY_INLINE size_t VectorsAbove(const float* x, size_t n, uint32_t limit, Visit visit) {
  const Floats df;
  const Ints di;
  const size_t lanes = hn::Lanes(df);
  const auto most = hn::Set(di, static_cast<int32_t>(limit));
  const auto bits = [&](size_t at)
                        HWY_ATTR { return hn::BitCast(di, hn::Abs(hn::LoadU(df, x + at))); };
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto m = hn::Max(hn::Max(bits(i), bits(i + lanes)),
                           hn::Max(bits(i + 2 * lanes), bits(i + 3 * lanes)));
    if (hn::AllFalse(di, hn::Gt(m, most))) continue;
    for (size_t j = 0; j < 4; ++j) visit(i + j * lanes);
  }
  return i;
}
#endif

size_t Between(const float* x, size_t n, uint32_t low, uint32_t high, float* out) {
  size_t count = 0, i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const Ints di;
  const auto below = hn::Set(di, static_cast<int32_t>(low - 1));
  const auto most = hn::Set(di, static_cast<int32_t>(high));
  i = VectorsAbove(x, n, low - 1, [&](size_t at) HWY_ATTR {
    const auto v = hn::LoadU(df, x + at);
    const auto bits = hn::BitCast(di, hn::Abs(v));
    const auto kept = hn::AndNot(hn::Gt(bits, most), hn::Gt(bits, below));
    // Not CompressStore, which some CPUs execute slowly: what it would leave alone is room here.
    hn::StoreU(hn::Compress(v, hn::RebindMask(df, kept)), df, out + count);
    count += hn::CountTrue(di, kept);
  });
#endif
  for (; i < n; ++i) {
    if (BitsOf(x[i]) >= low && BitsOf(x[i]) <= high) out[count++] = x[i];
  }
  return count;
}

size_t Above(const float* x, size_t n, uint32_t limit, uint32_t base, uint16_t* places,
             float* values) {
  size_t count = 0, i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const Ints di;
  const hn::Rebind<uint16_t, Floats> d16;
  const auto most = hn::Set(di, static_cast<int32_t>(limit));
  const auto lane = hn::Iota(di, 0);  // with another first number each time it would be built anew
  i = VectorsAbove(x, n, limit, [&](size_t at) HWY_ATTR {
    const auto v = hn::LoadU(df, x + at);
    const auto kept = hn::Gt(hn::BitCast(di, hn::Abs(v)), most);
    const auto index = hn::Add(lane, hn::Set(di, static_cast<int32_t>(base + at)));
    hn::StoreU(hn::Compress(v, hn::RebindMask(df, kept)), df, values + count);
    hn::StoreU(hn::DemoteTo(d16, hn::Compress(index, kept)), d16, places + count);
    count += hn::CountTrue(di, kept);
  });
#endif
  for (; i < n; ++i) {
    if (BitsOf(x[i]) <= limit) continue;
    places[count] = static_cast<uint16_t>(base + i);
    values[count++] = x[i];
  }
  return count;
}

size_t Ties(const float* x, size_t n, uint32_t bits, uint64_t* ties) {
  size_t after = 0, i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const Ints di;
  const auto wanted = hn::Set(di, static_cast<int32_t>(bits));
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto same = hn::Eq(hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i))), wanted);
    if (HWY_LIKELY(hn::AllFalse(di, same))) continue;
    const size_t here = hn::CountTrue(di, same);
    if (here >= *ties) break;  // the last of them is one of these
    *ties -= here;
    after = i + lanes;
    while (BitsOf(x[after - 1]) != bits) --after;
  }
#endif
  for (; i < n && *ties != 0; ++i) {
    if (BitsOf(x[i]) != bits) continue;
    --*ties;
    after = i + 1;
  }
  return after;
}

bool Nonzero(const float* x, size_t n) {
  uint32_t any = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const Ints di;
  const size_t lanes = hn::Lanes(df);
  auto a = hn::Zero(df), b = a;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Or(a, hn::LoadU(df, x + i));
    b = hn::Or(b, hn::LoadU(df, x + i + lanes));
  }
  const auto bits = hn::BitCast(di, hn::Abs(hn::Or(a, b)));
  if (!hn::AllTrue(di, hn::Eq(bits, hn::Zero(di)))) return true;
#endif
  for (; i < n; ++i) any |= BitsOf(x[i]);
  return any != 0;
}

void Quantize(const float* x, size_t n, float scale, uint8_t* out) {
  QuantizeBlock<false>(x, n, scale, nullptr, reinterpret_cast<int8_t*>(out));
}

void Signs(const float* x, size_t n, uint8_t* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 8> df;
  if (hn::Lanes(df) == 8) {
    for (; i + 8 <= n; i += 8) {
      hn::StoreMaskBits(df, hn::Lt(hn::LoadU(df, x + i), hn::Zero(df)), out + i / 8);
    }
  }
#endif
  for (; i < n; i += 8) {
    uint32_t byte = 0;
    for (size_t j = 0; j < std::min<size_t>(8, n - i); ++j) byte |= (x[i + j] < 0 ? 1u : 0u) << j;
    out[i / 8] = static_cast<uint8_t>(byte);
  }
}

// promote(bytes) is a vector of double, one(bytes) a double.
template <size_t kWidth, class Promote, class One>
HWY_INLINE void Terms(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms,
                      [[maybe_unused]] Promote promote, One one) {
  std::fill_n(terms, n, int64_t{0});
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  i = FoldVectors(p, kWidth, n, args, terms, promote);
#elif HWY_TARGET != HWY_SCALAR
  for (const size_t lanes = hn::Lanes(Doubles()); i + lanes <= n; i += lanes) {
    FoldWide(promote(p + kWidth * i), args, terms + i);
  }
#endif
  for (; i < n; ++i) FoldOne(one(p + kWidth * i), args, terms + i);
}

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE hn::Vec<Doubles> PromoteFloats(const uint8_t* p) {
  return hn::PromoteTo(Doubles(), LoadBytes(HalfFloats(), p));
}
// HalfToFloat's arithmetic in lanes.
HWY_INLINE hn::Vec<Doubles> PromoteHalves(const uint8_t* p) {
  const HalfFloats df;
  const hn::RebindToUnsigned<HalfFloats> du;
  const auto bits = hn::PromoteTo(du, LoadBytes(hn::Rebind<uint16_t, Doubles>(), p));
  const auto shifted = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
  const auto magnitude = hn::Mul(hn::BitCast(df, shifted), hn::Set(df, 0x1p112f));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  return hn::PromoteTo(Doubles(), hn::Or(magnitude, hn::BitCast(df, sign)));
}
#else
struct PromoteNone {};
constexpr PromoteNone PromoteFloats, PromoteHalves, PromoteInt8;
#endif

void FloatTerms(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms) {
  Terms<4>(p, n, args, terms, PromoteFloats,
           [](const uint8_t* at) { return static_cast<double>(LoadLe<float>(at)); });
}
void HalfTerms(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms) {
  Terms<2>(p, n, args, terms, PromoteHalves, [](const uint8_t* at) {
    return static_cast<double>(HalfToFloat(LoadLe<uint16_t>(at)));
  });
}
void Int8Terms(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms) {
  Terms<1>(p, n, args, terms, PromoteInt8,
           [](const uint8_t* at) { return static_cast<double>(static_cast<int8_t>(*at)); });
}

void SignTerms(const uint8_t* p, size_t n, int64_t positive, int64_t* terms) {
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  // Eight bits are a vector's mask here alone.
  const hn::CappedTag<int64_t, 8> d;
  const auto plus = hn::Set(d, positive);
  const auto minus = hn::Sub(hn::Zero(d), plus);
  for (; i + 8 <= n; i += 8) {
    hn::StoreU(hn::IfThenElse(hn::LoadMaskBits(d, p + i / 8), minus, plus), d, terms + i);
  }
#endif
  for (; i < n; ++i) {
    const uint64_t sign = p[i / 8] >> i % 8 & 1;
    terms[i] = static_cast<int64_t>((static_cast<uint64_t>(positive) ^ (0 - sign)) + sign);
  }
}

void Add(const int64_t* more, size_t n, int64_t* sums) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int64_t> d;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, more + i)), d, sums + i);
  }
#endif
  for (; i < n; ++i) {
    sums[i] = static_cast<int64_t>(static_cast<uint64_t>(sums[i]) + static_cast<uint64_t>(more[i]));
  }
}

#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
#pragma GCC push_options
#pragma GCC target("avx512vbmi,avx512vbmi2")
// Remainders of `rice` bits each, at most 8, one a byte: 64 of them are 8 * rice bytes, of which
// each lane of 64 bits takes the 8 that its own eight remainders lie in.
void RiceRemainders(const uint8_t* p, size_t bytes, uint32_t rice, uint8_t* out) {
  alignas(64) uint8_t which[64], shifts[64];
  for (uint32_t k = 0; k < 64; ++k) {
    which[k] = static_cast<uint8_t>(k / 8 * rice + k % 8);
    shifts[k] = static_cast<uint8_t>(k % 8 * rice);
  }
  const __m512i index = _mm512_load_si512(which), by = _mm512_load_si512(shifts);
  const __m512i mask = _mm512_set1_epi8(static_cast<char>((1u << rice) - 1));
  for (size_t at = 0; at < bytes; at += 8 * rice, out += 64) {
    const __mmask64 some = bytes - at >= 64 ? ~uint64_t{0} : (uint64_t{1} << (bytes - at)) - 1;
    const __m512i all = _mm512_maskz_loadu_epi8(some, p + at);
    const __m512i lanes = _mm512_permutexvar_epi8(index, all);
    _mm512_storeu_si512(out, _mm512_and_si512(_mm512_multishift_epi64_epi8(by, lanes), mask));
  }
}

// The sums of lanes 0 to j of 32.
HWY_INLINE __m512i PrefixSums(__m512i v, __m512i lane) {
  const auto add = [&](__mmask32 from, short by) {
    const __m512i before = _mm512_sub_epi16(lane, _mm512_set1_epi16(by));
    v = _mm512_add_epi16(v, _mm512_maskz_permutexvar_epi16(from, before, v));
  };
  add(0xFFFFFFFE, 1), add(0xFFFFFFFC, 2), add(0xFFFFFFF0, 4), add(0xFFFFFF00, 8);
  add(0xFFFF0000, 16);
  return v;
}

// Place j is at bit u of the unary string, which has u - j zeros before it: the gaps' quotients.
// So it is ((u - j) << rice) + the remainders up to its own + j; 64 bits at a time.
void RiceByWords(const TileEntry& entry, const uint8_t* p, uint16_t* out) {
  const size_t rest_bytes = (size_t{entry.count} * entry.tag + 7) / 8;
  const size_t unary_bytes = entry.index_bytes - rest_bytes;
  alignas(64) uint8_t rest[kTileElements + 64];
  if (entry.tag > 0) {
    RiceRemainders(p + unary_bytes, rest_bytes, entry.tag, rest);
  } else {
    std::memset(rest, 0, entry.count + 64);
  }
  alignas(64) uint8_t bytes[64];
  alignas(64) uint16_t words[32];
  for (uint8_t k = 0; k < 64; ++k) bytes[k] = k;
  for (uint16_t k = 0; k < 32; ++k) words[k] = k;
  const __m512i bit = _mm512_load_si512(bytes), lane = _mm512_load_si512(words);
  const __m128i rice = _mm_cvtsi32_si128(static_cast<int>(entry.tag));
  __m512i before = _mm512_setzero_si512();  // remainders
  size_t done = 0;
  for (size_t at = 0; at < unary_bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p + at, std::min<size_t>(8, unary_bytes - at));
    const auto n = static_cast<size_t>(std::popcount(word));
    const __m512i set = _mm512_maskz_compress_epi8(word, bit);
    for (size_t from = 0; from < n; from += 32) {
      const size_t here = std::min<size_t>(32, n - from);
      const __m256i half =
          from == 0 ? _mm512_castsi512_si256(set) : _mm512_extracti64x4_epi64(set, 1);
      const __m512i u = _mm512_add_epi16(_mm512_cvtepu8_epi16(half),
                                         _mm512_set1_epi16(static_cast<short>(8 * at)));
      const __m512i j = _mm512_add_epi16(lane, _mm512_set1_epi16(static_cast<short>(done)));
      const __m512i own = _mm512_maskz_cvtepu8_epi16(
          static_cast<__mmask32>((uint64_t{1} << here) - 1),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rest + done)));
      const __m512i sums = PrefixSums(own, lane);
      const __m512i quotients = _mm512_sll_epi16(_mm512_sub_epi16(u, j), rice);
      const __m512i places =
          _mm512_add_epi16(_mm512_add_epi16(quotients, j), _mm512_add_epi16(sums, before));
      _mm512_storeu_si512(out + done, places);
      before = _mm512_add_epi16(before, _mm512_permutexvar_epi16(_mm512_set1_epi16(31), sums));
      done += here;
    }
  }
}
#pragma GCC pop_options
#endif

void PlacesOfRice(const TileEntry& entry, const uint8_t* p, uint16_t* out) {
#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
  static const bool has =
      __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0;
  if (has && entry.tag <= 8) return RiceByWords(entry, p, out);
#endif
  ForEachRicePlace(entry, p, [&](uint32_t place) {
    *out++ = static_cast<uint16_t>(place);
    return true;
  });
}

void Places(uint64_t key, uint32_t tile, uint32_t stride, size_t from, size_t count,
            uint32_t* places) {
  // Stratum j's word is that of a rounding whose counter has the tile above j / 4.
  HWY_ALIGN uint16_t random[2 * kStrataAtOnce + 8];
  FillRandom({.key = key}, uint64_t{tile} << 32 | from / 4, (count + 3) / 4, random);
  for (size_t j = 0; j < count; ++j) {
    uint32_t word;
    std::memcpy(&word, random + 2 * j, sizeof word);
    places[j] = static_cast<uint32_t>((from + j) * stride + (uint64_t{word} * stride >> 32));
  }
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Between);
HWY_EXPORT(Above);
HWY_EXPORT(Ties);
HWY_EXPORT(Nonzero);
HWY_EXPORT(Quantize);
HWY_EXPORT(Signs);
HWY_EXPORT(FloatTerms);
HWY_EXPORT(HalfTerms);
HWY_EXPORT(Int8Terms);
HWY_EXPORT(SignTerms);
HWY_EXPORT(PlacesOfRice);
HWY_EXPORT(Add);
HWY_EXPORT(Places);

size_t CollectBetween(const float* x, size_t n, uint32_t low, uint32_t high, float* out) {
  return HWY_DYNAMIC_DISPATCH(Between)(x, n, low, high, out);
}
size_t CollectAbove(const float* x, size_t n, uint32_t limit, uint32_t base, uint16_t* places,
                    float* values) {
  return HWY_DYNAMIC_DISPATCH(Above)(x, n, limit, base, places, values);
}
size_t AfterTies(const float* x, size_t n, uint32_t bits, uint64_t* ties) {
  return HWY_DYNAMIC_DISPATCH(Ties)(x, n, bits, ties);
}
bool AnyNonzero(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(Nonzero)(x, n); }
void QuantizeKept(const float* x, size_t n, float scale, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Quantize)(x, n, scale, out);
}
void PackSigns(const float* x, size_t n, uint8_t* out) { HWY_DYNAMIC_DISPATCH(Signs)(x, n, out); }
void TermsOfFloats(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms) {
  HWY_DYNAMIC_DISPATCH(FloatTerms)(p, n, args, terms);
}
void TermsOfHalves(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms) {
  HWY_DYNAMIC_DISPATCH(HalfTerms)(p, n, args, terms);
}
void TermsOfInt8s(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms) {
  HWY_DYNAMIC_DISPATCH(Int8Terms)(p, n, args, terms);
}
void TermsOfSigns(const uint8_t* p, size_t n, int64_t positive, int64_t* terms) {
  HWY_DYNAMIC_DISPATCH(SignTerms)(p, n, positive, terms);
}
void RicePlaces(const TileEntry& entry, const uint8_t* p, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(PlacesOfRice)(entry, p, out);
}
void AddSums(const int64_t* more, size_t n, int64_t* sums) {
  HWY_DYNAMIC_DISPATCH(Add)(more, n, sums);
}
void StrataPlaces(uint64_t key, uint32_t tile, uint32_t stride, size_t from, size_t count,
                  uint32_t* places) {
  HWY_DYNAMIC_DISPATCH(Places)(key, tile, stride, from, count, places);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
