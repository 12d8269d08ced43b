// Folding one block's codes, compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_BLOCK_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_BLOCK_FOLD_INL_H_
#undef TRIBUTARY_COMPRESSION_BLOCK_FOLD_INL_H_
#else
#define TRIBUTARY_COMPRESSION_BLOCK_FOLD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "compression/internal/block_format.h"
#include "compression/internal/block_kernels-inl.h"
#include "compression/internal/int8_kernels-inl.h"
#include "compression/internal/runs.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

// What a code of up to four bits stands for. Of e2m1 in halves.
HWY_INLINE const int8_t* CodeTable(const BlockFormat& format) {
  alignas(16) static constexpr int8_t kFour[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                   -8, -7, -6, -5, -4, -3, -2, -1};
  alignas(16) static constexpr int8_t kTwo[16] = {0, 1, -2, -1};
  alignas(16) static constexpr int8_t kOne[16] = {1, -1};
  alignas(16) static constexpr int8_t kE2M1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                   0, -1, -2, -3, -4, -6, -8, -12};
  if (format.code_kind == CodeKind::kE2M1) return kE2M1;
  return format.bits == 4 ? kFour : format.bits == 2 ? kTwo : kOne;
}

// A block's integer codes: where they lie if they are bytes, else unpacked to `room`.
HWY_INLINE const uint8_t* Unpack(const BlockFormat& format, const uint8_t* p, size_t n,
                                 int8_t* room) {
  if (format.bits == 8) return p;
  const int8_t* table = CodeTable(format);
  if (format.bits == 4) {
    UnpackCodes<4>(p, n, table, room);
  } else if (format.bits == 2) {
    UnpackCodes<2>(p, n, table, room);
  } else {
    UnpackCodes<1>(p, n, table, room);
  }
  return reinterpret_cast<const uint8_t*>(room);
}

// One bit an element: of two terms, one is added.
HWY_INLINE void FoldSigns(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc) {
  int64_t terms[2] = {0, 0};
  FoldOne(1, args, &terms[0]);
  FoldOne(-1, args, &terms[1]);
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::RebindToSigned<Doubles> d;
  const size_t lanes = hn::Lanes(d);
  const auto plus = hn::Set(d, terms[0]);
  const auto minus = hn::Set(d, terms[1]);
  // Eight elements, a byte, at once: as many vectors as that takes.
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; j += lanes) {
      const uint8_t bits = static_cast<uint8_t>(p[i / 8] >> j);
      const auto term = hn::IfThenElse(hn::LoadMaskBits(d, &bits), minus, plus);
      hn::StoreU(hn::Add(hn::LoadU(d, acc + i + j), term), d, acc + i + j);
    }
  }
#endif
  for (; i < n; ++i) {
    const int64_t term = terms[p[i / 8] >> i % 8 & 1];
    acc[i] = static_cast<int64_t>(static_cast<uint64_t>(acc[i]) + static_cast<uint64_t>(term));
  }
}

#if HWY_TARGET <= HWY_AVX3
// Codes of two or four bits: their sixteen terms lie in two vectors, and a code looks up its own.
// Returns how many elements of the block were folded; the rest are left to others.
template <int kBits>
HWY_INLINE size_t FoldLookedUp(const uint8_t* p, size_t n, const int8_t* table, bool narrow,
                               const FoldArgs& args, int64_t* acc) {
  HWY_ALIGN int64_t terms[16] = {};
  const Doubles dd;
  const hn::Rebind<int32_t, Doubles> d32;
  const hn::Rebind<int8_t, Doubles> d8;
  for (size_t c = 0; c < 16; c += 8) {
    // Of two bits, the codes' table repeats: an index has the next code's bits above its own.
    HWY_ALIGN int8_t codes[8];
    for (size_t j = 0; j < 8; ++j) codes[j] = table[(c + j) & ((1u << kBits) - 1)];
    const auto v = hn::PromoteTo(dd, hn::PromoteTo(d32, hn::Load(d8, codes)));
    narrow ? FoldNarrow(v, args, terms + c) : FoldWide(v, args, terms + c);
  }
  const __m512i low = _mm512_load_si512(terms), high = _mm512_load_si512(terms + 8);
  // A word of 64 bits holds 16 codes of four bits, or 32 of two.
  const __m512i steps =
      _mm512_set_epi64(7 * kBits, 6 * kBits, 5 * kBits, 4 * kBits, 3 * kBits, 2 * kBits, kBits, 0);
  constexpr size_t kPerWord = 64 / kBits;
  size_t i = 0;
  for (; i + kPerWord <= n; i += kPerWord) {
    uint64_t word;
    std::memcpy(&word, p + i * kBits / 8, 8);
    const __m512i words = _mm512_set1_epi64(static_cast<int64_t>(word));
    HWY_UNROLL(4)
    for (size_t j = 0; j < kPerWord; j += 8) {
      const __m512i shift =
          _mm512_add_epi64(steps, _mm512_set1_epi64(static_cast<int64_t>(j * kBits)));
      // The lookup takes the low four bits of each index.
      const __m512i term = _mm512_permutex2var_epi64(low, _mm512_srlv_epi64(words, shift), high);
      int64_t* const to = acc + i + j;
      _mm512_storeu_si512(to, _mm512_add_epi64(_mm512_loadu_si512(to), term));
    }
  }
  return i;
}
#endif

// Of integer and e2m1 codes; args.scale is of the block.
HWY_INLINE void FoldCodes(const BlockFormat& format, const uint8_t* codes, size_t length,
                          bool narrow, const FoldArgs& args, int64_t* acc) {
  if (format.bits == 1) return FoldSigns(codes, length, args, acc);
#if HWY_TARGET <= HWY_AVX3
  if (format.bits == 2 || format.bits == 4) {
    const int8_t* table = CodeTable(format);
    const size_t done = format.bits == 4 ? FoldLookedUp<4>(codes, length, table, narrow, args, acc)
                                         : FoldLookedUp<2>(codes, length, table, narrow, args, acc);
    codes += done * static_cast<size_t>(format.bits) / 8;
    length -= done;
    acc += done;
    if (length == 0) return;
  }
#endif
  HWY_ALIGN int8_t room[kMaxBlock];
  codes = Unpack(format, codes, length, room);
  narrow ? FoldBlock<true>(codes, length, args, acc) : FoldBlock<false>(codes, length, args, acc);
}

// Of codes of any kind; args.scale is of the block, and `narrow` says that its elements and the
// weight are.
HWY_INLINE void FoldAnyCodes(const BlockFormat& format, const uint8_t* codes, size_t length,
                             bool narrow, const FoldArgs& args, int64_t* acc) {
  if (format.code_kind == CodeKind::kE4M3) {
    narrow ? MiniFold<E4M3, true>(codes, length, args, acc)
           : MiniFold<E4M3, false>(codes, length, args, acc);
  } else if (format.code_kind == CodeKind::kE5M2) {
    narrow ? MiniFold<E5M2, true>(codes, length, args, acc)
           : MiniFold<E5M2, false>(codes, length, args, acc);
  } else {
    FoldCodes(format, codes, length, narrow, args, acc);
  }
}

// Whether no element of a block of this scale, in units of the grid, reaches 2^31.
HWY_INLINE bool NarrowScale(const BlockFormat& format, double scale) {
  return scale * static_cast<double>(format.largest) <= 0x1.fffffep30;
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
