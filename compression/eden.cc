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

// In place, unnormalised: butterflies of distance n/2, n/4, ..., 1. n is a power of two.
template <class T>
HWY_INLINE void Hadamard(T* v, size_t n) {
  size_t h = n / 2;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<T> d;
  for (const size_t lanes = hn::Lanes(d); h >= lanes; h /= 2) {
    for (size_t from = 0; from < n; from += 2 * h) {
      for (size_t i = from; i < from + h; i += lanes) {
        const auto a = hn::LoadU(d, v + i);
        const auto b = hn::LoadU(d, v + i + h);
        hn::StoreU(hn::Add(a, b), d, v + i);
        hn::StoreU(hn::Sub(a, b), d, v + i + h);
      }
    }
  }
#endif
  for (; h > 0; h /= 2) {
    for (size_t from = 0; from < n; from += 2 * h) {
      for (size_t i = from; i < from + h; ++i) {
        const T a = v[i], b = v[i + h];
        v[i] = a + b;
        v[i + h] = a - b;
      }
    }
  }
}

// +1 or -1 for each element: Philox bits, 128 for each counter.
HWY_INLINE void Signs(const EdenBlock& block, int8_t* signs) {
  HWY_ALIGN uint16_t random[kEdenMaxBlock / 16 + 8];
  const EncodeContext context{.key = block.key};
  FillRandom(context, block.first / 128, (block.size + 127) / 128, random);
  static constexpr int8_t kSigns[16] = {1, -1};
  const auto* bits = reinterpret_cast<const uint8_t*>(random) + block.first % 128 / 8;
  UnpackCodes<1>(bits, block.size, kSigns, signs);
}

template <int kBits>
HWY_INLINE void EncodeLevels(const float* z, size_t n, float factor, int8_t* codes) {
  const EdenLevels& levels = LevelsOf(kBits);
  constexpr int half = 1 << (kBits - 1);
  float limits[half];  // half-way between levels
  for (int l = 0; l + 1 < half; ++l) {
    limits[l] = 0.5f * static_cast<float>(levels.table[l] + levels.table[l + 1]);
  }
  for (size_t i = 0; i < n; ++i) {
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

template <int kBits>
HWY_INLINE void PackLevels(int8_t* codes, size_t n, uint8_t* out) {
  if constexpr (kBits == 1) {  // packed by their sign
    for (size_t i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(-codes[i]);
  }
  PackCodes<kBits>(codes, n, out);
}

// Three bits a code: two planes, the lower two bits of all codes and then the highest.
HWY_INLINE void PackEden(int bits, int8_t* codes, size_t n, uint8_t* out) {
  if (bits == 1) return PackLevels<1>(codes, n, out);
  if (bits == 2) return PackLevels<2>(codes, n, out);
  if (bits == 4) return PackLevels<4>(codes, n, out);
  PackCodes<2>(codes, n, out);
  for (size_t i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(codes[i] >> 2);
  PackLevels<1>(codes, n, out + n / 4);
}

HWY_INLINE void UnpackEden(int bits, const uint8_t* p, size_t n, int8_t* out) {
  const int8_t* table = LevelsOf(bits).table;
  if (bits == 1) return UnpackCodes<1>(p, n, table, out);
  if (bits == 2) return UnpackCodes<2>(p, n, table, out);
  if (bits == 4) return UnpackCodes<4>(p, n, table, out);
  HWY_ALIGN int8_t signs[kEdenMaxBlock];
  static constexpr int8_t kSigns[16] = {1, -1};
  UnpackCodes<2>(p, n, table, out);
  UnpackCodes<1>(p + n / 4, n, kSigns, signs);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<int8_t>(out[i] * signs[i]);
}

// Sums of products in binary64: eight of them, as in MeanMagnitude.
template <class A, class B>
HWY_INLINE double Dot(const A* a, const B* b, size_t n) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  for (size_t j = 0; i < n; ++i, ++j)
    sums[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void EdenEncodeBlock(const EdenBlock& block, const float* x, size_t n, uint8_t* out) {
  HWY_ALIGN float z[kEdenMaxBlock];
  HWY_ALIGN int8_t signs[kEdenMaxBlock];
  HWY_ALIGN int8_t codes[kEdenMaxBlock];
  const double squares = Dot(x, x, n);
  std::fill_n(out, EdenBytes(block.bits, block.size), uint8_t{0});
  if (squares < 0x1p-200) return;  // as zeros: the factor below would overflow
  Signs(block, signs);
  for (size_t i = 0; i < n; ++i) z[i] = x[i] * static_cast<float>(signs[i]);
  std::fill(z + n, z + block.size, 0.0f);
  Hadamard(z, block.size);
  const auto unit = static_cast<double>(LevelsOf(block.bits).unit);
  EncodeAny(block.bits, z, block.size, static_cast<float>(unit / std::sqrt(squares)), codes);
  PackEden(block.bits, codes, block.size, out + 4);
  UnpackEden(block.bits, out + 4, block.size, codes);
  StoreLe(static_cast<float>(squares / Dot(z, codes, block.size)), out);
}

void EdenIntegersOf(const EdenBlock& block, const uint8_t* p, int32_t* out) {
  HWY_ALIGN int8_t signs[kEdenMaxBlock];
  HWY_ALIGN int8_t codes[kEdenMaxBlock];
  UnpackEden(block.bits, p + 4, block.size, codes);
  std::copy_n(codes, block.size, out);
  Hadamard(out, block.size);
  Signs(block, signs);
  for (size_t i = 0; i < block.size; ++i) out[i] *= signs[i];
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
HWY_EXPORT(EdenFoldBlock);

void EdenEncode(const EdenBlock& block, const float* x, size_t n, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EdenEncodeBlock)(block, x, n, out);
}
void EdenIntegers(const EdenBlock& block, const uint8_t* p, int32_t* out) {
  HWY_DYNAMIC_DISPATCH(EdenIntegersOf)(block, p, out);
}
void EdenFold(const int32_t* integers, size_t n, const FoldArgs& args, int64_t* acc) {
  HWY_DYNAMIC_DISPATCH(EdenFoldBlock)(integers, n, args, acc);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
