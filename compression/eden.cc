// Codec eden, the kernels. EDEN (Vargaftik et al., ICML 2022; 1 bit: DRIVE, NeurIPS 2021): a random
// rotation makes the elements nearly normal, the Lloyd-Max quantiser of the normal distribution
// codes them, and one scale makes the estimate unbiased. The rotation is a randomized Hadamard
// transform a block; codes stand for integers, so that decoding is integer arithmetic.
#include "compression/internal/eden.h"

#include <algorithm>
#include <cmath>

#include "compression/internal/runs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/eden.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/block_kernels-inl.h"
#include "compression/internal/dot-inl.h"
#include "compression/internal/philox-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

// The Lloyd-Max levels of the normal distribution (Max 1960) times `unit`, to the nearest integer.
// A code's highest bit is the sign, the others say which level.
struct EdenLevels {
  float unit;
  alignas(16) int8_t table[16];
};
HWY_INLINE const EdenLevels& LevelsOf(int bits) {
  static constexpr EdenLevels kLevels[] = {
      {1.2533141f, {1, -1}},  // +-0.7979
      {84, {38, 127, -38, -127}},
      {58, {14, 44, 78, 125, -14, -44, -78, -125}},
      {46, {6, 18, 30, 43, 58, 74, 95, 126, -6, -18, -30, -43, -58, -74, -95, -126}}};
  return kLevels[bits - 1];
}

// For UnpackCodes<1>: a bit that is 1 becomes -1.
alignas(16) constexpr int8_t kMinus[16] = {0, -1};

#if HWY_TARGET != HWY_SCALAR
// A butterfly of distance kDistance within each vector; none where vectors are not longer.
template <size_t kDistance, class D>
HWY_INLINE hn::Vec<D> ButterflyWithin(D d, hn::Vec<D> v) {
  if constexpr (kDistance < hn::MaxLanes(D())) {
    hn::Vec<D> other = v;
    if constexpr (kDistance == 1) other = hn::Shuffle2301(v);
    if constexpr (kDistance == 2) other = hn::Shuffle1032(v);
    if constexpr (kDistance == 4) other = hn::SwapAdjacentBlocks(v);
    if constexpr (kDistance == 8) other = hn::SwapAdjacentBlocks(hn::ReverseBlocks(d, v));
    const hn::RebindToUnsigned<D> du;
    const auto bit = hn::Set(du, uint32_t{kDistance});
    const auto upper = hn::RebindMask(d, hn::TestBit(hn::Iota(du, 0), bit));
    return hn::IfThenElse(upper, hn::Sub(other, v), hn::Add(other, v));
  }
  return v;
}

// Butterflies of distance h, of whole vectors.
template <class T>
HWY_INLINE void Butterflies(T* v, size_t n, size_t h) {
  const hn::ScalableTag<T> d;
  for (size_t from = 0; from < n; from += 2 * h) {
    for (size_t i = from; i < from + h; i += hn::Lanes(d)) {
      const auto a = hn::LoadU(d, v + i);
      const auto b = hn::LoadU(d, v + i + h);
      hn::StoreU(hn::Add(a, b), d, v + i);
      hn::StoreU(hn::Sub(a, b), d, v + i + h);
    }
  }
}

// Those of distance 2 h and then those of h, which is half the loads and stores.
template <class T>
HWY_INLINE void TwoButterflies(T* v, size_t n, size_t h) {
  const hn::ScalableTag<T> d;
  for (size_t from = 0; from < n; from += 4 * h) {
    for (size_t i = from; i < from + h; i += hn::Lanes(d)) {
      const auto v0 = hn::LoadU(d, v + i), v1 = hn::LoadU(d, v + i + h);
      const auto v2 = hn::LoadU(d, v + i + 2 * h), v3 = hn::LoadU(d, v + i + 3 * h);
      const auto sum02 = hn::Add(v0, v2), sum13 = hn::Add(v1, v3);
      const auto rest02 = hn::Sub(v0, v2), rest13 = hn::Sub(v1, v3);
      hn::StoreU(hn::Add(sum02, sum13), d, v + i);
      hn::StoreU(hn::Sub(sum02, sum13), d, v + i + h);
      hn::StoreU(hn::Add(rest02, rest13), d, v + i + 2 * h);
      hn::StoreU(hn::Sub(rest02, rest13), d, v + i + 3 * h);
    }
  }
}
#endif

