// Promises of the cohort: the same members from any tree, counts kept, weights rounded once.
#include "aggregation/cohort.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {
namespace {

using ::testing::ElementsAre;

// Expected: FNV-1a, Philox4x32-10 and the comparison in Python integers and fractions.
TEST(CohortTest, IsTheSeededHashUnderTheFraction) {
  const auto cohort = [](uint64_t seed, uint64_t round, double fraction) {
    std::string bits;
    for (int i = 0; i < 40; ++i) {
      bits += InCohort(seed, round, absl::StrCat("client-", i), fraction) ? '1' : '0';
    }
    return bits;
  };
  EXPECT_EQ(cohort(7, 3, 0.25), "0010001001011010101000000001000010000100");
  EXPECT_EQ(cohort(7, 3, 0.5), "1110001011111011101000001001000111000110");
  EXPECT_EQ(cohort(7, 3, 0.1), "0000001000000000000000000000000000000100");
  EXPECT_EQ(cohort(7, 4, 0.25), "0000001000000010000001001010001110010100");
  EXPECT_EQ(cohort((uint64_t{1} << 63) + 5, 3, 0.5), "0001011111010100100010010001011000011101");
  int in = 0;
  for (int i = 0; i < 10000; ++i) in += InCohort(1, 1, absl::StrCat("c", i), 0.3);
  EXPECT_EQ(in, 3053);
}

// Sizes are what racks say.
TEST(CohortTest, ASplitOfSizesBeyondAllBoundsHandsOutNoMoreThanThereIs) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(SplitCount(10, {kMost, kMost, 1}), ElementsAre(5, 5, 0));
  EXPECT_THAT(SplitCount(10, {kMost, 1}), ElementsAre(10, 0));  // in 64 bits their sum is 0
  EXPECT_THAT(SplitCount(kMost, {kMost, 3}), ElementsAre(kMost - 3, 3));
}

TEST(CohortTest, IsEverybodyFromOneOnAndNobodyAtZeroOrNaN) {
  for (int i = 0; i < 100; ++i) {
    const std::string id = absl::StrCat(i);
    EXPECT_TRUE(InCohort(1, 1, id, 1));
    EXPECT_TRUE(InCohort(1, 1, id, 1.5));
    EXPECT_FALSE(InCohort(1, 1, id, 0));
    EXPECT_FALSE(InCohort(1, 1, id, -1));
    EXPECT_FALSE(InCohort(1, 1, id, std::nan("")));
  }
  EXPECT_FALSE(InCohort(1, 1, "a", std::numeric_limits<double>::denorm_min()));
}

TEST(CohortTest, DrawsInTheRatioOfThePreferences) {
  // One of two, the second with a quarter of the first's chances: 1 in 5 by hand.
  int second = 0;
  constexpr int kRounds = 20000;
  for (int round = 1; round <= kRounds; ++round) {
    second += CohortKey(3, round, "slow", 0.25) < CohortKey(3, round, "fast", 1);
  }
  // Six standard deviations of sqrt(0.2 * 0.8 / 20000).
  EXPECT_NEAR(second / static_cast<double>(kRounds), 0.2, 0.017);
}

TEST(CohortTest, KeysAreFiniteAndDependOnRoundAndId) {
  EXPECT_NE(CohortKey(1, 1, "a", 1), CohortKey(1, 2, "a", 1));
  EXPECT_NE(CohortKey(1, 1, "a", 1), CohortKey(1, 1, "b", 1));
  EXPECT_EQ(CohortKey(1, 1, "a", 0.5), 2 * CohortKey(1, 1, "a", 1));
  for (int i = 0; i < 1000; ++i) {
    const double key = CohortKey(9, 1, absl::StrCat(i), 1);
    EXPECT_TRUE(std::isfinite(key) && key >= 0) << key;
  }
}

TEST(CohortTest, OverSelectsRoundedUpAndNeverFewerThanWanted) {
  EXPECT_EQ(OverSelected(10, 1.3), 13u);  // 13.000000000000002 in doubles
  EXPECT_EQ(OverSelected(100, 1.3), 130u);
  EXPECT_EQ(OverSelected(7, 1.3), 10u);  // 9.1
  EXPECT_EQ(OverSelected(5, 1), 5u);
  EXPECT_EQ(OverSelected(5, 0.5), 5u);
  EXPECT_EQ(OverSelected(0, 1.3), 0u);
}

TEST(CohortTest, SplitsACountByLargestRemainder) {
  EXPECT_THAT(SplitCount(10, {50, 30, 20}), ElementsAre(5, 3, 2));
  // 10 * 1/3 each: remainders equal, the earlier wins.
  EXPECT_THAT(SplitCount(10, {7, 7, 7}), ElementsAre(4, 3, 3));
  // 2.5, 1.25, 1.25
  EXPECT_THAT(SplitCount(5, {4, 2, 2}), ElementsAre(3, 1, 1));
  EXPECT_THAT(SplitCount(5, {0, 3, 0, 1}), ElementsAre(0, 3, 0, 1));  // no more than there are
  EXPECT_THAT(SplitCount(1, {1, 1}), ElementsAre(1, 0));
  EXPECT_THAT(SplitCount(3, {0, 0}), ElementsAre(0, 0));
  EXPECT_THAT(SplitCount(3, {}), ElementsAre());
}

TEST(CohortTest, WeighsLateUpdatesByTheSquareRootOfTheirStalenessRoundedOnce) {
  EXPECT_EQ(StaleWeight(65536, 0), 65536);
  EXPECT_EQ(StaleWeight(65536, 1), 46341);  // 46340.95
  EXPECT_EQ(StaleWeight(65536, 3), 32768);
  EXPECT_EQ(StaleWeight(5, 3), 2);   // 2.5 to even
  EXPECT_EQ(StaleWeight(7, 3), 4);   // 3.5 to even
  EXPECT_EQ(StaleWeight(1, 99), 1);  // never nothing
}

// By hand: 1,000 in all, 100 known, so that 450 are shared by what is known and 450 alike.
TEST(CohortTest, SharesWeightByWhatIsKnownAndLeavesRoomForWhoIsOnTheWay) {
  EXPECT_EQ(WeightShare(1000, 60, 100, 2), 60u + 270 + 225);
  EXPECT_EQ(WeightShare(1000, 40, 100, 2), 40u + 180 + 225);
  EXPECT_EQ(WeightShare(1000, 0, 100, 3), 150u);
  EXPECT_EQ(WeightShare(1000, 0, 0, 4), 125u);  // nobody is known: half of it, alike
  // No room to spare: the proportion alone.
  EXPECT_EQ(WeightShare(100, 60, 200, 2), 30u);
  EXPECT_EQ(WeightShare(100, 100, 100, 1), 100u);
  EXPECT_EQ(WeightShare(100, 0, 200, 2), 1u);
  constexpr uint64_t kLarge = uint64_t{1} << 62;
  EXPECT_EQ(WeightShare(kLarge, kLarge / 4, kLarge / 2, 2), kLarge / 4 + kLarge / 8 + kLarge / 8);
}

}  // namespace
}  // namespace tributary::aggregation
