// Promises of the adaptive deadline, by hand calculation.
#include "aggregation/deadline.h"

#include <gtest/gtest.h>

namespace tributary::aggregation {
namespace {

constexpr absl::Duration kNever = absl::InfiniteDuration();

absl::Duration S(double seconds) { return absl::Seconds(seconds); }

DeadlineOptions Adaptive() {
  return {.adaptive = true,
          .floor = S(5),
          .ceiling = S(600),
          .quantile = 0.8,
          .margin = 2,
          .participation = 0.75,
          .window = 2,
          .minimum_times = 3};
}

void Observe(AdaptiveDeadline* deadline, const std::vector<absl::Duration>& times) {
  deadline->Observe(times);
}

TEST(AdaptiveDeadlineTest, IsTheCeilingUntilEnoughIsKnownAndWhereItIsNotAdaptive) {
  AdaptiveDeadline deadline(Adaptive());
  EXPECT_EQ(deadline.Next(), S(600));
  Observe(&deadline, {S(10), S(10)});
  EXPECT_EQ(deadline.Next(), S(600));
  Observe(&deadline, {S(10)});
  EXPECT_EQ(deadline.Next(), S(20));
  AdaptiveDeadline fixed({.ceiling = S(77)});
  Observe(&fixed, {S(1), S(1), S(1), S(1)});
  EXPECT_EQ(fixed.Next(), S(77));
}

TEST(ChildDeadlineTest, IsTheParentsLessTheForwardingTimeButAtLeastHalf) {
  EXPECT_EQ(ChildDeadline(S(60), S(0.5)), S(59.5));
  EXPECT_EQ(ChildDeadline(S(60), S(29)), S(31));
  EXPECT_EQ(ChildDeadline(S(60), S(45)), S(30));
  EXPECT_EQ(ChildDeadline(S(0), S(1)), S(0));
}

TEST(AdaptiveDeadlineTest, IsTheMarginTimesTheQuantileOfTheLastRounds) {
  AdaptiveDeadline deadline(Adaptive());
  Observe(&deadline, {S(10), S(11), S(12), S(13), S(90)});
  EXPECT_EQ(deadline.Next(), S(26));  // the 4th of 5 is 13
  Observe(&deadline, {S(20), S(21), S(22), S(23), S(24)});
  EXPECT_EQ(deadline.Next(), S(46));  // of 10, the 8th is 23
  Observe(&deadline, {S(20), S(21), S(22), S(23), S(24)});
  EXPECT_EQ(deadline.Next(), S(46));  // the first round is forgotten: 8th of twice 20..24
}

TEST(AdaptiveDeadlineTest, StaysWithinFloorAndCeiling) {
  AdaptiveDeadline fast(Adaptive());
  Observe(&fast, {S(0.1), S(0.1), S(0.1)});
  EXPECT_EQ(fast.Next(), S(5));
  AdaptiveDeadline slow(Adaptive());
  Observe(&slow, {S(500), S(500), S(500)});
  EXPECT_EQ(slow.Next(), S(600));
}

TEST(AdaptiveDeadlineTest, CutsOffTheSlowestTenthWithoutBeingTuned) {
  // 100 members, ten of them ten times slower: the slow come in while nothing is known, never
  // after.
  AdaptiveDeadline deadline(Adaptive());
  for (int round = 0; round < 20; ++round) {
    std::vector<absl::Duration> times;
    for (int i = 0; i < 100; ++i) {
      const absl::Duration took = i < 10 ? S(100) : S(10);
      times.push_back(took <= deadline.Next() ? took : kNever);
    }
    deadline.Observe(times);
    EXPECT_EQ(deadline.Next(), S(20)) << round;
  }
}

TEST(AdaptiveDeadlineTest, GrowsWhereItsQuantileIsAmongThoseThatDidNotAnswer) {
  AdaptiveDeadline deadline(Adaptive());
  Observe(&deadline, {S(10), S(10), S(10), S(10)});
  Observe(&deadline, {S(10), S(10), S(10), kNever});
  EXPECT_EQ(deadline.Next(), S(20));  // 7th of 8
  Observe(&deadline, {kNever, kNever, S(10), kNever});
  // 7th of 8 (four are missing): 1.5 times as long, and one in four is too few: 1.25 times more.
  EXPECT_EQ(deadline.Next(), S(20 * 1.5 * 1.25));
}

TEST(AdaptiveDeadlineTest, PacerTradesSpeedForParticipationAndBack) {
  AdaptiveDeadline deadline(Adaptive());
  const std::vector<absl::Duration> half = {S(10), S(10), S(10),  S(10),  S(10),
                                            S(10), S(10), kNever, kNever, kNever};  // 70 %
  const std::vector<absl::Duration> all(10, S(10));
  Observe(&deadline, half);
  EXPECT_EQ(deadline.pace(), 1.25);
  Observe(&deadline, half);
  EXPECT_EQ(deadline.pace(), 1.5625);
  Observe(&deadline, all);
  EXPECT_EQ(deadline.pace(), 1.25);
  Observe(&deadline, all);
  Observe(&deadline, all);
  EXPECT_EQ(deadline.pace(), 1);
  EXPECT_EQ(deadline.Next(), S(20));
  for (int i = 0; i < 100; ++i) Observe(&deadline, half);
  EXPECT_EQ(deadline.pace(), 8);
}

TEST(AdaptiveDeadlineTest, IsNotMovedByARoundWithoutMembers) {
  AdaptiveDeadline deadline(Adaptive());
  Observe(&deadline, {S(10), S(10), S(10)});
  Observe(&deadline, {});
  EXPECT_EQ(deadline.Next(), S(20));
}

}  // namespace
}  // namespace tributary::aggregation
