// The exact accumulator: int64 sums on the grid, and the packed form that goes up the tree.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "aggregation/update.h"
#include "base/bytes.h"

namespace tributary::aggregation {

// Elements of the flat space that one data chunk of a partial sum holds (all but the last): 256
// blocks.
inline constexpr uint64_t kChunkElements = 131072;
inline constexpr uint64_t kBlockElements = 512;  // bit-packed to one width
// The most bytes of a packed chunk: 256 widths and 64 bits an element.
inline constexpr uint64_t kMaxPackedChunkBytes = 256 + 8 * kChunkElements;

// What a MAX tensor's elements hold before anything is folded: below every value that can be.
inline constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();

// Storage and arithmetic only; who counts what is the round's business. Calls on disjoint ranges
// may run at once; calls on the same range may not. The caller keeps the total weight within the
// grid's.
class ExactAccumulator {
 public:
  // RESOURCE_EXHAUSTED where the memory (8 B an element) cannot be had.
  static absl::StatusOr<std::unique_ptr<ExactAccumulator>> Create(
      std::shared_ptr<const ModelLayout> layout, const Grid& grid);
  ~ExactAccumulator();

  const ModelLayout& layout() const { return *layout_; }
  uint64_t chunk_count() const;  // of the packed form

  // Folds the tiles that begin within `range` of each update, tile by tile: a tile stays in the
  // cache while all updates pass over it (segments that codecs read whole go first). Such a tile is
  // folded whole, wherever the range ends: who shares the sums with other threads cuts between
  // tiles, as Split does.
  void Fold(std::span<const EncodedUpdate* const> updates, ElementRange range);
  // Undoes Fold exactly. FAILED_PRECONDITION where the layout has MAX or FIRST tensors.
  absl::Status Subtract(const EncodedUpdate& update, ElementRange range);

  // Packs chunk `chunk` into `out` (kMaxPackedChunkBytes of room); returns the bytes used.
  size_t PackChunk(uint64_t chunk, uint8_t* out) const;
  // The bytes that PackChunk will use for all chunks together: a look at the widths, no packing.
  uint64_t PackedBytes() const;
  // Checks a packed chunk: its length and widths. INVALID_ARGUMENT says what is wrong.
  absl::Status ValidateChunk(uint64_t chunk, ByteSpan packed) const;
  // Merges the part of a validated chunk that lies in `range`: adds, or takes the maximum, or, for
  // FIRST tensors, the values of the smaller `first_id` (the smallest contributor id behind the
  // partial sum). Range bounds are tile boundaries.
  void MergeChunk(uint64_t chunk, ByteSpan packed, std::string_view first_id, ElementRange range);
  // Undoes MergeChunk exactly. FAILED_PRECONDITION where the chunk has elements of MAX or FIRST
  // tensors.
  absl::Status SubtractChunk(uint64_t chunk, ByteSpan packed, ElementRange range);

  // Whether SubtractChunk can undo this chunk.
  bool CanSubtractChunk(uint64_t chunk) const;

  // Cuts the flat space into at most `parts` ranges of about equal size, at tile boundaries.
  std::vector<ElementRange> Split(int parts) const;

  // Until something is folded, SUM, MEAN and FIRST tensors hold 0, and MAX tensors hold kNothing.
  std::span<const int64_t> sums() const { return {sums_, layout_->elements()}; }
  // For what replaces a closed round's sums by others (SketchRecovery).
  std::span<int64_t> MutableSums() { return {sums_, layout_->elements()}; }
  // Back to zero, for the next round; the memory stays.
  void Reset();

 private:
  // How a stretch of the flat space is combined: adjacent tensors of one kind are one stretch.
  enum class Combine : uint8_t { kAdd, kMax, kFirst };
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
    Combine combine = Combine::kAdd;
    uint8_t max_width = 64;  // bits that a block of these tensors may need
  };
  enum class Direction { kAdd, kSubtract };

  ExactAccumulator(std::shared_ptr<const ModelLayout> layout, const Grid& grid);
  void FindStretches();
  void Clear();  // given zeros everywhere
  static absl::Status CheckSubtractable(bool subtractable);
  void FoldTile(const EncodedUpdate& update, uint32_t tile, int64_t* scratch);
  struct Walk;  // where the fold of one update is
  void AddToTile(std::span<const EncodedUpdate* const> updates, uint32_t tile, ElementRange range,
                 int64_t times, std::span<Walk> walks);
  bool TakesFirst(uint32_t tile, std::string_view id);
  // Block `block` of a chunk; a short last one is filled up with zeros, in `padded`.
  const int64_t* BlockOf(uint64_t chunk, uint64_t block, int64_t* padded) const;
  uint64_t ElementsOf(uint64_t chunk) const;
  const Stretch& StretchAt(uint64_t element) const;
  size_t MaxWidth(uint64_t begin, uint64_t end) const;
  void ApplyChunk(uint64_t chunk, ByteSpan packed, std::string_view first_id, ElementRange range,
                  Direction direction);
  void ApplyValues(const int64_t* values, uint64_t begin, uint64_t end, std::string_view first_id,
                   Direction direction);

  std::shared_ptr<const ModelLayout> layout_;
  Grid grid_;
  int64_t* sums_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::vector<Stretch> stretches_;  // ascending, covering all elements
  bool subtractable_ = true;        // no MAX or FIRST tensor
  std::vector<std::string>
      first_ids_;  // per tile, empty without FIRST tensors: whose values lie there
};

// The grid's own division: mean = double(S) / double(W) * 2^-f.
double GridMean(int64_t sum, uint64_t weight, int fraction_bits);

}  // namespace tributary::aggregation
