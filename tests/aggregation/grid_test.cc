// Promises of the grid: the proof, by hand calculation, and what it refuses.
#include "aggregation/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;

GridRequest Weighing(uint64_t max_weight) {
  GridRequest request;
  request.max_weight = max_weight;
  return request;
}

TEST(ProveGridTest, GivesTheLargestBoundThatIsProved) {
  struct Row {
    uint64_t max_weight;
    int fraction_bits;
    bool fractional;
    double bound;
  };
  // By hand: the largest 2^b with 2^b * 2^f * W < 2^63 and b + f <= 50.
  const Row rows[] = {
      {uint64_t{1} << 20, 30, false, 4096},  // b + 30 + 20 < 63
      {1'000'000, 30, false, 8192},          // 2^13 * 2^30 * 10^6 = 8.796e18 < 9.223e18
      {(uint64_t{1} << 20) - 1, 30, false, 8192},
      {(uint64_t{1} << 20) + 1, 30, false, 4096},
      {1, 30, false, 1048576},  // held by b + f <= 50
      {(uint64_t{1} << 13) - 1, 30, false, 1048576},
      {uint64_t{1} << 13, 30, false, 524288},  // 2^50 * 2^13 is 2^63, which is not under it
      {1024, 40, false, 1024},                 // held by b + f <= 50
      {100, 30, true, 1024},  // W = 6,553,600: 2^63 / W = 1.407e12, the power of two below is 2^40
  };
  for (const Row& row : rows) {
    GridRequest request = Weighing(row.max_weight);
    request.fraction_bits = row.fraction_bits;
    request.fractional_weights = row.fractional;
    std::string note;
    const auto grid = ProveGrid(request, &note);
    ASSERT_TRUE(grid.ok()) << grid.status();
    EXPECT_EQ(grid->bound, row.bound) << row.max_weight;
    EXPECT_EQ(grid->fraction_bits, row.fraction_bits);
    EXPECT_EQ(grid->max_weight, row.fractional ? row.max_weight * 65536 : row.max_weight);
    EXPECT_EQ(grid->weight_fraction_bits, row.fractional ? 16 : 0);
    EXPECT_EQ(note, "");
  }
}

TEST(ProveGridTest, TakesTheWishedBoundDownToAPowerOfTwo) {
  GridRequest request = Weighing(1000);
  for (const auto& [wished, got] :
       {std::pair{100.0, 64.0}, {64.0, 64.0}, {0.75, 0.5}, {3.0, 2.0}}) {
    request.bound = wished;
    const auto grid = ProveGrid(request);
    ASSERT_TRUE(grid.ok()) << grid.status();
    EXPECT_EQ(grid->bound, got);
    EXPECT_EQ(grid->fraction_bits, 30);
  }
}

TEST(ProveGridTest, LowersFractionBitsWhereTheBoundWouldBeTooLittleAndSaysSo) {
  // W = 2^30: b + f < 33. f = 30 would leave b = 2; 16 = 2^4 needs f = 28.
  GridRequest request = Weighing(uint64_t{1} << 30);
  std::string note;
  const auto grid = ProveGrid(request, &note);
  ASSERT_TRUE(grid.ok()) << grid.status();
  EXPECT_EQ(grid->fraction_bits, 28);
  EXPECT_EQ(grid->bound, 16);
  EXPECT_THAT(note, HasSubstr("from 30 to 28"));

  request.bound = 1;  // less is wished: no need to
  const auto small = ProveGrid(request);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->fraction_bits, 30);
  EXPECT_EQ(small->bound, 1);

  request.bound = 256;  // more is wished: b = 8 needs f = 24
  const auto large = ProveGrid(request);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->fraction_bits, 24);
  EXPECT_EQ(large->bound, 256);
}

