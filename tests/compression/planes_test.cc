// The DCT of planes against its definition, and back.
#include "compression/planes.h"

#include <cmath>
#include <numbers>

#include "codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

// Coefficient (u, v) of a plane by the definition.
double Coefficient(const float* plane, uint32_t rows, uint32_t columns, uint32_t u, uint32_t v) {
  double sum = 0;
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t c = 0; c < columns; ++c) {
      sum += static_cast<double>(plane[r * columns + c]) *
             std::cos(std::numbers::pi * (r + 0.5) * u / rows) *
             std::cos(std::numbers::pi * (c + 0.5) * v / columns);
    }
  }
  const double norm_u = u == 0 ? 1.0 / rows : 2.0 / rows;
  const double norm_v = v == 0 ? 1.0 / columns : 2.0 / columns;
  return sum * std::sqrt(norm_u * norm_v);
}

TEST(PlaneTransform, IsTheOrthonormalDctOfEachPlane) {
  for (const auto& [rows, columns] : {std::pair{28u, 28u}, {1u, 5u}, {3u, 1u}, {7u, 4u}}) {
    const size_t plane = size_t{rows} * columns;
    const std::vector<float> x = RandomFloats(rows, 3 * plane);
    std::vector<float> y = x;
    PlaneTransform({rows, columns}).Forward(y);
    for (size_t p = 0; p < 3; ++p) {
      for (uint32_t u = 0; u < rows; ++u) {
        for (uint32_t v = 0; v < columns; ++v) {
          const double wanted = Coefficient(x.data() + p * plane, rows, columns, u, v);
          ASSERT_NEAR(static_cast<double>(y[p * plane + u * columns + v]), wanted, 1e-5)
              << rows << " " << columns << " " << p << " " << u << " " << v;
        }
      }
    }
  }
}

TEST(PlaneTransform, BringsSumsBackAndRefusesWhatLeavesTheGrid) {
  const PlaneTransform transform({28, 28});
  const std::vector<float> x = RandomFloats(3, 2 * 784);
  std::vector<float> y = x;
  transform.Forward(y);
  std::vector<int64_t> sums(y.size());
  for (size_t i = 0; i < y.size(); ++i) sums[i] = std::llrint(std::ldexp(y[i], 40));
  ASSERT_TRUE(transform.Back(sums));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(std::ldexp(static_cast<double>(sums[i]), -40), static_cast<double>(x[i]), 1e-5);
  }
  // A single coefficient spreads over the plane: 2^62 of the constant one is 2^62 / 28 each.
  std::vector<int64_t> one(784);
  one[0] = int64_t{1} << 62;
  ASSERT_TRUE(transform.Back(one));
  EXPECT_NEAR(static_cast<double>(one[5]), 0x1p62 / 28, 0x1p62 / 28 * 1e-7);
  std::vector<int64_t> all(784, (int64_t{1} << 61));
  EXPECT_FALSE(transform.Back(all));
}

TEST(PlaneShape, DividesTheLastDimensionAlone) {
  const PlaneShape shape{28, 28};
  EXPECT_TRUE(shape.Divides(std::vector<uint64_t>{96, 784}));
  EXPECT_TRUE(shape.Divides(std::vector<uint64_t>{3 * 784}));
  EXPECT_FALSE(shape.Divides(std::vector<uint64_t>{784, 96}));
  EXPECT_FALSE(shape.Divides(std::vector<uint64_t>{96, 0}));
  EXPECT_FALSE(shape.Divides(std::vector<uint64_t>{}));
  EXPECT_FALSE(PlaneShape{}.Divides(std::vector<uint64_t>{96, 784}));
}

}  // namespace
}  // namespace tributary::compression
