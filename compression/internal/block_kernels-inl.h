// Packing, unpacking and small floats in vectors, compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_BLOCK_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_BLOCK_KERNELS_INL_H_
#undef TRIBUTARY_COMPRESSION_BLOCK_KERNELS_INL_H_
#else
#define TRIBUTARY_COMPRESSION_BLOCK_KERNELS_INL_H_
#endif

#include <cstdint>

#include "compression/internal/fold-inl.h"
#include "compression/internal/mini_float.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

// Code i lies in bits (i * bits) mod 8 and up of byte (i * bits) div 8. Only the low bits of each
// code are taken; a last byte that is not full is filled up with zeros.
template <int kBits>
HWY_INLINE void PackCodes(const int8_t* codes, size_t n, uint8_t* out) {
  constexpr size_t kPerByte = 8 / kBits;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kBits == 1) {  // the sign bits
    const hn::ScalableTag<int8_t> d;
    for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
      const auto v = hn::LoadU(d, codes + i);
      hn::StoreMaskBits(d, hn::Lt(v, hn::Zero(d)), out + i / 8);
    }
  } else if constexpr (kBits == 2) {
    const hn::ScalableTag<uint32_t> d;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    for (const size_t step = 4 * hn::Lanes(d); i + step <= n; i += step) {
      const auto v = hn::And(LoadBytes(d, reinterpret_cast<const uint8_t*>(codes) + i),
                             hn::Set(d, 0x03030303));
      const auto pairs = hn::Or(v, hn::ShiftRight<6>(v));
      const auto all = hn::And(hn::Or(pairs, hn::ShiftRight<12>(pairs)), hn::Set(d, 0xFF));
      hn::StoreU(hn::TruncateTo(d8, all), d8, out + i / 4);
    }
  } else {
    const hn::ScalableTag<uint16_t> d;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    for (const size_t step = 2 * hn::Lanes(d); i + step <= n; i += step) {
      const auto v =
          hn::And(LoadBytes(d, reinterpret_cast<const uint8_t*>(codes) + i), hn::Set(d, 0x0F0F));
      const auto both = hn::And(hn::Or(v, hn::ShiftRight<4>(v)), hn::Set(d, 0xFF));
      hn::StoreU(hn::TruncateTo(d8, both), d8, out + i / 2);
    }
  }
#endif
  for (; i < n; i += kPerByte) {
    uint32_t byte = 0;
    for (size_t j = 0; j < kPerByte && i + j < n; ++j) {
      const uint32_t code = kBits == 1 ? codes[i + j] < 0 : static_cast<uint8_t>(codes[i + j]);
      byte |= (code & ((1u << kBits) - 1)) << (j * kBits);
    }
    out[i / kPerByte] = static_cast<uint8_t>(byte);
  }
}

// table[code] for each code; `table` has 16 entries, of which 2^kBits are used.
template <int kBits>
HWY_INLINE void UnpackCodes(const uint8_t* p, size_t n, const int8_t* table, int8_t* out) {
  constexpr size_t kPerByte = 8 / kBits;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kBits == 1) {
    const hn::ScalableTag<int8_t> d;
    const auto minus = hn::Set(d, table[1]);
    const auto plus = hn::Set(d, table[0]);
    for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
      hn::StoreU(hn::IfThenElse(hn::LoadMaskBits(d, p + i / 8), minus, plus), d, out + i);
    }
  } else {
    // 128-bit vectors: interleaving is then in order.
    const hn::FixedTag<uint8_t, 16> d;
    const hn::Repartition<uint16_t, decltype(d)> d16;
    const auto values = hn::LoadU(d, reinterpret_cast<const uint8_t*>(table));
    auto* to = reinterpret_cast<uint8_t*>(out);
    for (; i + 16 * kPerByte <= n; i += 16 * kPerByte) {
      const auto v = hn::LoadU(d, p + i / kPerByte);
      const auto mask = hn::Set(d, (1 << kBits) - 1);
      const auto shifted = [&](auto by) {
        return hn::And(hn::BitCast(d, hn::ShiftRight<by.value>(hn::BitCast(d16, v))), mask);
      };
      const auto store = [&](hn::Vec<decltype(d)> codes, size_t at) {
        hn::StoreU(hn::TableLookupBytes(values, codes), d, to + i + at);
      };
      const auto c0 = hn::And(v, mask);
      if constexpr (kBits == 4) {
        const auto c1 = shifted(std::integral_constant<int, 4>());
        store(hn::InterleaveLower(d, c0, c1), 0);
        store(hn::InterleaveUpper(d, c0, c1), 16);
      } else {
        const auto c1 = shifted(std::integral_constant<int, 2>());
        const auto c2 = shifted(std::integral_constant<int, 4>());
        const auto c3 = shifted(std::integral_constant<int, 6>());
        const auto a = hn::BitCast(d16, hn::InterleaveLower(d, c0, c1));
        const auto b = hn::BitCast(d16, hn::InterleaveLower(d, c2, c3));
        store(hn::BitCast(d, hn::InterleaveLower(d16, a, b)), 0);
        store(hn::BitCast(d, hn::InterleaveUpper(d16, a, b)), 16);
        const auto e = hn::BitCast(d16, hn::InterleaveUpper(d, c0, c1));
        const auto g = hn::BitCast(d16, hn::InterleaveUpper(d, c2, c3));
        store(hn::BitCast(d, hn::InterleaveLower(d16, e, g)), 32);
        store(hn::BitCast(d, hn::InterleaveUpper(d16, e, g)), 48);
      }
    }
  }
