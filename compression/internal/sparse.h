// Between topk_codec.cc (checks, pieces) and sparse_index.cc (positions in a tile): how the places
// of a tile's non-zeros are written, and the top-k selection.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "compression/codec.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

enum class SparseValues : uint8_t { kFloat32 = 0, kFloat16 = 1, kInt8 = 2, kTernary = 3 };

// What top-k keeps; all of it is the sender's business alone.
struct TopKOptions {
  double fraction = 1;  // (0, 1] of the elements
  SparseValues values = SparseValues::kFloat32;
  double gain = 1;           // ternary: times the mean magnitude that is sent
  uint32_t warmup = 0;       // rounds over which the fraction falls from `from`
  double from = 0.25;        // above `fraction`, up to 1
  bool whole_model = false;  // the largest of all its tensors together
};
std::shared_ptr<const Codec> MakeTopK(const TopKOptions& options);
struct SketchForm;
std::shared_ptr<const Codec> MakeSketch(const SketchForm& form);
std::shared_ptr<const Codec> MakeRandK(uint32_t stride, SparseValues values, bool scaled);

// No segment of topk spans more: a hostile directory of empty tiles stays short.
inline constexpr uint64_t kMaxSparseTiles = 128;
inline constexpr uint32_t kBitmapTag = 15;
inline constexpr uint32_t kStreamVByteTag = 16;  // in the entry: tag 0 and 4,096 more bytes
inline constexpr size_t kBitmapBytes = kTileElements / 8;  // no places take more
inline constexpr size_t kPlacesRoom = kTileElements + 64;  // what is written a vector at a time

// A tile's entry in the directory: 0, no non-zeros; else bits 0-14 their number less one, 15-27 the
// bytes of their places, 28-31 how those are written: 0-14 Golomb-Rice with that parameter, 15 a
// bitmap; bytes above 4,096, which no places take, are so many and 4,096 of StreamVByte.
struct TileEntry {
  uint32_t count = 0;        // non-zeros, up to 32,768
  uint32_t index_bytes = 0;  // up to 4,096
  uint32_t tag = 0;
  uint32_t Word() const {
    if (count == 0) return 0;
    if (tag == kStreamVByteTag) return (count - 1) | (index_bytes + kBitmapBytes) << 15;
    return (count - 1) | index_bytes << 15 | tag << 28;
  }
  static TileEntry FromWord(uint32_t word) {
    if (word == 0) return {};
    const uint32_t bytes = word >> 15 & 0x1FFF, tag = word >> 28;
    if (tag == 0 && bytes > kBitmapBytes) {
      return {(word & 0x7FFF) + 1, bytes - static_cast<uint32_t>(kBitmapBytes), kStreamVByteTag};
    }
    return {(word & 0x7FFF) + 1, bytes, tag};
  }
};

// Appends the places of a tile's non-zeros (rising, below `length`) in the form that is smallest.
TileEntry AppendIndices(std::span<const uint16_t> places, uint32_t length,
                        std::vector<uint8_t>* out);
// The places themselves, to `out` (kPlacesRoom). INVALID_ARGUMENT says what is wrong with
// them: bytes that do not match the count, a place at or beyond `length`, bits set after the end.
absl::Status CheckIndices(const TileEntry& entry, const uint8_t* p, uint32_t length, uint16_t* out);
// The same of places that CheckIndices has passed.
void ReadIndices(const TileEntry& entry, const uint8_t* p, uint16_t* out);

// Sums lie far apart, so each is fetched when its place is decoded and added to some places later:
// those of a tile's last places when the next one's first are decoded, of another update maybe.
// Nothing is sure to be added before Drain.
class SumQueue {
 public:
  // Places decoded, and their sums fetched, before the sums of as many before them are added to. A
  // core keeps some fifty cache lines on their way into its second level; fewer leave it waiting,
  // more wait in turn.
  static constexpr size_t kBlock = 64;

  void Drain();

 private:
  friend void FoldSparseTile(SparseValues kind, const TileEntry& entry, const uint8_t* p,
                             uint64_t length, float scale, const FoldArgs& args, int64_t* acc,
                             SumQueue* queue);
  size_t count_ = 0;
  int64_t* acc_ = nullptr;
  uint16_t places_[2 * kBlock];
  int64_t terms_[2 * kBlock];
};

// acc[place] += weight * rne(value * 2^f) for a tile's non-zeros at places below `length`, of a
// tile that was checked: `p` has the places' bytes, then the values'. `scale` is of int8 and
// ternary values.
void FoldSparseTile(SparseValues kind, const TileEntry& entry, const uint8_t* p, uint64_t length,
                    float scale, const FoldArgs& args, int64_t* acc, SumQueue* queue);

// How many elements a fraction of `elements` is: rounded, at least 1.
uint64_t CountKept(double fraction, uint64_t elements);
// The threshold of the `k` largest |x|: zeros are never among them.
TensorPlan SelectLargest(std::span<const float> x, uint64_t k);

}  // namespace tributary::compression