TEST(ProveGridTest, RefusesWithTheNumbersWhereNothingDoes) {
  // W = 2^40: b + f < 23; a bound of 16 leaves f = 18, under the least of 20.
  const auto grid = ProveGrid(Weighing(uint64_t{1} << 40));
  EXPECT_EQ(grid.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(grid.status().message(), HasSubstr("1099511627776"));
  EXPECT_THAT(grid.status().message(), HasSubstr("22 bits"));
  EXPECT_THAT(grid.status().message(), HasSubstr("needs 24"));
}

TEST(ProveGridTest, RefusesNonsense) {
  EXPECT_EQ(ProveGrid(Weighing(0)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ProveGrid(Weighing((uint64_t{1} << 40) + 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  GridRequest wraps = Weighing(uint64_t{1} << 60);
  wraps.fractional_weights = true;
  EXPECT_EQ(ProveGrid(wraps).status().code(), absl::StatusCode::kInvalidArgument);
  for (const double bound : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(), 0x1p60}) {
    GridRequest request;
    request.bound = bound;
    EXPECT_EQ(ProveGrid(request).status().code(), absl::StatusCode::kInvalidArgument) << bound;
  }
  for (const auto& [wished, least] : {std::pair{51, 20}, {30, 0}, {20, 21}}) {
    GridRequest request;
    request.fraction_bits = wished;
    request.minimum_fraction_bits = least;
    EXPECT_EQ(ProveGrid(request).status().code(), absl::StatusCode::kInvalidArgument) << wished;
  }
}

TEST(GridTest, BelievesAPeerOnlyWhatIsProved) {
  const Grid grid{30, 4096, 1 << 20, 16};
  const auto again = Grid::FromProto(grid.ToProto());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fraction_bits, 30);
  EXPECT_EQ(again->bound, 4096);
  EXPECT_EQ(again->max_weight, 1u << 20);
  EXPECT_EQ(again->weight_fraction_bits, 16);

  const Grid bad[] = {
      {30, 8192, 1 << 20, 0},  // 2^63
      {0, 4096, 1, 0},         // no fraction bits
      {51, 0.5, 1, 0},         // too many
      {30, 3, 1, 0},           // not a power of two
      {30, -4, 1, 0},
      {30, 0, 1, 0},
      {30, std::numeric_limits<double>::infinity(), 1, 0},
      {30, 2097152, 1, 0},  // 2^51
      {10, 0x1p-11, 1, 0},  // every element would be 0
      {30, 16, 0, 0},       // no weight
      {1, 1, (uint64_t{1} << 40) + 1, 0},
      {30, 16, 1, 8},  // weights in neither unit
  };
  for (const Grid& g : bad) {
    EXPECT_EQ(Grid::FromProto(g.ToProto()).status().code(), absl::StatusCode::kInvalidArgument)
        << g.fraction_bits << " " << g.bound << " " << g.max_weight;
  }
}

TEST(GridTest, IntegerBoundTimesTheWeightIsWithinInt64) {
  EXPECT_EQ((Grid{30, 4096, 1, 0}.IntegerBound()), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((Grid{30, 4096, 1 << 20, 0}.IntegerBound()), 8796093022207);  // 2^43 - 1
  EXPECT_EQ((Grid{30, 4096, 1'000'000, 0}.IntegerBound()),
            9223372036854);  // 9223372036854775807 / 10^6
}

// ---- Weights

TEST(WeightUnitsTest, WholeExamplesAreUnitsAsTheyAre) {
  for (const int64_t weight : {int64_t{1}, int64_t{7}, int64_t{1} << 40}) {
    EXPECT_EQ(*WeightUnits(static_cast<double>(weight), 0), weight);
  }
}

TEST(WeightUnitsTest, FractionsAreRoundedOnceToThe65536thTiesToEven) {
  const double unit = 1.0 / 65536;
  EXPECT_EQ(*WeightUnits(10, 16), 655360);
  EXPECT_EQ(*WeightUnits(2.5, 16), 163840);
  EXPECT_EQ(*WeightUnits(1.0 / 3, 16), 21845);  // 21845.33
  EXPECT_EQ(*WeightUnits(2.0 / 3, 16), 43691);  // 43690.67
  EXPECT_EQ(*WeightUnits(2.5 * unit, 16), 2);
  EXPECT_EQ(*WeightUnits(3.5 * unit, 16), 4);
}

TEST(WeightUnitsTest, WhatIsNoWeightIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const uint32_t bits : {0u, 16u}) {
    for (const double bad : {0.0, -1.0, -2.5, nan, infinity, -infinity, 0x1p41, 1e-9}) {
      EXPECT_TRUE(absl::IsInvalidArgument(WeightUnits(bad, bits).status())) << bad << " " << bits;
    }
  }
  const auto fraction = WeightUnits(2.5, 0);
  ASSERT_TRUE(absl::IsInvalidArgument(fraction.status()));
  EXPECT_NE(fraction.status().message().find("fractional_weights = true"), absl::string_view::npos);
  EXPECT_FALSE(WeightUnits(1, 8).ok());
}

}  // namespace
}  // namespace tributary::aggregation
