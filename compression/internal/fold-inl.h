// The fold's vector arithmetic, compiled once for each Highway target (hence the toggled guard).
#if defined(TRIBUTARY_COMPRESSION_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_FOLD_INL_H_
#undef TRIBUTARY_COMPRESSION_FOLD_INL_H_
#else
#define TRIBUTARY_COMPRESSION_FOLD_INL_H_
#endif

#include <cstdint>

#include "compression/internal/scalar.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// Vectors of double and what has as many lanes: the unit that the folds work in.
using Doubles = hn::ScalableTag<double>;
using Bits64 = hn::RebindToUnsigned<Doubles>;
using Floats = hn::ScalableTag<float>;
using HalfFloats = hn::Rebind<float, Doubles>;  // as many lanes as Doubles

// Payload bytes have any alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* p) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), p));
}
template <class D>
HWY_INLINE void StoreBytes([[maybe_unused]] D d, hn::Vec<D> v, uint8_t* p) {
  hn::StoreU(hn::BitCast(hn::Repartition<uint8_t, D>(), v), hn::Repartition<uint8_t, D>(), p);
}

// acc[lane] += weight * rne(v * 2^f) where |q| < 2^31 and weight < 2^31: the low 32 bits of the sum
// with the magic number are q itself. v * 2^f is exact, so a fused and an unfused sum agree.
HWY_INLINE void FoldNarrow(hn::Vec<Doubles> v, const FoldArgs& args, int64_t* acc) {
  const Doubles dd;
  const hn::Repartition<int32_t, Doubles> di32;
  const hn::RebindToSigned<Doubles> di64;
  const auto q = hn::BitCast(di32, hn::MulAdd(v, hn::Set(dd, args.scale), hn::Set(dd, kMagic)));
  const auto product = hn::MulEven(q, hn::Set(di32, static_cast<int32_t>(args.weight)));
  hn::StoreU(hn::Add(hn::LoadU(di64, acc), product), di64, acc);
}

// The same for |q| <= 2^51 and any weight: the product modulo 2^64 from three 32x32-bit products.
HWY_INLINE void FoldWide(hn::Vec<Doubles> v, const FoldArgs& args, int64_t* acc) {
  const Doubles dd;
  const Bits64 du64;
  const hn::RebindToSigned<Doubles> di64;
  const hn::Repartition<uint32_t, Doubles> du32;
  const auto biased = hn::MulAdd(v, hn::Set(dd, args.scale), hn::Set(dd, kMagic));
  const auto q = hn::Sub(hn::BitCast(du64, biased), hn::Set(du64, kMagicBits));
  const auto low = hn::BitCast(du32, hn::Set(du64, args.weight & 0xFFFFFFFF));
  const auto high = hn::BitCast(du32, hn::Set(du64, args.weight >> 32));
  const auto q32 = hn::BitCast(du32, q);
  const auto q_high = hn::BitCast(du32, hn::ShiftRight<32>(q));
  const auto cross = hn::Add(hn::MulEven(q_high, low), hn::MulEven(q32, high));
  const auto product = hn::Add(hn::MulEven(q32, low), hn::ShiftLeft<32>(cross));
  hn::StoreU(hn::BitCast(di64, hn::Add(hn::BitCast(du64, hn::LoadU(di64, acc)), product)), di64,
             acc);
}

#endif  // HWY_TARGET != HWY_SCALAR

#if HWY_TARGET <= HWY_AVX3
// A 64-bit product is one instruction here: no element need be looked at first. Whole vectors; the
// elements done are returned. The magic number's bits, times the weight, are taken off the sum: all
// of this is modulo 2^64.
template <class Promote>
HWY_INLINE size_t FoldVectors(const uint8_t* p, size_t width, size_t n, const FoldArgs& args,
                              int64_t* acc, Promote promote) {
  const Doubles dd;
  const Bits64 du;
  const auto magic = hn::Set(dd, kMagic);
  const auto scale = hn::Set(dd, args.scale);
  const auto weight = hn::Set(du, args.weight);
  const auto bias = hn::Set(du, args.weight * kMagicBits);
  auto* sums = reinterpret_cast<uint64_t*>(acc);
  const size_t lanes = hn::Lanes(dd);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto biased = hn::BitCast(du, hn::MulAdd(promote(p + width * i), scale, magic));
    const auto sum = hn::Sub(hn::LoadU(du, sums + i), bias);
    hn::StoreU(hn::Add(sum, hn::Mul(biased, weight)), du, sums + i);
  }
  return i;
}
#endif

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
