// Promises of the server's learning-rate schedules, by hand calculation.
#include "aggregation/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleTest, ConstantKeepsTheRate) {
  const Schedule schedule{.rate = 0.3};
  for (const uint64_t round : {1, 2, 1000}) EXPECT_EQ(RateAt(schedule, round), 0.3);
}

TEST(ScheduleTest, StepFallsAfterEveryNRounds) {
  const Schedule schedule{.rate = 8, .kind = "step", .rounds = 3, .factor = 0.5};
  EXPECT_EQ(RateAt(schedule, 1), 8);
  EXPECT_EQ(RateAt(schedule, 3), 8);
  EXPECT_EQ(RateAt(schedule, 4), 4);
  EXPECT_EQ(RateAt(schedule, 7), 2);
}

TEST(ScheduleTest, ExponentialFallsAfterEveryRound) {
  const Schedule schedule{.rate = 16, .kind = "exponential", .factor = 0.25};
  EXPECT_EQ(RateAt(schedule, 1), 16);
  EXPECT_EQ(RateAt(schedule, 2), 4);
  EXPECT_EQ(RateAt(schedule, 3), 1);
}

TEST(ScheduleTest, CosineGoesFromTheRateToItsFactorAndStaysThere) {
  const Schedule schedule{.rate = 2, .kind = "cosine", .rounds = 5, .factor = 0.1};
  EXPECT_DOUBLE_EQ(RateAt(schedule, 1), 2);
  EXPECT_NEAR(RateAt(schedule, 2), 0.2 + 1.8 * (1 + std::sqrt(0.5)) / 2, 1e-15);  // cos 45 deg
  EXPECT_NEAR(RateAt(schedule, 3), 1.1, 1e-15);
  EXPECT_NEAR(RateAt(schedule, 5), 0.2, 1e-15);
  EXPECT_NEAR(RateAt(schedule, 500), 0.2, 1e-15);
  EXPECT_DOUBLE_EQ(RateAt({.rate = 2, .kind = "cosine", .rounds = 1}, 1), 2);
}

TEST(ScheduleTest, WarmsUpInEqualSteps) {
  const Schedule schedule{.rate = 1, .warmup = 4};
  EXPECT_EQ(RateAt(schedule, 1), 0.25);
  EXPECT_EQ(RateAt(schedule, 3), 0.75);
  EXPECT_EQ(RateAt(schedule, 4), 1);
  EXPECT_EQ(RateAt(schedule, 5), 1);
}

TEST(ScheduleTest, RefusesWhatCannotBeByItsName) {
  EXPECT_TRUE(CheckSchedule({}).ok());
  EXPECT_TRUE(CheckSchedule({.kind = "cosine", .factor = 0}).ok());
  EXPECT_THAT(CheckSchedule({.kind = "linear"}).message(), HasSubstr("\"linear\""));
  EXPECT_THAT(CheckSchedule({.kind = "step", .factor = 0}).message(), HasSubstr("factor of 0"));
  EXPECT_THAT(CheckSchedule({.factor = std::nan("")}).message(), HasSubstr("factor"));
  EXPECT_THAT(CheckSchedule({.factor = 1.5}).message(), HasSubstr("factor of 1.5"));
  EXPECT_THAT(CheckSchedule({.rounds = 0}).message(), HasSubstr("0 rounds"));
  for (const double rate : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(CheckSchedule({.rate = rate}).message(), HasSubstr("learning rate"));
  }
}

}  // namespace
}  // namespace tributary::aggregation
