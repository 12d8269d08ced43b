// Between the sparse codecs (topk.cc, topk_fold.cc, sparse_index.cc, randk.cc, zeros.cc) and their
// kernels in sparse_kernels.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compression/internal/scalar.h"
#include "compression/internal/sparse.h"

namespace tributary::compression {

// What kernels that keep some of n elements may write beyond the last one kept: a vector.
inline constexpr size_t kKeptRoom = 64;
static_assert(kPlacesRoom >= kTileElements + kKeptRoom);

// Those of n floats whose |bits| are in [low, high], in order, to `out` (room for n + kKeptRoom);
// their number is returned. Both limits below 2^31, `low` above 0.
size_t CollectBetween(const float* x, size_t n, uint32_t low, uint32_t high, float* out);
// Those whose |bits| are above `limit`, and their indices plus `base` (at most 65,535).
size_t CollectAbove(const float* x, size_t n, uint32_t limit, uint32_t base, uint16_t* places,
                    float* values);
// The index after the `ties`-th of n floats whose |bits| are just `bits` (after the last where
// there are fewer, 0 where there is none); `ties` is lowered by those found.
size_t AfterTies(const float* x, size_t n, uint32_t bits, uint64_t* ties);
// Whether one of n floats is neither 0 nor -0.
bool AnyNonzero(const float* x, size_t n);

// Values as top-k writes them. `scale` is above 0, and no |value| above 127 times it.
void QuantizeKept(const float* x, size_t n, float scale, uint8_t* out);
// A bit a value, set where it is below 0; `out` has (n + 7) / 8 bytes.
void PackSigns(const float* x, size_t n, uint8_t* out);

// What each of n values adds to its sum: weight * rne(value * scale) modulo 2^64, of values as
// float32s, binary16s, int8s.
void TermsOfFloats(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms);
void TermsOfHalves(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms);
void TermsOfInt8s(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* terms);
// Of signs, a bit each: `positive` where it is 0, -positive where it is 1.
void TermsOfSigns(const uint8_t* p, size_t n, int64_t positive, int64_t* terms);

// The places of a tile whose gaps are Golomb-Rice coded, that CheckIndices has passed; `out` has
// room for kPlacesRoom.
void RicePlaces(const TileEntry& entry, const uint8_t* p, uint16_t* out);

// sums[i] += more[i]
void AddSums(const int64_t* more, size_t n, int64_t* sums);

// The places of randk's strata [from, from + count) of one tile, `from` a multiple of 4 and `count`
// at most kStrataAtOnce: j * stride + floor(word * stride / 2^32), the word being number j of the
// tile's random ones.
inline constexpr size_t kStrataAtOnce = 1024;
void StrataPlaces(uint64_t key, uint32_t tile, uint32_t stride, size_t from, size_t count,
                  uint32_t* places);

}  // namespace tributary::compression
