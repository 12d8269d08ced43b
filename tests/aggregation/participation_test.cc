// Promises of the participation counts, by hand calculation.
#include "aggregation/participation.h"

#include <gtest/gtest.h>

namespace tributary::aggregation {
namespace {

TEST(Participation, WhoIsNotKnownOrNeverMissingHasProbabilityOne) {
  Participation participation;
  EXPECT_EQ(participation.Probability("a"), 1);
  for (int i = 0; i < 7; ++i) participation.Observe("a", true);
  EXPECT_EQ(participation.Probability("a"), 1);
  EXPECT_EQ(participation.Factor("a", 0.1), 0.1);
  EXPECT_EQ(participation.Factor("a", 1), 1);
}

// In one round of three: (1 + 1) / (3 + 1).
TEST(Participation, WhoIsInHalfAsOftenWeighsTwiceAsMuch) {
  Participation participation;
  participation.Observe("a", true);
  participation.Observe("a", false);
  participation.Observe("a", false);
  EXPECT_DOUBLE_EQ(participation.Probability("a"), 0.5);
  EXPECT_DOUBLE_EQ(participation.Factor("a", 0.1) / participation.Factor("b", 0.1), 2);
}

TEST(Participation, NobodyGainsMoreThanTheFloorAllows) {
  Participation participation;
  for (int i = 0; i < 999; ++i) participation.Observe("a", false);
  EXPECT_DOUBLE_EQ(participation.Probability("a"), 0.001);
  EXPECT_DOUBLE_EQ(participation.Factor("a", 0.1), 1);
  EXPECT_DOUBLE_EQ(participation.Factor("a", 0.0001), 0.1);
}

// Two clients of value 0 and 2 that take part with probability 1 and 1/4: weighed by the inverse,
// the expected weighted sum over rounds is that of both being in always, up to the common factor.
TEST(Participation, InverseWeightsUndoTheBiasOfAKnownSchedule) {
  Participation participation;
  double sum = 0, weight = 0;
  for (int round = 0; round < 4000; ++round) {
    const bool b_in = round % 4 == 0;
    // As a node does: the weight by what was known before the round.
    const double a = participation.Factor("a", 0.1), b = participation.Factor("b", 0.1);
    weight += a + (b_in ? b : 0);
    sum += b_in ? 2 * b : 0;
    participation.Observe("a", true);
    participation.Observe("b", b_in);
  }
  EXPECT_NEAR(sum / weight, 1, 0.01);  // unweighted it would be 0.4
}

TEST(Participation, SummarisesSharesAndInequality) {
  Participation participation;
  EXPECT_EQ(participation.Summary().clients, 0u);
  // in / asked: a 4/4, b 2/4, c 0/4, d 2/2.
  for (int i = 0; i < 4; ++i) {
    participation.Observe("a", true);
    participation.Observe("b", i < 2);
    participation.Observe("c", false);
  }
  for (int i = 0; i < 2; ++i) participation.Observe("d", true);
  const ParticipationSummary summary = participation.Summary();
  EXPECT_EQ(summary.clients, 4u);
  EXPECT_EQ(summary.never, 1u);
  EXPECT_DOUBLE_EQ(summary.least, 0);
  EXPECT_DOUBLE_EQ(summary.median, 0.5);  // of 0, 0.5, 1, 1
  EXPECT_DOUBLE_EQ(summary.most, 1);
  // Mean absolute difference of (0, 2, 2, 4): pairs differ by 2,2,4,0,2,2 = 12; 12 / (4 * 8).
  EXPECT_DOUBLE_EQ(summary.gini, 12.0 / 32);
}

TEST(Participation, WhoWasInOnceIsCountedInEveryRoundSince) {
  Participation participation;
  participation.ObserveRound({"a", "b"});
  participation.ObserveRound({"b", "c"});
  participation.ObserveRound({"b"});
  EXPECT_EQ(participation.Csv(), "client,asked,in\na,3,1\nb,3,3\nc,2,1\n");
}

TEST(Participation, TheTableIsBounded) {
  Participation participation(2);
  for (const char* id : {"a", "b", "c", "d", "a"}) participation.Observe(id, true);
  EXPECT_EQ(participation.Summary().clients, 2u);
  EXPECT_EQ(participation.Summary().uncounted, 2u);
  EXPECT_EQ(participation.Csv(), "client,asked,in\na,2,2\nb,1,1\n");
}

TEST(Participation, IdsAreQuotedWhereTheyMust) {
  Participation participation;
  participation.Observe("x,\"y\"", false);
  EXPECT_EQ(participation.Csv(), "client,asked,in\n\"x,\"\"y\"\"\",1,0\n");
}

}  // namespace
}  // namespace tributary::aggregation
