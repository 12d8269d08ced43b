// Promises of FedNova: steps normalised by hand, and three rounds equal to a float64 reference
// (tests/reference/server_optimizers.py) through exact sums of deltas and of steps.
#include "aggregation/fednova.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "aggregation/optimizer.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;
using Metrics = google::protobuf::RepeatedPtrField<v1::MetricSum>;

constexpr int kElements = 96;

// As in the reference: multiples of 1/64.
double Delta(int round, int client, int i) {
  return static_cast<double>((i * 7 + client * 13 + round * 29) % 61 - 30) / 64;
}

v1::Metric Steps(double steps, uint64_t weight) {
  v1::Metric metric;
  metric.set_name(kStepsMetric);
  metric.set_value(steps / kStepsUnit);
  metric.set_weight(weight);
  return metric;
}

TEST(FedNovaTest, NormalisesStepsByHand) {
  EXPECT_DOUBLE_EQ(NormalisedSteps(1, 0), 1);
  EXPECT_DOUBLE_EQ(NormalisedSteps(7, 0), 7);
  EXPECT_DOUBLE_EQ(NormalisedSteps(1, 0.9), 1);
  // Momentum 0.5: the first of three gradients moves by 1 + 1/2 + 1/4, the next by 1 + 1/2, then 1.
  EXPECT_DOUBLE_EQ(NormalisedSteps(3, 0.5), 1.75 + 1.5 + 1);
}

TEST(FedNovaTest, AveragesStepsOverExamplesAndSaysWhereNobodyToldThem) {
  Metrics sums;
  for (const auto& [steps, weight] : {std::pair(4.0, 1), {10.0, 2}}) {
    google::protobuf::RepeatedPtrField<v1::Metric> told;
    *told.Add() = Steps(steps, weight);
    ASSERT_TRUE(MergeMetrics(*MetricsToSums(told), &sums).ok());
  }
  EXPECT_NEAR(*EffectiveSteps(sums), 8, 1e-5);  // (4 + 2 * 10) / 3, on a grid of 2^-30 * 1,024
  EXPECT_THAT(EffectiveSteps({}).status().message(), HasSubstr("local_kilosteps"));
}

TEST(FedNovaTest, ThreeRoundsEqualFloat64ToOneMillionth) {
  std::ifstream file(TRIBUTARY_SOURCE_DIR "/tests/golden/optimizers/three_rounds.json");
  const auto cases = nlohmann::json::parse(file);
  const auto& nova = cases.back();
  ASSERT_EQ(nova["spec"]["name"], "fednova");
  const std::vector<uint64_t> steps = nova["spec"]["steps"];
  const double momentum = nova["spec"]["momentum"];
  const uint64_t weights[] = {3, 5, 9};
  const auto layout = testing::MakeLayout({{"w", {kElements}, DType::kF64, Policy::kMean}});
  const auto optimizer = *MakeServerOptimizer({}, layout);
  std::vector<double> model(kElements);
  for (int i = 0; i < kElements; ++i) model[i] = ((i * 11) % 37 - 18) / 16.0;
  for (int round = 1; round <= 3; ++round) {
    auto sum = testing::MakeAccumulator(layout, Grid());
    Metrics sums;
    for (int c = 0; c < 3; ++c) {
      const double norm = NormalisedSteps(steps[c], momentum);
      testing::GivenDeltas deltas(*layout);
      for (int i = 0; i < kElements; ++i) {
        deltas.floats[0].push_back(static_cast<float>(Delta(round, c, i) / norm));
      }
      testing::FoldAll(sum.get(), {testing::Assemble(
                                      layout, Grid(),
                                      testing::Record(*layout, {"fp32"}, std::string(1, 'a' + c),
                                                      static_cast<int64_t>(weights[c]), deltas))});
      google::protobuf::RepeatedPtrField<v1::Metric> told;
      *told.Add() = Steps(norm, weights[c]);
      ASSERT_TRUE(MergeMetrics(*MetricsToSums(told), &sums).ok());
    }
    std::vector<uint8_t> base(kElements * 8), next(kElements * 8);
    std::memcpy(base.data(), model.data(), base.size());
    ASSERT_TRUE(optimizer
                    ->Apply({.sum = *sum,
                             .grid = Grid(),
                             .weight = 17,
                             .round = static_cast<uint64_t>(round),
                             .scale = *EffectiveSteps(sums)},
                            base, next)
                    .ok());
    optimizer->Commit();
    std::memcpy(model.data(), next.data(), next.size());
    for (int i = 0; i < kElements; ++i) {
      ASSERT_NEAR(model[i], nova["models"][round - 1][i].get<double>(), 1e-6) << round << " " << i;
    }
  }
}

}  // namespace
}  // namespace tributary::aggregation