#endif
  for (; i < n; ++i) {
    const uint32_t code = p[i / kPerByte] >> (i % kPerByte * kBits) & ((1u << kBits) - 1);
    out[i] = table[code];
  }
}

// Codes of x / scale, one a byte.
template <class F>
HWY_INLINE void MiniEncode(const float* x, size_t n, float scale, int8_t* codes) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  const hn::RebindToUnsigned<Floats> du;
  const hn::Rebind<uint8_t, Floats> d8;
  const auto top = hn::BitCast(du, hn::Set(df, F::kLargest));
  const auto adder = hn::Set(du, uint32_t{F::kAdder});
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    const auto bits = hn::BitCast(du, hn::Div(hn::LoadU(df, x + i), hn::Set(df, scale)));
    const auto magnitude = hn::Min(hn::And(bits, hn::Set(du, 0x7FFFFFFF)), top);
    const auto sum = hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, adder));
    const auto subnormal = hn::Sub(hn::BitCast(du, sum), adder);
    const auto odd = hn::And(hn::ShiftRight<F::kDrop>(magnitude), hn::Set(du, 1));
    constexpr uint32_t kBias = (uint32_t{1} << (F::kDrop - 1)) - 1 - F::kRebias;
    const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, kBias)), odd);
    const auto normal = hn::ShiftRight<F::kDrop>(rounded);
    const auto code =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, uint32_t{F::kNormal})), subnormal, normal);
    const auto sign = hn::ShiftLeft<31 - F::kSignShift>(hn::ShiftRight<31>(bits));
    hn::StoreU(hn::TruncateTo(d8, hn::Or(code, sign)), d8, reinterpret_cast<uint8_t*>(codes) + i);
  }
#endif
  for (; i < n; ++i) codes[i] = static_cast<int8_t>(ToMini<F>(x[i] / scale));
}

#if HWY_TARGET != HWY_SCALAR
template <class F, class DF>
HWY_INLINE hn::Vec<DF> MiniFloats(DF df, const uint8_t* p) {
  const hn::RebindToUnsigned<DF> du;
  const auto codes = hn::PromoteTo(du, LoadBytes(hn::Rebind<uint8_t, DF>(), p));
  const auto magnitude = hn::ShiftLeft<F::kDrop>(hn::And(codes, hn::Set(du, 0x7F)));
  const auto up = hn::BitCast(df, hn::Set(du, uint32_t{254 - F::kBias} << 23));
  const auto value = hn::BitCast(du, hn::Mul(hn::BitCast(df, magnitude), up));
  const auto sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(du, 0x80)));
  return hn::BitCast(df, hn::Or(value, sign));
}
#endif

template <class F, bool kNarrow>
HWY_INLINE void MiniFold(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles dd;
  for (const size_t lanes = hn::Lanes(dd); i + lanes <= n; i += lanes) {
    const auto v = hn::PromoteTo(dd, MiniFloats<F>(HalfFloats(), p + i));
    if constexpr (kNarrow) {
      FoldNarrow(v, args, acc + i);
    } else {
      FoldWide(v, args, acc + i);
    }
  }
#endif
  for (; i < n; ++i) FoldOne(static_cast<double>(FromMini<F>(p[i])), args, acc + i);
}

template <class F>
HWY_INLINE void MiniDecode(const uint8_t* p, size_t n, float scale, float* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats df;
  for (const size_t lanes = hn::Lanes(df); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(MiniFloats<F>(df, p + i), hn::Set(df, scale)), df, out + i);
  }
#endif
  for (; i < n; ++i) out[i] = FromMini<F>(p[i]) * scale;
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
