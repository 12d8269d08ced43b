// Count sketches (Charikar, Chen, Farach-Colton, ICALP 2002; for federated learning FetchSGD,
// Rothchild et al., ICML 2020): linear, so that sums of sketches are sketches of sums, and the
// largest elements of a sum are found in it at the root.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "compression/codec.h"

namespace tributary::compression {

// The cells of one tile of a tensor: `rows` times `columns` of a whole tile, for a shorter one of
// L elements columns * L div 32,768; a tile below kSketchShortest elements is no sketch but its
// elements. There are never more cells than elements, so cells are summed in the elements' place:
// Fold adds a tile's cells to its first sums.
struct SketchForm {
  uint32_t rows = 5;        // 1, 3 or 5
  uint32_t columns = 1024;  // 32 to 32,768 / rows
  double recover = 0.01;    // of a tensor's elements, that the root finds; not on the wire
  uint32_t Parameter() const { return rows | columns << 4; }
  uint64_t TileCells(uint64_t length) const;
  uint64_t Cells(uint64_t n) const;  // of a tensor
};
inline constexpr uint64_t kSketchShortest = 1024;
inline constexpr uint32_t kSketchLeastColumns = 32;

// The share of a tensor's elements that sums of such sketches tell apart at most: as many as a row
// has columns. A larger `recover` finds more elements than there are cells to tell them by.
inline double MostRecovered(const SketchForm& form) {
  return static_cast<double>(form.columns) / static_cast<double>(kTileElements);
}
// The share up to which, with five rows, what is left over grows no faster than the sum of all
// updates even where those have no large elements: an eighth of the columns. All elements are
// estimated before any is taken out, so each brings the collisions of the others with it, and above
// this share such leftovers grow by a factor each round. With one and three rows they do at any
// share. Updates with large elements, and models that correct what noise did, bear more.
inline double SafelyRecovered(const SketchForm& form) {
  return form.rows < 5 ? 0 : MostRecovered(form) / 8;
}

// The form of a sketch codec, or of one behind a policy's rule; null for other codecs.
const SketchForm* SketchFormOf(const Codec& codec);
// A tensor's hashes come from this; the key of its tile t is this + t. All clients and rounds share
// it: `shared_key` as in EncodeContext.
uint64_t SketchKey(uint64_t shared_key, uint32_t tensor);
// The key that a sketch payload carries, of its first tile; 0 of a payload too short.
uint64_t SketchKeyOf(const PiecedBytes& payload);

// Adds value to element i's cells of a tensor of n elements; `cells` has form.Cells(n).
void SketchAdd(const SketchForm& form, uint64_t key, uint64_t n, uint64_t i, double value,
               std::span<double> cells);
// The estimate of every element: the median over rows of the cell times the sign.
void SketchEstimate(const SketchForm& form, uint64_t key, std::span<const double> cells,
                    std::span<float> out);
// The k elements of `n` with the largest estimates, in order of their places, each no larger than
// `bound` in magnitude; they are taken out of the cells. Elements estimated as 0 are none of them.
std::vector<std::pair<uint64_t, double>> SketchRecover(const SketchForm& form, uint64_t key,
                                                       uint64_t n, uint64_t k, double bound,
                                                       std::span<double> cells);

}  // namespace tributary::compression
