// Promises of FedAvg: each policy and dtype by hand, one rounding, ranges kept.
#include "aggregation/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<ServerOptimizer> FedAvg(const testing::LayoutPtr& layout,
                                        double learning_rate = 1) {
  auto optimizer = MakeServerOptimizer({.schedule = {.rate = learning_rate}}, layout);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

template <class T>
std::vector<uint8_t> BytesOf(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> ValuesOf(const std::vector<uint8_t>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One tensor with the given sums (merged as a packed partial), weight W, applied to `base`.
template <class T>
absl::StatusOr<std::vector<T>> Applied(DType dtype, Policy policy, const std::vector<int64_t>& sums,
                                       uint64_t weight, const std::vector<T>& base,
                                       double learning_rate = 1, int fraction_bits = 30) {
  const auto layout = testing::MakeLayout({{"t", {sums.size()}, dtype, policy}});
  // The sums come through an int64 SUM tensor of the same size, whose packed form is the same.
  const auto ints = testing::MakeLayout({{"t", {sums.size()}, DType::kI64, Policy::kSum}});
  testing::GivenDeltas deltas(*ints);
  deltas.ints[0] = sums;
  const Grid widest{fraction_bits, std::ldexp(1, 50 - fraction_bits), 1, 0};
  auto source = testing::MakeAccumulator(ints, widest);
  testing::FoldAll(
      source.get(),
      {testing::Assemble(ints, widest, testing::Record(*ints, {"fp32"}, "c", 1, deltas))});
  auto sum = testing::MakeAccumulator(layout, widest);
  sum->MergeChunk(0, testing::PackAll(*source, "c")->chunks[0], "c", testing::Everything(*sum));

  const std::vector<uint8_t> before = BytesOf(base);
  std::vector<uint8_t> next(before.size());
  const absl::Status status =
      FedAvg(layout, learning_rate)
          ->Apply({.sum = *sum, .grid = widest, .weight = weight}, before, next);
  if (!status.ok()) return status;
  return ValuesOf<T>(next);
}

constexpr int64_t kUnit = int64_t{1} << 30;

TEST(FedAvgTest, AddsTheMeanToFloats) {
  EXPECT_THAT(*Applied<float>(DType::kF32, Policy::kMean, {3 * kUnit, -kUnit, 0}, 2, {1, 1, 7}),
              ElementsAre(2.5f, 0.5f, 7.0f));
  EXPECT_THAT(*Applied<double>(DType::kF64, Policy::kMean, {kUnit}, 3, {0.5}),
              ElementsAre(0.5 + 1.0 / 3));
}

TEST(FedAvgTest, ScalesOnlyTheMeanOfFloatsByTheLearningRate) {
  EXPECT_THAT(*Applied<float>(DType::kF32, Policy::kMean, {4 * kUnit}, 2, {1}, 0.25),
              ElementsAre(1.5f));
  EXPECT_THAT(*Applied<float>(DType::kF32, Policy::kSum, {4 * kUnit}, 2, {1}, 0.25),
              ElementsAre(5.0f));
  EXPECT_THAT(*Applied<int64_t>(DType::kI64, Policy::kMean, {4}, 2, {1}, 0.25), ElementsAre(3));
}

TEST(FedAvgTest, RoundsOnceToTheDtype) {
  // 1 + 2^-24 + 2^-30 lies just above the middle of 1 and 1 + 2^-23: rounding the mean first would
  // tie to 1.
  EXPECT_THAT(*Applied<float>(DType::kF32, Policy::kMean, {(1 << 6) + 1}, 1, {1}),
              ElementsAre(1 + 0x1p-23f));
  EXPECT_THAT(*Applied<float>(DType::kF32, Policy::kMean, {1 << 6}, 1, {1}), ElementsAre(1.0f));
  // The same for bf16 (7 bits): 1 + 2^-8 + 2^-30, which float would first round to the tie.
  EXPECT_THAT(*Applied<uint16_t>(DType::kBf16, Policy::kMean, {(1 << 22) + 1, 1 << 22}, 1,
                                 {0x3F80, 0x3F80}),
              ElementsAre(0x3F81, 0x3F80));
  // And fp16 (10 bits): 1 + 2^-11 + 2^-30.
  EXPECT_THAT(
      *Applied<uint16_t>(DType::kF16, Policy::kMean, {(1 << 19) + 1, 1 << 19}, 1, {0x3C00, 0x3C00}),
      ElementsAre(0x3C01, 0x3C00));
}

TEST(FedAvgTest, RoundsIntegerMeansHalfToEven) {
  // 5/2, 7/2, -5/2, -7/2, 1/2, -1/2, 9/4 with W = 4 where doubled.
  EXPECT_THAT(*Applied<int64_t>(DType::kI64, Policy::kMean, {10, 14, -10, -14, 2, -2, 9, -11}, 4,
                                {0, 0, 0, 0, 0, 0, 0, 0}),
              ElementsAre(2, 4, -2, -4, 0, 0, 2, -3));
  // Where double would be wrong: 2^53 + 1 over 1.
  EXPECT_THAT(*Applied<int64_t>(DType::kI64, Policy::kMean, {(int64_t{1} << 53) + 1}, 1, {0}),
              ElementsAre(9007199254740993));
  EXPECT_THAT(*Applied<int64_t>(DType::kI64, Policy::kMean, {std::numeric_limits<int64_t>::max()},
                                uint64_t{1} << 62, {5}),
              ElementsAre(7));  // 1.99... to 2
}

TEST(FedAvgTest, AddsSumMaxAndFirstAsTheyAre) {
  for (const Policy policy : {Policy::kSum, Policy::kMax, Policy::kFirst}) {
    EXPECT_THAT(*Applied<float>(DType::kF32, policy, {kUnit / 2, -kUnit}, 77, {1, 1}),
                ElementsAre(1.5f, 0.0f));
    EXPECT_THAT(*Applied<int32_t>(DType::kI32, policy, {5, -7}, 77, {100, 1}),
                ElementsAre(105, -6));
  }
}

TEST(FedAvgTest, TakesFractionBitsFromTheGrid) {
  EXPECT_THAT(*Applied<float>(DType::kF32, Policy::kMean, {1 << 20}, 1, {0}, 1, 20),
              ElementsAre(1.0f));
}

TEST(FedAvgTest, KeepsTheModelWhereNothingWasFoldedIntoAMaxTensor) {
  const auto layout = testing::MakeLayout(
      {{"f", {1}, DType::kF32, Policy::kMax}, {"i", {1}, DType::kI64, Policy::kMax}});
  const auto sum = testing::MakeAccumulator(layout, Grid());
  std::vector<uint8_t> base = BytesOf<float>({3});
  const auto ints = BytesOf<int64_t>({-4});
  base.insert(base.end(), ints.begin(), ints.end());
  std::vector<uint8_t> next(base.size());
  ASSERT_TRUE(FedAvg(layout)->Apply({*sum, Grid(), 1}, base, next).ok());
  EXPECT_EQ(next, base);
}

TEST(FedAvgTest, KeepsSkippedTensorsAndPlacesTheOthersAtAnyAddress) {
  const auto layout = testing::MakeLayout({{"u", {3}, DType::kU8, Policy::kSum},
                                           {"frozen", {1}, DType::kF32, Policy::kSkip},
                                           {"none", {0}, DType::kF64, Policy::kMean},
                                           {"b", {2}, DType::kBool, Policy::kSum},
                                           {"d", {1}, DType::kF64, Policy::kMean}});  // at byte 9
  testing::GivenDeltas deltas(*layout);
  deltas.ints[0] = {1, -2, 0};
  deltas.ints[3] = {-1, 2};
  deltas.floats[4] = {0.5f};
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(
      sum.get(),
      {testing::Assemble(layout, Grid(), testing::Record(*layout, {"fp32"}, "c", 4, deltas))});
  std::vector<uint8_t> base = {250, 2, 7, 1, 2, 3, 4, 1, 0};
  const auto d = BytesOf<double>({1.25});
  base.insert(base.end(), d.begin(), d.end());
  std::vector<uint8_t> next(base.size());
  ASSERT_TRUE(FedAvg(layout)->Apply({*sum, Grid(), 4}, base, next).ok());
  std::vector<uint8_t> expected = {251, 0, 7, 1, 2, 3, 4, 0, 1};
  const auto moved = BytesOf<double>({1.75});
  expected.insert(expected.end(), moved.begin(), moved.end());
  EXPECT_EQ(next, expected);
}

TEST(FedAvgTest, RefusesIntegersThatLeaveTheirRangeNamingTheTensor) {
  const auto expect_refused = [](const absl::Status& status, const std::string& word) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(status.message(), HasSubstr("tensor \"t\", element 1"));
    EXPECT_THAT(status.message(), HasSubstr(word));
  };
  expect_refused(Applied<uint8_t>(DType::kU8, Policy::kSum, {5, 6}, 1, {250, 250}).status(),
                 "250 moved by 6");
  expect_refused(Applied<uint8_t>(DType::kU8, Policy::kSum, {0, -1}, 1, {0, 0}).status(), "U8");
  expect_refused(
      Applied<int32_t>(DType::kI32, Policy::kSum, {0, int64_t{1} << 31}, 1, {0, 0}).status(),
      "I32");
  expect_refused(Applied<int64_t>(DType::kI64, Policy::kSum, {0, 1}, 1,
                                  {0, std::numeric_limits<int64_t>::max()})
                     .status(),
                 "I64");
}

TEST(FedAvgTest, RefusesAWeightOfZeroAndModelsOfTheWrongSize) {
  const auto layout = testing::MakeLayout({{"w", {4}}});
  const auto sum = testing::MakeAccumulator(layout, Grid());
  std::vector<uint8_t> model(16);
  std::vector<uint8_t> next(16);
  EXPECT_EQ(FedAvg(layout)->Apply({*sum, Grid(), 0}, model, next).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FedAvg(layout)->Apply({*sum, Grid(), 1}, std::span(model).first(12), next).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FedAvg(layout)->Apply({*sum, Grid(), 1}, model, std::span(next).first(12)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FedAvgTest, AgreesWithDoublesOverAWholeModel) {
  const auto layout = testing::MakeLayout({{"w", {70'001}, DType::kF32, Policy::kMean}});
  auto a = testing::RandomDeltas(*layout, 1);
  auto b = testing::RandomDeltas(*layout, 2);
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(
      sum.get(),
      {testing::Assemble(layout, Grid(), testing::Record(*layout, {"fp32"}, "a", 3, a)),
       testing::Assemble(layout, Grid(), testing::Record(*layout, {"fp32"}, "b", 7, b))});
  const std::vector<float> base = testing::RandomDeltas(*layout, 3).floats[0];
  std::vector<uint8_t> next(base.size() * 4);
  ASSERT_TRUE(FedAvg(layout, 0.5)->Apply({*sum, Grid(), 10}, BytesOf(base), next).ok());
  const auto moved = ValuesOf<float>(next);
  for (size_t i = 0; i < base.size(); ++i) {
    const double expected = base[i] + 0.5 * ((3.0 * a.floats[0][i] + 7.0 * b.floats[0][i]) / 10);
    // Half a unit of the grid, and the float's own rounding.
    ASSERT_NEAR(moved[i], expected, 0x1p-31 + 1e-8) << i;
  }
}

}  // namespace
}  // namespace tributary::aggregation