// In place, unnormalised: butterflies of distance n/2, n/4, ..., 1. n is a power of two, at least
// kEdenShortest, which is the longest vector.
template <class T>
HWY_INLINE void Hadamard(T* v, size_t n) {
  size_t h = n / 2;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<T> d;
  static_assert(hn::MaxLanes(hn::ScalableTag<T>()) <= kEdenShortest);
  const size_t lanes = hn::Lanes(d);
  for (; h >= 2 * lanes; h /= 4) TwoButterflies(v, n, h / 2);
  if (h >= lanes) Butterflies(v, n, h);
  for (size_t i = 0; i < n; i += lanes) {
    auto x = ButterflyWithin<8>(d, hn::LoadU(d, v + i));
    x = ButterflyWithin<4>(d, x);
    x = ButterflyWithin<2>(d, x);
    hn::StoreU(ButterflyWithin<1>(d, x), d, v + i);
  }
#else
  for (; h > 0; h /= 2) {
    for (size_t from = 0; from < n; from += 2 * h) {
      for (size_t i = from; i < from + h; ++i) {
        const T a = v[i], b = v[i + h];
        v[i] = a + b;
        v[i + h] = a - b;
      }
    }
  }
#endif
}

// 0 or -1, which is to change the sign, for each element: Philox bits, 128 for each counter.
HWY_INLINE void Signs(const EdenBlock& block, int8_t* signs) {
  HWY_ALIGN uint16_t random[kEdenMaxBlock / 16 + 8];
  const EncodeContext context{.key = block.key};
  size_t counters = (block.size + 127) / 128;
#if HWY_TARGET != HWY_SCALAR
  // Two vectors at once are made; one counter more than those fill costs as much as a fourth of
  // them. The longest block has 32 counters, a multiple of every target's.
  constexpr size_t kAtOnce = 2 * hn::MaxLanes(hn::ScalableTag<uint64_t>());
  static_assert(kEdenMaxBlock / 128 % kAtOnce == 0);
  if (counters >= kAtOnce / 4) counters = (counters + kAtOnce - 1) / kAtOnce * kAtOnce;
#endif
  FillRandom(context, block.first / 128, counters, random);
  const auto* bits = reinterpret_cast<const uint8_t*>(random) + block.first % 128 / 8;
  UnpackCodes<1>(bits, block.size, kMinus, signs);
}

// z[i]: x[i] with its sign, in `size` elements of which n are given.
HWY_INLINE void ApplySigns(const float* x, size_t n, const int8_t* signs, size_t size, float* z) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<int8_t, Floats> d8;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto sign = hn::ShiftLeft<31>(hn::PromoteTo(di, hn::LoadU(d8, signs + i)));
    hn::StoreU(hn::Xor(hn::LoadU(df, x + i), hn::BitCast(df, sign)), df, z + i);
  }
#endif
  for (; i < n; ++i) z[i] = signs[i] == 0 ? x[i] : -x[i];
  std::fill(z + n, z + size, 0.0f);
}

