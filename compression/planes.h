// A basis in which the updates of layers over images are sparse: the two-dimensional DCT-II of each
// plane of a tensor (Ahmed, Natarajan, Rao 1974; of updates: Peng, Quesnelle, Kingma, "DeMo:
// Decoupled Momentum Optimization", 2024).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tributary::compression {

// Planes of so many rows and columns, back to back in a tensor's last dimension; 0 x 0: none.
struct PlaneShape {
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint64_t elements() const { return uint64_t{rows} * columns; }
  bool any() const { return elements() > 0; }
  // Whether a tensor of this shape is made of such planes: its last dimension is a multiple.
  bool Divides(std::span<const uint64_t> shape) const {
    return any() && !shape.empty() && shape.back() > 0 && shape.back() % elements() == 0;
  }
};

inline constexpr uint32_t kMaxPlaneSide = 256;

// The transform of one shape, orthonormal to 1e-8. Its table is made of multiples of 2^-30, and
// sums have a fixed order, so that every machine has the same bits. Immutable, thread-safe.
class PlaneTransform {
 public:
  explicit PlaneTransform(PlaneShape shape);  // sides from 1 to kMaxPlaneSide
  // x becomes its coefficients, plane by plane, computed in binary64 and rounded once. x.size() is
  // a multiple of the planes'.
  void Forward(std::span<float> x) const;
  // The way back of sums on the grid, in place, rounded to integers (half to even). False, with x
  // spoilt, where one would leave 62 bits.
  bool Back(std::span<int64_t> x) const;

 private:
  // out = R plane C', R and C' being the tables or (back) their transposes.
  template <class T>
  void Apply(const T* plane, bool back, double* out) const;

  PlaneShape shape_;
  std::vector<double> rows_, columns_;  // [frequency][place]
};

}  // namespace tributary::compression
