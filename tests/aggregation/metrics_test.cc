// Promises of metrics: exact sums by name, and nothing that overflows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "aggregation/grid.h"

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;
using Sums = google::protobuf::RepeatedPtrField<v1::MetricSum>;

void AddSum(const std::string& name, int64_t sum, uint64_t weight, Sums* sums) {
  v1::MetricSum* s = sums->Add();
  s->set_name(name);
  s->set_sum(sum);
  s->set_weight(weight);
}

TEST(MetricTest, RoundsToTheGridWithTiesToEven) {
  EXPECT_EQ(*MetricToGrid(1), 1073741824);
  EXPECT_EQ(*MetricToGrid(-4096), -4398046511104);
  EXPECT_EQ(*MetricToGrid(0x1p-31), 0);      // half a unit
  EXPECT_EQ(*MetricToGrid(3 * 0x1p-31), 2);  // one and a half
  EXPECT_EQ(*MetricToGrid(-3 * 0x1p-31), -2);
  EXPECT_EQ(*MetricToGrid(0.1), 107374182);  // 0.1 * 2^30 = 107374182.4
}

TEST(MetricTest, RefusesWhatIsNotANumberOrTooLarge) {
  for (const double value :
       {4097.0, -4096.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(MetricToGrid(value).status().code(), absl::StatusCode::kInvalidArgument) << value;
  }
}

TEST(MetricTest, MeanIsTheSumOverTheWeight) {
  Sums sums;
  AddSum("loss", 3 * (int64_t{1} << 30), 2, &sums);
  EXPECT_EQ(MetricMean(sums[0]), 1.5);
  sums[0].set_weight(0);
  EXPECT_TRUE(std::isnan(MetricMean(sums[0])));
}

TEST(MetricTest, ClientsMetricsBecomeWeightedSumsSortedByNameAndWeightlessOnesDrop) {
  google::protobuf::RepeatedPtrField<v1::Metric> metrics;
  for (const auto& [name, value, weight] :
       {std::tuple{"loss", 0.5, 10}, {"accuracy", 0.25, 8}, {"idle", 1.0, 0}}) {
    v1::Metric* m = metrics.Add();
    m->set_name(name);
    m->set_value(value);
    m->set_weight(weight);
  }
  const auto sums = MetricsToSums(metrics);
  ASSERT_TRUE(sums.ok()) << sums.status();
  ASSERT_EQ(sums->size(), 2);
  EXPECT_EQ((*sums)[0].name(), "accuracy");
  EXPECT_EQ((*sums)[0].sum(), 8 * (int64_t{1} << 28));
  EXPECT_EQ((*sums)[1].name(), "loss");
  EXPECT_EQ((*sums)[1].sum(), 10 * (int64_t{1} << 29));
  EXPECT_EQ((*sums)[1].weight(), 10u);
}

TEST(MetricTest, RefusesAClientsMetricThatOverflowsRepeatsOrIsNotFinite) {
  const auto with = [](double value, uint64_t weight, int times) {
    google::protobuf::RepeatedPtrField<v1::Metric> metrics;
    for (int i = 0; i < times; ++i) {
      v1::Metric* m = metrics.Add();
      m->set_name("loss");
      m->set_value(value);
      m->set_weight(weight);
    }
    return MetricsToSums(metrics).status();
  };
  EXPECT_THAT(with(4096, uint64_t{1} << 21, 1).message(),
              HasSubstr("overflows"));  // 2^42 * 2^21 = 2^63
  EXPECT_TRUE(with(4096, (uint64_t{1} << 21) - 1, 1).ok());
  EXPECT_THAT(with(1, ~uint64_t{0}, 1).message(), HasSubstr("overflows"));
  EXPECT_THAT(with(1, 1, 2).message(), HasSubstr("twice"));
  EXPECT_THAT(with(std::nan(""), 1, 1).message(), HasSubstr("metric \"loss\""));
}

TEST(MetricTest, MergesByNameSorted) {
  Sums into;
  AddSum("loss", 5, 2, &into);
  Sums from;
  AddSum("zeta", 1, 1, &from);
  AddSum("loss", -7, 3, &from);
  AddSum("accuracy", 4, 4, &from);
  ASSERT_TRUE(MergeMetrics(from, &into).ok());
  ASSERT_EQ(into.size(), 3);
  EXPECT_EQ(into[0].name(), "accuracy");
  EXPECT_EQ(into[1].name(), "loss");
  EXPECT_EQ(into[1].sum(), -2);
  EXPECT_EQ(into[1].weight(), 5u);
  EXPECT_EQ(into[2].name(), "zeta");
}

TEST(MetricTest, AMergeThatIsRefusedChangesNothing) {
  Sums into;
  AddSum("loss", std::numeric_limits<int64_t>::max(), 1, &into);
  const std::string before = into[0].SerializeAsString();
  Sums overflow;
  AddSum("accuracy", 1, 1, &overflow);
  AddSum("loss", 1, 1, &overflow);
  EXPECT_THAT(MergeMetrics(overflow, &into).message(), HasSubstr("overflows"));
  Sums weight;
  AddSum("loss", 0, ~uint64_t{0}, &weight);
  EXPECT_THAT(MergeMetrics(weight, &into).message(), HasSubstr("overflows"));
  Sums many;
  for (int i = 0; i < 32; ++i) AddSum(absl::StrCat("m", i), 1, 1, &many);
  EXPECT_THAT(MergeMetrics(many, &into).message(), HasSubstr("33 metrics"));
  Sums named;
  AddSum(std::string(65, 'x'), 1, 1, &named);
  EXPECT_THAT(MergeMetrics(named, &into).message(), HasSubstr("65 bytes"));
  ASSERT_EQ(into.size(), 1);
  EXPECT_EQ(into[0].SerializeAsString(), before);
}

}  // namespace
}  // namespace tributary::aggregation
