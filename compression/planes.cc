// The two-dimensional DCT, as two products with small matrices.
#include "compression/planes.h"

#include <cmath>
#include <numbers>

namespace tributary::compression {
namespace {

// Entry (k, i) of the orthonormal DCT-II of n places. libm's cos may differ in its last bits
// between machines; multiples of 2^-30 do not.
std::vector<double> Table(uint32_t n) {
  std::vector<double> table(size_t{n} * n);
  for (uint32_t k = 0; k < n; ++k) {
    const double norm = std::sqrt((k == 0 ? 1.0 : 2.0) / n);
    for (uint32_t i = 0; i < n; ++i) {
      const double angle = std::numbers::pi * (2 * i + 1) * k / (2.0 * n);
      table[size_t{k} * n + i] =
          std::ldexp(std::nearbyint(std::ldexp(norm * std::cos(angle), 30)), -30);
    }
  }
  return table;
}

}  // namespace

PlaneTransform::PlaneTransform(PlaneShape shape)
    : shape_(shape), rows_(Table(shape.rows)), columns_(Table(shape.columns)) {}

template <class T>
void PlaneTransform::Apply(const T* plane, bool back, double* out) const {
  const size_t rows = shape_.rows, columns = shape_.columns;
  // Entry (to, from) of what multiplies: forwards to is a frequency, back it is a place.
  const auto at = [back](const std::vector<double>& table, size_t n, size_t to, size_t from) {
    return back ? table[from * n + to] : table[to * n + from];
  };
  std::vector<double> half(rows * columns);  // columns done
  for (size_t r = 0; r < rows; ++r) {
    for (size_t from = 0; from < columns; ++from) {
      const auto x = static_cast<double>(plane[r * columns + from]);
      if (x == 0) continue;  // sums of grids are sparse, too
      for (size_t to = 0; to < columns; ++to) {
        half[r * columns + to] += x * at(columns_, columns, to, from);
      }
    }
  }
  for (size_t i = 0; i < rows * columns; ++i) out[i] = 0;
  for (size_t to = 0; to < rows; ++to) {
    for (size_t from = 0; from < rows; ++from) {
      const double weight = at(rows_, rows, to, from);
      for (size_t c = 0; c < columns; ++c) {
        out[to * columns + c] += weight * half[from * columns + c];
      }
    }
  }
}

void PlaneTransform::Forward(std::span<float> x) const {
  std::vector<double> out(shape_.elements());
  for (size_t first = 0; first + out.size() <= x.size(); first += out.size()) {
    Apply(x.data() + first, false, out.data());
    for (size_t i = 0; i < out.size(); ++i) x[first + i] = static_cast<float>(out[i]);
  }
}

bool PlaneTransform::Back(std::span<int64_t> x) const {
  std::vector<double> out(shape_.elements());
  for (size_t first = 0; first + out.size() <= x.size(); first += out.size()) {
    Apply(x.data() + first, true, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      if (!(std::abs(out[i]) < 0x1p62)) return false;
      x[first + i] = std::llrint(out[i]);
    }
  }
  return true;
}

}  // namespace tributary::compression
