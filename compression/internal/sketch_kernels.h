// Between sketch.cc (payloads, what the root finds) and sketch_kernels.cc: one tile's cells.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/philox.h"

namespace tributary::compression {

// Of a tile that is long enough for cells.
struct SketchTile {
  uint64_t key = 0;
  uint32_t rows = 5;     // 1, 3 or 5
  uint32_t columns = 0;  // rows * columns <= 32,768
};
inline constexpr uint32_t kSketchMostRows = 5;

// Where an element of a tile goes in each row: 25 bits of its Philox block a row, 24 for the place
// and one for the sign. This scalar form defines the values.
class SketchHash {
 public:
  SketchHash(const SketchTile& tile, uint64_t element) : columns_(tile.columns) {
    const PhiloxBlock words = Philox4x32(tile.key, {static_cast<uint32_t>(element), 0, 0, 0});
    low_ = words[0] | uint64_t{words[1]} << 32;
    high_ = words[2] | uint64_t{words[3]} << 32;
  }
  uint32_t Cell(uint32_t row) const {
    return static_cast<uint32_t>(row * columns_ + ((Bits(row) & 0xFFFFFF) * columns_ >> 24));
  }
  bool Minus(uint32_t row) const { return (Bits(row) >> 24 & 1) != 0; }

 private:
  uint64_t Bits(uint32_t row) const {
    const uint32_t at = 25 * row;
    if (at >= 64) return high_ >> (at - 64);
    return at + 25 <= 64 ? low_ >> at : low_ >> at | high_ << (64 - at);
  }
  const uint64_t columns_;
  uint64_t low_ = 0, high_ = 0;
};

// Adds n elements to their cells, each cell's in the order of elements.
void SketchAddTile(const SketchTile& tile, const float* x, size_t n, double* cells);
// The median over rows of each element's cell times its sign, rounded to float.
void SketchEstimateTile(const SketchTile& tile, const float* cells, size_t n, float* out);
void SketchEstimateTile(const SketchTile& tile, const double* cells, size_t n, float* out);

}  // namespace tributary::compression
