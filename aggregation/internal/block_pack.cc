// Highway kernels of the bit-packing, compiled for every target and chosen at run time.
#include "aggregation/internal/block_pack.h"

#include <bit>
#include <cstring>

// The portable target too, so that tests can hold every target against every other.
#ifndef HWY_COMPILE_ALL_ATTAINABLE
#define HWY_COMPILE_ALL_ATTAINABLE
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregation/internal/block_pack.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Must come after foreach_target.h.
#include "hwy/highway.h"

static_assert(std::endian::native == std::endian::little, "the wire form is written as words");

HWY_BEFORE_NAMESPACE();
namespace tributary::aggregation::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::CappedTag<uint64_t, kLanes>;

// Bytes of any alignment as words. The plain scalar target cannot cast between lane widths.
template <class D>
hn::Vec<D> LoadWords([[maybe_unused]] D d, const uint8_t* bytes) {
#if HWY_TARGET == HWY_SCALAR
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return hn::Set(d, word);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), bytes));
#endif
}
template <class D>
void StoreWords([[maybe_unused]] D d, hn::Vec<D> words, uint8_t* bytes) {
#if HWY_TARGET == HWY_SCALAR
  const uint64_t word = hn::GetLane(words);
  std::memcpy(bytes, &word, sizeof(word));
#else
  const hn::Repartition<uint8_t, D> d8;
  hn::StoreU(hn::BitCast(d8, words), d8, bytes);
#endif
}

size_t BlockWidth(const int64_t* values) {
  const hn::CappedTag<int64_t, kLanes> d;
  const size_t lanes = hn::Lanes(d);
  auto any = hn::Zero(d);    // a bit that is set anywhere
  auto below = hn::Zero(d);  // a bit that differs from its value's sign
  for (size_t i = 0; i < kBlockValues; i += lanes) {
    const auto v = hn::LoadU(d, values + i);
    any = hn::Or(any, v);
    below = hn::Or(below, hn::Xor(v, hn::BroadcastSignBit(v)));
  }
  int64_t any_lanes[kLanes];
  int64_t below_lanes[kLanes];
  hn::StoreU(any, d, any_lanes);
  hn::StoreU(below, d, below_lanes);
  uint64_t all_any = 0;
  uint64_t all_below = 0;
  for (size_t i = 0; i < lanes; ++i) {
    all_any |= static_cast<uint64_t>(any_lanes[i]);
    all_below |= static_cast<uint64_t>(below_lanes[i]);
  }
  return all_any == 0 ? 0 : 1 + std::bit_width(all_below);
}

void PackBlock(const int64_t* values, size_t width, uint8_t* out) {
  const Words d;
  const auto mask = hn::Set(d, width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1);
  const auto* words = reinterpret_cast<const uint64_t*>(values);
  if (width == 0) return;
  for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    uint8_t* to = out + 8 * lane;
    auto word = hn::Zero(d);
    size_t used = 0;  // bits of `word`
    for (size_t row = 0; row < kRows; ++row) {
      const auto v = hn::And(hn::LoadU(d, words + row * kLanes + lane), mask);
      word = hn::Or(word, hn::ShiftLeftSame(v, static_cast<int>(used)));
      used += width;
      if (used < 64) continue;
      StoreWords(d, word, to);
      to += 8 * kLanes;
      used -= 64;
      // What did not fit starts the next word.
      word = used == 0 ? hn::Zero(d) : hn::ShiftRightSame(v, static_cast<int>(width - used));
    }
  }
}

enum class Into { kStore, kAdd, kSubtract };

template <Into kInto>
void Unpack(const uint8_t* packed, size_t width, int64_t* out) {
  const Words d;
  const size_t lanes = hn::Lanes(d);
  auto* words = reinterpret_cast<uint64_t*>(out);
  if (width == 0) {
    if (kInto != Into::kStore) return;
    for (size_t i = 0; i < kBlockValues; i += lanes) hn::StoreU(hn::Zero(d), d, words + i);
    return;
  }
  const auto mask = hn::Set(d, width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1);
  const auto sign = hn::Set(d, uint64_t{1} << (width - 1));
  for (size_t lane = 0; lane < kLanes; lane += lanes) {
    const uint8_t* from = packed + 8 * lane;
    auto word = LoadWords(d, from);
    size_t used = 0;  // bits of `word`
    for (size_t row = 0; row < kRows; ++row) {
      auto v = hn::ShiftRightSame(word, static_cast<int>(used));
      used += width;
      if (used >= 64) {
        used -= 64;
        // The last row ends with its word: there is none after it.
        if (row + 1 < kRows) {
          from += 8 * kLanes;
          word = LoadWords(d, from);
        }
        if (used > 0) v = hn::Or(v, hn::ShiftLeftSame(word, static_cast<int>(width - used)));
      }
      // Extends the sign: AVX2 has no arithmetic shift of 64 bits.
      v = hn::Sub(hn::Xor(hn::And(v, mask), sign), sign);
      uint64_t* to = words + row * kLanes + lane;
      if (kInto == Into::kAdd) v = hn::Add(hn::LoadU(d, to), v);
      if (kInto == Into::kSubtract) v = hn::Sub(hn::LoadU(d, to), v);
      hn::StoreU(v, d, to);
    }
  }
}

void UnpackStore(const uint8_t* packed, size_t width, int64_t* out) {
  Unpack<Into::kStore>(packed, width, out);
}
void UnpackAdd(const uint8_t* packed, size_t width, int64_t* out) {
  Unpack<Into::kAdd>(packed, width, out);
}
void UnpackSubtract(const uint8_t* packed, size_t width, int64_t* out) {
  Unpack<Into::kSubtract>(packed, width, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace tributary::aggregation::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::aggregation::internal {

HWY_EXPORT(BlockWidth);
HWY_EXPORT(PackBlock);
HWY_EXPORT(UnpackStore);
HWY_EXPORT(UnpackAdd);
HWY_EXPORT(UnpackSubtract);

size_t BlockWidth(const int64_t* values) { return HWY_DYNAMIC_DISPATCH(BlockWidth)(values); }
void PackBlock(const int64_t* values, size_t width, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(PackBlock)(values, width, out);
}
void UnpackBlock(const uint8_t* packed, size_t width, int64_t* out) {
  HWY_DYNAMIC_DISPATCH(UnpackStore)(packed, width, out);
}
void UnpackAddBlock(const uint8_t* packed, size_t width, int64_t* out) {
  HWY_DYNAMIC_DISPATCH(UnpackAdd)(packed, width, out);
}
void UnpackSubtractBlock(const uint8_t* packed, size_t width, int64_t* out) {
  HWY_DYNAMIC_DISPATCH(UnpackSubtract)(packed, width, out);
}

}  // namespace tributary::aggregation::internal
#endif  // HWY_ONCE
