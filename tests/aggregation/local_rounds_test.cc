// A rack's own rounds as one update: sums by policy and dtype, worked out by hand, and refusals.
#include "aggregation/local_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const ModelLayout> Layout() {
  return testing::MakeLayout({{"mean", {3}, DType::kF32, Policy::kMean},
                              {"skipped", {1}, DType::kF32, Policy::kSkip},
                              {"sum", {1}, DType::kF64, Policy::kSum},
                              {"half", {1}, DType::kF16, Policy::kMean},
                              {"count", {2}, DType::kI64, Policy::kMax},
                              {"steps", {1}, DType::kI32, Policy::kMean},
                              {"flag", {1}, DType::kBool, Policy::kFirst}});
}

class Model {
 public:
  template <class T>
  Model& Add(T value) {
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
    return *this;
  }
  operator std::span<const uint8_t>() const { return bytes_; }  // NOLINT: a model is its bytes

 private:
  std::vector<uint8_t> bytes_;
};

Model ModelOf(float a, float b, float c, float skipped, double sum, uint16_t half, int64_t count,
              int64_t other, int32_t steps, uint8_t flag) {
  return Model()
      .Add(a)
      .Add(b)
      .Add(c)
      .Add(skipped)
      .Add(sum)
      .Add(half)
      .Add(count)
      .Add(other)
      .Add(steps)
      .Add(flag);
}

TEST(LocalRounds, AreOneUpdateOfTheWeightWithTheDifferenceAsItsDelta) {
  const Grid grid;  // f = 30
  auto sum = testing::MakeAccumulator(Layout(), grid);
  constexpr uint16_t kOne = 0x3c00, kTwo = 0x4000;  // in half precision
  const Model base = ModelOf(1, 0.5f, -2, 7, 10, kOne, 100, 5, 40, 0);
  const Model local = ModelOf(1.25f, 0.5f, -2.125f, 9, 10.5, kTwo, 103, 5, 38, 1);
  ASSERT_TRUE(ReplaceByDifference(base, local, 12, grid, sum.get()).ok());
  const int64_t unit = int64_t{1} << 30;
  EXPECT_THAT(sum->sums(),
              ElementsAre(12 * unit / 4, 0, -12 * unit / 8, unit / 2, 12 * unit, 3, 0, 12 * -2, 1));
}

TEST(LocalRounds, RoundToTheGridHalfToEven) {
  Grid grid;
  grid.fraction_bits = 20;
  const auto layout = testing::MakeLayout({{"w", {3}, DType::kF64, Policy::kMean}});
  auto sum = testing::MakeAccumulator(layout, grid);
  const double step = 1.0 / (1 << 20);
  const Model base = Model().Add(0.0).Add(0.0).Add(0.0);
  const Model local = Model().Add(0.5 * step).Add(1.5 * step).Add(-2.5 * step);
  ASSERT_TRUE(ReplaceByDifference(base, local, 3, grid, sum.get()).ok());
  EXPECT_THAT(sum->sums(), ElementsAre(0, 6, -6));
}

TEST(LocalRounds, RefuseWhatPassesTheBoundAndNameIt) {
  const Grid grid;  // C = 4096
  auto sum = testing::MakeAccumulator(Layout(), grid);
  const Model base = ModelOf(0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  const auto refusal = [&](const Model& local) {
    const absl::Status status = ReplaceByDifference(base, local, 1, grid, sum.get());
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(ModelOf(0, 4097, 0, 0, 0, 0, 0, 0, 0, 0)),
              ::testing::AllOf(HasSubstr("\"mean\", element 1, by 4097"), HasSubstr("4096")));
  EXPECT_THAT(refusal(ModelOf(0, 0, std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 0, 0, 0, 0)),
              HasSubstr("element 2"));
  EXPECT_THAT(refusal(ModelOf(0, 0, 0, 0, 0, 0, int64_t{1} << 62, 0, 0, 0)),
              HasSubstr("\"count\""));
}

TEST(LocalRounds, RefuseWeightsAndSizesThatCannotBe) {
  const Grid grid;
  auto sum = testing::MakeAccumulator(Layout(), grid);
  const Model base = ModelOf(0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  for (const uint64_t weight : {uint64_t{0}, grid.max_weight + 1}) {
    EXPECT_EQ(ReplaceByDifference(base, base, weight, grid, sum.get()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ReplaceByDifference(base, Model().Add(1.0f), 1, grid, sum.get()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::aggregation
