// Codec bf16: the upper half of binary32 (1 sign, 8 exponent, 7 mantissa bits), rounded to nearest
// even: the bfloat16 of Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019.
#include <bit>

#include "compression/internal/element_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/bf16.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/fold_many-inl.h"
#include "compression/internal/half-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

struct Bf16Format {
  static float ToFloatOne(uint16_t bits) { return Bf16ToFloat(bits); }
  static uint16_t EncodeOne(float x) { return FloatToBf16(x); }
  static constexpr size_t kWidth = 2;
#if HWY_TARGET != HWY_SCALAR
  using Integers = Shorts;
  static HWY_INLINE hn::Vec<Doubles> Promote(const uint8_t* p) {
    const hn::Rebind<uint32_t, Doubles> du;
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, LoadBytes(QuarterShorts(), p)));
    return hn::PromoteTo(Doubles(), hn::BitCast(HalfFloats(), wide));
  }
  static HWY_INLINE hn::Vec<Floats> ToFloat(hn::Vec<HalfShorts> v) {
    const hn::RebindToUnsigned<Floats> du;
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(du, v)));
  }
  static HWY_INLINE hn::Vec<HalfShorts> Encode(hn::Vec<Floats> v) {
    const hn::RebindToUnsigned<Floats> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto sum = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
    return hn::TruncateTo(HalfShorts(), hn::ShiftRight<16>(sum));
  }
#endif
};

void Bf16Fold(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  FoldHalves<Bf16Format>(p, n, args, acc);
}
void Bf16FoldMany(const ManyRun* runs, size_t count, size_t n, const FoldArgs& args, int64_t* acc) {
  FoldManyNumbers<Bf16Format>(runs, count, n, args, acc, Bf16Fold);
}
uint32_t Bf16Max(const uint8_t* p, size_t n) { return MaxHalves(p, n); }
void Bf16Decode(const uint8_t* p, size_t n, float* out) { DecodeHalves<Bf16Format>(p, n, out); }
void Bf16Encode(const float* x, size_t n, uint8_t* out) { EncodeHalves<Bf16Format>(x, n, out); }

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Bf16Fold);
HWY_EXPORT(Bf16FoldMany);
HWY_EXPORT(Bf16Max);
HWY_EXPORT(Bf16Decode);
HWY_EXPORT(Bf16Encode);

std::shared_ptr<const Codec> MakeBf16() {
  ElementFormat format = HalfElements(CodecId::kBf16, "bf16");
  format.largest_finite = 0x7F7F;
  format.first_overflow = 0x7F7F8000;
  format.value = [](uint32_t m) {
    return static_cast<double>(Bf16ToFloat(static_cast<uint16_t>(m)));
  };
  format.max_magnitude = [](const uint8_t* p, size_t n) {
    return HWY_DYNAMIC_DISPATCH(Bf16Max)(p, n);
  };
  format.fold = [](const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
    HWY_DYNAMIC_DISPATCH(Bf16Fold)(p, n, args, acc);
  };
  format.fold_many = [](const ManyRun* runs, size_t count, size_t n, const FoldArgs& args,
                        int64_t* acc) {
    HWY_DYNAMIC_DISPATCH(Bf16FoldMany)(runs, count, n, args, acc);
  };
  format.decode = [](const uint8_t* p, size_t n, float* out) {
    HWY_DYNAMIC_DISPATCH(Bf16Decode)(p, n, out);
  };
  format.append = [](std::span<const float> x, std::vector<uint8_t>* out) {
    HWY_DYNAMIC_DISPATCH(Bf16Encode)(x.data(), x.size(), Grow(out, 2 * x.size()));
  };
  return std::make_shared<ElementCodec>(std::move(format));
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
