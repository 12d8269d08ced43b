// The exact accumulator: int64 sums on the grid, and the packed form that goes up the tree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "aggregation/update.h"
#include "base/bytes.h"

namespace tributary::aggregation {

// Elements of the flat space that one data chunk of a partial sum holds (all but the last): 256 blocks.
inline constexpr uint64_t kChunkElements = 131072;
inline constexpr uint64_t kBlockElements = 512;  // bit-packed to one width
// The most bytes of a packed chunk: 256 widths and 64 bits an element.
inline constexpr uint64_t kMaxPackedChunkBytes = 256 + 8 * kChunkElements;

// A range of the flat element space; workers own disjoint ones.
struct ElementRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Storage and arithmetic only; who counts what is the round's business. Calls on disjoint ranges may run
// at once; calls on the same range may not. The caller keeps the total weight within the grid's.
class ExactAccumulator {
 public:
  // RESOURCE_EXHAUSTED where the memory (8 B an element) cannot be had.
  static absl::StatusOr<std::unique_ptr<ExactAccumulator>> Create(std::shared_ptr<const ModelLayout> layout,
                                                                  const Grid& grid);
  ~ExactAccumulator();

  const ModelLayout& layout() const { return *layout_; }
  uint64_t chunk_count() const;  // of the packed form

  // Folds the tiles that begin within `range` of each update, tile by tile: a tile stays in the cache
  // while all updates pass over it. Range bounds are tile boundaries.
  void Fold(std::span<const EncodedUpdate* const> updates, ElementRange range);
  // Undoes Fold exactly. FAILED_PRECONDITION where the layout has MAX or FIRST tensors.
  absl::Status Subtract(const EncodedUpdate& update, ElementRange range);

  // Packs chunk `chunk` into `out` (kMaxPackedChunkBytes of room); returns the bytes used.
  size_t PackChunk(uint64_t chunk, uint8_t* out) const;
  // Checks a packed chunk: its length and widths. INVALID_ARGUMENT says what is wrong.
  absl::Status ValidateChunk(uint64_t chunk, ByteSpan packed) const;
  // Merges the part of a validated chunk that lies in `range`: adds, or takes the maximum, or, for FIRST
  // tensors, the values of the smaller `first_id` (the smallest contributor id behind the partial sum).
  void MergeChunk(uint64_t chunk, ByteSpan packed, std::string_view first_id, ElementRange range);
  // Undoes MergeChunk exactly. FAILED_PRECONDITION as Subtract.
  absl::Status SubtractChunk(uint64_t chunk, ByteSpan packed, ElementRange range);

  // Cuts the flat space into at most `parts` ranges of about equal size, at tile boundaries.
  std::vector<ElementRange> Split(int parts) const;

  std::span<const int64_t> sums() const { return {sums_, layout_->elements()}; }
  // Back to zero, for the next round; the memory stays.
  void Reset();

 private:
  ExactAccumulator(std::shared_ptr<const ModelLayout> layout, const Grid& grid);
  // The largest |S| a chunk may carry: bound * 2^f * W_max, or 2^63 - 1 for integer tensors.
  std::shared_ptr<const ModelLayout> layout_;
  Grid grid_;
  int64_t* sums_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::vector<std::string> first_ids_;  // per tile of FIRST tensors: whose values lie there
  std::vector<uint8_t> touched_;        // per tile of MAX tensors: whether anything was folded
};

// Applies the mean to a model: for MEAN tensors of floats model + lr_scaled mean handled by the server
// optimizer; see optimizer.h. This is the grid's own division: mean[i] = double(S) / double(W) * 2^-f.
double GridMean(int64_t sum, uint64_t weight, int fraction_bits);

}  // namespace tributary::aggregation