template <int kBits>
HWY_INLINE void EncodeLevels(const float* z, size_t n, float factor, int8_t* codes) {
  const EdenLevels& levels = LevelsOf(kBits);
  constexpr int half = 1 << (kBits - 1);
  float limits[half];  // half-way between levels
  for (int l = 0; l + 1 < half; ++l) {
    limits[l] = 0.5f * static_cast<float>(levels.table[l] + levels.table[l + 1]);
  }
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<int8_t, Floats> d8;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto y = hn::Mul(hn::LoadU(df, z + i), hn::Set(df, factor));
    const auto magnitude = hn::Abs(y);
    const auto minus = hn::RebindMask(di, hn::Lt(y, hn::Zero(df)));
    auto code = hn::IfThenElseZero(minus, hn::Set(di, half));
    for (int l = 0; l + 1 < half; ++l) {
      const auto beyond = hn::Gt(magnitude, hn::Set(df, limits[l]));
      code = hn::Sub(code, hn::VecFromMask(di, hn::RebindMask(di, beyond)));
    }
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  }
#endif
  for (; i < n; ++i) {
    const float y = z[i] * factor;
    const float magnitude = std::abs(y);
    int code = y < 0 ? half : 0;
    for (int l = 0; l + 1 < half; ++l) code += magnitude > limits[l] ? 1 : 0;
    codes[i] = static_cast<int8_t>(code);
  }
}

HWY_INLINE void EncodeAny(int bits, const float* z, size_t n, float factor, int8_t* codes) {
  if (bits == 1) return EncodeLevels<1>(z, n, factor, codes);
  if (bits == 2) return EncodeLevels<2>(z, n, factor, codes);
  if (bits == 3) return EncodeLevels<3>(z, n, factor, codes);
  EncodeLevels<4>(z, n, factor, codes);
}

// A bit a code: 1 where it is above `most`. `codes` is used up.
HWY_INLINE void PackAbove(int8_t most, int8_t* codes, size_t n, uint8_t* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int8_t> d;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Sub(hn::Set(d, most), hn::LoadU(d, codes + i)), d, codes + i);
  }
#endif
  for (; i < n; ++i) codes[i] = static_cast<int8_t>(most - codes[i]);
  PackCodes<1>(codes, n, out);
}

// Three bits a code: two planes, the lower two bits of all codes and then the highest.
HWY_INLINE void PackEden(int bits, int8_t* codes, size_t n, uint8_t* out) {
  if (bits == 1) return PackAbove(0, codes, n, out);
  if (bits == 2) return PackCodes<2>(codes, n, out);
  if (bits == 4) return PackCodes<4>(codes, n, out);
  PackCodes<2>(codes, n, out);
  PackAbove(3, codes, n, out + n / 4);
}

// v[i] with its sign; T is int8_t or int32_t.
template <class T>
HWY_INLINE void ApplySigns(const int8_t* signs, size_t n, T* v) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<T> d;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto load = hn::LoadU(hn::Rebind<int8_t, decltype(d)>(), signs + i);
    const auto minus = [&]() HWY_ATTR {
      if constexpr (sizeof(T) == 1) {
        return load;
      } else {
        return hn::PromoteTo(d, load);
      }
    }();
    hn::StoreU(hn::Sub(hn::Xor(hn::LoadU(d, v + i), minus), minus), d, v + i);
  }
#endif
  for (; i < n; ++i) v[i] = static_cast<T>(signs[i] == 0 ? v[i] : -v[i]);
}

HWY_INLINE void UnpackEden(int bits, const uint8_t* p, size_t n, int8_t* out) {
  const int8_t* table = LevelsOf(bits).table;
  if (bits == 1) return UnpackCodes<1>(p, n, table, out);
  if (bits == 2) return UnpackCodes<2>(p, n, table, out);
  if (bits == 4) return UnpackCodes<4>(p, n, table, out);
  HWY_ALIGN int8_t signs[kEdenMaxBlock];
  UnpackCodes<2>(p, n, table, out);
  UnpackCodes<1>(p + n / 4, n, kMinus, signs);
  ApplySigns(signs, n, out);
}

