// Codec fp16: IEEE 754 binary16, rounded to nearest even.
#include <bit>

#include "compression/internal/element_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/fp16.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/fold_many-inl.h"
#include "compression/internal/half-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

struct Fp16Format {
  static float ToFloatOne(uint16_t bits) { return HalfToFloat(bits); }
  static uint16_t EncodeOne(float x) { return FloatToHalf(x); }
  static constexpr size_t kWidth = 2;
#if HWY_TARGET != HWY_SCALAR
  using Integers = Shorts;
  // Highway's own conversions where the CPU converts; else the scalar functions' arithmetic in
  // lanes.
  template <class DF, class V16>
  static HWY_INLINE hn::Vec<DF> Widen(DF df, V16 v) {
#if HWY_TARGET <= HWY_AVX2
    return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), v));
#else
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::PromoteTo(du, v);
    const auto shifted = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
    const auto magnitude = hn::Mul(hn::BitCast(df, shifted), hn::Set(df, 0x1p112f));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
    return hn::Or(magnitude, hn::BitCast(df, sign));
#endif
  }
  static HWY_INLINE hn::Vec<Doubles> Promote(const uint8_t* p) {
    return hn::PromoteTo(Doubles(), Widen(HalfFloats(), LoadBytes(QuarterShorts(), p)));
  }
  static HWY_INLINE hn::Vec<Floats> ToFloat(hn::Vec<HalfShorts> v) { return Widen(Floats(), v); }
  static HWY_INLINE hn::Vec<HalfShorts> Encode(hn::Vec<Floats> v) {
#if HWY_TARGET <= HWY_AVX2
    return hn::BitCast(HalfShorts(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Floats>(), v));
#else
    const Floats df;
    const hn::RebindToUnsigned<Floats> du;
    const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du, v)), hn::Set(du, 0x8000));
    const auto absolute = hn::Abs(v);
    const auto bits = hn::BitCast(du, absolute);
    const auto tiny =
        hn::Sub(hn::BitCast(du, hn::Add(absolute, hn::Set(df, 0.5f))), hn::Set(du, 0x3F000000));
    const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1));
    const auto rebased = hn::Sub(bits, hn::Set(du, (112u << 23) - 0xFFF));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
    const auto is_tiny = hn::RebindMask(du, hn::Lt(absolute, hn::Set(df, 0x1p-14f)));
    return hn::TruncateTo(HalfShorts(), hn::Or(hn::IfThenElse(is_tiny, tiny, normal), sign));
#endif
  }
#endif
};

void Fp16Fold(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  FoldHalves<Fp16Format>(p, n, args, acc);
}
void Fp16FoldMany(const ManyRun* runs, size_t count, size_t n, const FoldArgs& args, int64_t* acc) {
  FoldManyNumbers<Fp16Format>(runs, count, n, args, acc, Fp16Fold);
}
uint32_t Fp16Max(const uint8_t* p, size_t n) { return MaxHalves(p, n); }
void Fp16Decode(const uint8_t* p, size_t n, float* out) { DecodeHalves<Fp16Format>(p, n, out); }
void Fp16Encode(const float* x, size_t n, uint8_t* out) { EncodeHalves<Fp16Format>(x, n, out); }

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Fp16Fold);
HWY_EXPORT(Fp16FoldMany);
HWY_EXPORT(Fp16Max);
HWY_EXPORT(Fp16Decode);
HWY_EXPORT(Fp16Encode);

std::shared_ptr<const Codec> MakeFp16() {
  ElementFormat format = HalfElements(CodecId::kFp16, "fp16");
  format.largest_finite = 0x7BFF;
  format.first_overflow = 0x477FF000;
  format.value = [](uint32_t m) {
    return static_cast<double>(HalfToFloat(static_cast<uint16_t>(m)));
  };
  format.max_magnitude = [](const uint8_t* p, size_t n) {
    return HWY_DYNAMIC_DISPATCH(Fp16Max)(p, n);
  };
  format.fold = [](const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
    HWY_DYNAMIC_DISPATCH(Fp16Fold)(p, n, args, acc);
  };
  format.fold_many = [](const ManyRun* runs, size_t count, size_t n, const FoldArgs& args,
                        int64_t* acc) {
    HWY_DYNAMIC_DISPATCH(Fp16FoldMany)(runs, count, n, args, acc);
  };
  format.decode = [](const uint8_t* p, size_t n, float* out) {
    HWY_DYNAMIC_DISPATCH(Fp16Decode)(p, n, out);
  };
  format.append = [](std::span<const float> x, std::vector<uint8_t>* out) {
    HWY_DYNAMIC_DISPATCH(Fp16Encode)(x.data(), x.size(), Grow(out, 2 * x.size()));
  };
  return std::make_shared<ElementCodec>(std::move(format));
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
