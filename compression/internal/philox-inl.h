// Philox4x32-10 for codecs, several counters at once, compiled once for each Highway target.
#if defined(TRIBUTARY_COMPRESSION_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_COMPRESSION_PHILOX_INL_H_
#undef TRIBUTARY_COMPRESSION_PHILOX_INL_H_
#else
#define TRIBUTARY_COMPRESSION_PHILOX_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "compression/codec.h"
#include "compression/random.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// A 32-bit word of each counter in the lower half of each 64-bit lane. The upper halves hold
// garbage after the first round: products ignore them and so does the result.
template <class V>
struct PhiloxWords {
  V c0, c1, c2, c3;
};

// `keys` are the round's two key words, each in every lane.
template <class D, class V = hn::Vec<D>>
HWY_INLINE PhiloxWords<V> PhiloxRound(D d, PhiloxWords<V> c, const uint64_t* keys) {
  const hn::Repartition<uint32_t, D> d32;
  const V k0 = hn::Load(d, keys);
  const V k1 = hn::Load(d, keys + hn::Lanes(d));
  const auto p0 = hn::MulEven(hn::BitCast(d32, c.c0), hn::Set(d32, 0xD2511F53));
  const auto p1 = hn::MulEven(hn::BitCast(d32, c.c2), hn::Set(d32, 0xCD9E8D57));
  return {hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c.c1), k0), p1,
          hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c.c3), k1), p0};
}

// Stores each counter's four words, counters in order. Lane l holds counter Order(l), so that
// pairing the lanes of a 128-bit block puts them in order.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StorePhilox(D d, PhiloxWords<V> c, uint16_t* out) {
  const hn::Repartition<uint32_t, D> d32;
  const hn::Repartition<uint16_t, D> d16;
  const auto join = [&](V low, V high) HWY_ATTR {
    const auto odd = hn::BitCast(d32, hn::ShiftLeft<32>(high));
    return hn::BitCast(d, hn::OddEven(odd, hn::BitCast(d32, low)));
  };
  const auto w01 = join(c.c0, c.c1);
  const auto w23 = join(c.c2, c.c3);
  hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d, w01, w23)), d16, out);
  hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d, w01, w23)), d16, out + hn::Lanes(d16));
}
#endif

// Eight 16-bit numbers for each of `count` counters from `counter` on: the 16 bytes of Philox's
// four words. `out` has room for 8 * count, count at most 512.
HWY_INLINE void FillRandom(const EncodeContext& context, uint64_t counter, size_t count,
                           uint16_t* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint64_t> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN uint64_t order[hn::MaxLanes(d)];
  for (size_t l = 0; l < lanes; ++l) order[l] = (l % 2) * (lanes / 2) + l / 2;
  const V offset = hn::Load(d, order);
  const V tensor = hn::Set(d, uint64_t{context.tensor});
  const V round = hn::Set(d, uint64_t{context.round});
  // The key schedule lies in memory, where products and sums of other registers cannot push it out.
  HWY_ALIGN uint64_t keys[20 * hn::MaxLanes(d)];
  uint32_t k0 = static_cast<uint32_t>(context.key);
  uint32_t k1 = static_cast<uint32_t>(context.key >> 32);
  for (size_t r = 0; r < 10; ++r, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
    hn::Store(hn::Set(d, uint64_t{k0}), d, keys + 2 * r * lanes);
    hn::Store(hn::Set(d, uint64_t{k1}), d, keys + (2 * r + 1) * lanes);
  }
  // Two vectors at once: one's products fill the wait for the other's.
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const V n0 = hn::Add(hn::Set(d, counter + i), offset);
    const V n1 = hn::Add(hn::Set(d, counter + i + lanes), offset);
    PhiloxWords<V> a{n0, hn::ShiftRight<32>(n0), tensor, round};
    PhiloxWords<V> b{n1, hn::ShiftRight<32>(n1), tensor, round};
    HWY_UNROLL(10)
    for (size_t r = 0; r < 10; ++r) {
      a = PhiloxRound(d, a, keys + 2 * r * lanes);
      b = PhiloxRound(d, b, keys + 2 * r * lanes);
    }
    StorePhilox(d, a, out + 8 * i);
    StorePhilox(d, b, out + 8 * (i + lanes));
  }
#endif
  for (; i < count; ++i) {
    const PhiloxBlock words =
        RoundingBlock(context.key, context.round, context.tensor, counter + i);
    std::memcpy(out + 8 * i, words.word, sizeof words.word);
  }
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