void EdenEncodeBlock(const EdenBlock& block, const float* x, size_t n, uint8_t* out) {
  HWY_ALIGN float z[kEdenMaxBlock];
  HWY_ALIGN int8_t signs[kEdenMaxBlock];
  HWY_ALIGN int8_t codes[kEdenMaxBlock];
  const double squares = Dot<true>(x, x, n);
  std::fill_n(out, EdenBytes(block.bits, block.size), uint8_t{0});
  if (squares < 0x1p-200) return;  // as zeros: the factor below would overflow
  Signs(block, signs);
  ApplySigns(x, n, signs, block.size, z);
  Hadamard(z, block.size);
  const auto unit = static_cast<double>(LevelsOf(block.bits).unit);
  EncodeAny(block.bits, z, block.size, static_cast<float>(unit / std::sqrt(squares)), codes);
  PackEden(block.bits, codes, block.size, out + 4);
  UnpackEden(block.bits, out + 4, block.size, codes);
  StoreLe(static_cast<float>(squares / Dot<true>(z, codes, block.size)), out);
}

HWY_INLINE void Widen(const int8_t* codes, size_t n, int32_t* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int32_t> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d8, codes + i)), d, out + i);
  }
#endif
  std::copy(codes + i, codes + n, out + i);
}

void EdenIntegersOf(const EdenBlock& block, const uint8_t* p, int32_t* out) {
  HWY_ALIGN int8_t signs[kEdenMaxBlock];
  HWY_ALIGN int8_t codes[kEdenMaxBlock];
  UnpackEden(block.bits, p + 4, block.size, codes);
  Widen(codes, block.size, out);
  Hadamard(out, block.size);
  Signs(block, signs);
  ApplySigns(signs, block.size, out);
}

int32_t LargestInteger(const int32_t* v, size_t n) {
  int32_t most = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int32_t> d;
  auto largest = hn::Zero(d);
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, v + i)));
  }
  most = hn::GetLane(hn::MaxOfLanes(d, largest));
#endif
  for (; i < n; ++i) most = std::max(most, std::abs(v[i]));
  return most;
}

void DecodeIntegers(const int32_t* integers, size_t n, float scale, float* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto v = hn::ConvertTo(df, hn::LoadU(di, integers + i));
    hn::StoreU(hn::Mul(v, hn::Set(df, scale)), df, out + i);
  }
#endif
  for (; i < n; ++i) out[i] = static_cast<float>(integers[i]) * scale;
}

void EdenFoldBlock(const int32_t* integers, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles dd;
  const hn::Rebind<int32_t, Doubles> d32;
  const bool narrow = args.narrow_limit >= 0;
  for (const size_t lanes = hn::Lanes(dd); i + lanes <= n; i += lanes) {
    const auto v = hn::PromoteTo(dd, hn::LoadU(d32, integers + i));
    if (narrow) {
      FoldNarrow(v, args, acc + i);
    } else {
      FoldWide(v, args, acc + i);
    }
  }
#endif
  for (; i < n; ++i) FoldOne(integers[i], args, acc + i);
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(EdenEncodeBlock);
HWY_EXPORT(EdenIntegersOf);
HWY_EXPORT(LargestInteger);
HWY_EXPORT(DecodeIntegers);
HWY_EXPORT(EdenFoldBlock);

void EdenEncode(const EdenBlock& block, const float* x, size_t n, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EdenEncodeBlock)(block, x, n, out);
}
void EdenIntegers(const EdenBlock& block, const uint8_t* p, int32_t* out) {
  HWY_DYNAMIC_DISPATCH(EdenIntegersOf)(block, p, out);
}
int32_t EdenLargest(const int32_t* integers, size_t n) {
  return HWY_DYNAMIC_DISPATCH(LargestInteger)(integers, n);
}
void EdenDecode(const int32_t* integers, size_t n, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeIntegers)(integers, n, scale, out);
}
void EdenFold(const int32_t* integers, size_t n, const FoldArgs& args, int64_t* acc) {
  HWY_DYNAMIC_DISPATCH(EdenFoldBlock)(integers, n, args, acc);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
