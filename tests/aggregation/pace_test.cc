// Promises of the tracking of members that are slow but not dead.
#include "aggregation/pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Pace : public ::testing::Test {
 protected:
  // A round in which ten peers take a second and "x" so long; what changed, as "x slow", "x well".
  std::vector<std::string> Round(double seconds) {
    for (int i = 0; i < 10; ++i) tracker_.Observe(absl::StrCat("peer-", i), PaceMetric::kRound, 1);
    tracker_.Observe("x", PaceMetric::kRound, seconds);
    return End();
  }
  std::vector<std::string> End() {
    std::vector<std::string> out;
    last_ = tracker_.EndRound();
    for (const PaceChange& change : last_) {
      out.push_back(change.id + (change.degraded ? " slow" : " well"));
    }
    return out;
  }
  PaceTracker tracker_{PaceOptions()};
  std::vector<PaceChange> last_;
};

TEST_F(Pace, MarksWhoFallsBehindItsPeers) {
  EXPECT_THAT(Round(10), IsEmpty());  // once is chance
  EXPECT_THAT(Round(10), ElementsAre("x slow"));
  EXPECT_TRUE(tracker_.degraded("x"));
  EXPECT_EQ(tracker_.Preference("x"), 0.25);
  EXPECT_EQ(tracker_.Preference("peer-1"), 1);
  EXPECT_THAT(tracker_.Degraded(), ElementsAre("x"));
  EXPECT_THAT(last_[0].why, AllOf(HasSubstr("round 10 s"), HasSubstr("its peers' 1 s")));
  EXPECT_THAT(Round(10), IsEmpty());  // said once
}

TEST_F(Pace, MarksWhoFallsBehindItsOwnPastThoughItsPeersAreNoFaster) {
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Round(0.5), IsEmpty());
  // 1.2 is more than twice 0.5 and less than three times 1; the median of three needs two such.
  EXPECT_THAT(Round(1.2), IsEmpty());
  EXPECT_THAT(Round(1.2), IsEmpty());
  EXPECT_THAT(Round(1.2), ElementsAre("x slow"));
  EXPECT_THAT(last_[0].why, HasSubstr("its own median 0.5 s"));
}

TEST_F(Pace, DoesNotMarkForOneSlowRoundNorForPeersThatAreAllSlow) {
  for (int i = 0; i < 5; ++i) Round(1);
  EXPECT_THAT(Round(50), IsEmpty());
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Round(1), IsEmpty());
  PaceTracker all{PaceOptions()};
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 10; ++i) all.Observe(absl::StrCat(i), PaceMetric::kRound, 100);
    EXPECT_THAT(all.EndRound(), IsEmpty());
  }
}

TEST_F(Pace, RestoresWhoIsHealthyForAWhileAndNotBefore) {
  Round(10);
  Round(10);
  ASSERT_TRUE(tracker_.degraded("x"));
  // The median of three is well after two rounds; three such in a row restore.
  EXPECT_THAT(Round(1), IsEmpty());
  EXPECT_THAT(Round(1), IsEmpty());
  EXPECT_THAT(Round(1), IsEmpty());
  EXPECT_THAT(Round(1), ElementsAre("x well"));
  EXPECT_FALSE(tracker_.degraded("x"));
}

TEST_F(Pace, NeitherMarksNorRestoresBetweenTheTwoThresholds) {
  for (int i = 0; i < 8; ++i) EXPECT_THAT(Round(2.5), IsEmpty());  // under 3 times its peers
  Round(10);
  Round(10);
  Round(10);
  ASSERT_TRUE(tracker_.degraded("x"));
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Round(2.5), IsEmpty());  // over 1.8 times its peers
  EXPECT_TRUE(tracker_.degraded("x"));
}

TEST_F(Pace, KeepsThePastOfBeforeItWasSlow) {
  for (int i = 0; i < 10; ++i) Round(0.5);
  for (int i = 0; i < 40; ++i) Round(1.2);  // by now all that is remembered is slow
  EXPECT_TRUE(tracker_.degraded("x"));
  for (int i = 0; i < 4; ++i) Round(0.5);
  EXPECT_FALSE(tracker_.degraded("x"));
}

TEST_F(Pace, CountsAMissedDeadlineAsSlowThoughNobodyKnowsHowSlow) {
  const auto round = [this] {
    for (int p = 0; p < 10; ++p) tracker_.Observe(absl::StrCat("peer-", p), PaceMetric::kRound, 1);
    tracker_.Missed("x", 2, true);  // under three times its peers' time, but that is a lower bound
    return End();
  };
  EXPECT_THAT(round(), IsEmpty());
  EXPECT_THAT(round(), ElementsAre("x slow"));
}

TEST_F(Pace, CountsARoundThatClosedWithoutItAsAtLeastAsLong) {
  for (int i = 0; i < 6; ++i) Round(1);
  for (int i = 0; i < 3; ++i) {
    for (int p = 0; p < 10; ++p) {
      tracker_.Observe(absl::StrCat("peer-", p), PaceMetric::kRound, 1);
    }
    tracker_.Missed("x", 4, false);
    tracker_.Missed("peer-0", 0.2, false);  // the round closed early: no reproach
    End();
  }
  EXPECT_THAT(tracker_.Degraded(), ElementsAre("x"));
}

TEST_F(Pace, NamesWhatBecameSlowest) {
  const auto round = [this](double train, double upload, double throughput) {
    tracker_.Observe("x", PaceMetric::kTrain, train);
    tracker_.Observe("x", PaceMetric::kUpload, upload);
    tracker_.Observe("x", PaceMetric::kThroughput, throughput);
    return Round(train + upload);
  };
  for (int i = 0; i < 8; ++i) round(1, 0.5, 1000);
  std::vector<std::string> changes;
  for (int i = 0; i < 4 && changes.empty(); ++i) changes = round(1.2, 8, 62.5);
  ASSERT_THAT(changes, ElementsAre("x slow"));
  EXPECT_THAT(last_[0].why, HasSubstr("most: upload, 16 times"));
}

TEST_F(Pace, TellsQuantilesOfTheValuesRemembered) {
  PaceTracker tracker(PaceOptions{.window = 10});
  for (int i = 1; i <= 25; ++i) tracker.Observe("x", PaceMetric::kUpload, i);
  EXPECT_EQ(tracker.Quantile("x", PaceMetric::kUpload, 0.5), 20);  // of 16..25 the fifth
  EXPECT_EQ(tracker.Quantile("x", PaceMetric::kUpload, 0.9), 24);
  EXPECT_EQ(tracker.Quantile("x", PaceMetric::kUpload, 0), 16);
  EXPECT_EQ(tracker.Quantile("x", PaceMetric::kUpload, 1), 25);
  EXPECT_EQ(tracker.Quantile("x", PaceMetric::kTrain, 0.5), std::nullopt);
  EXPECT_EQ(tracker.Quantile("y", PaceMetric::kUpload, 0.5), std::nullopt);
}

TEST_F(Pace, ForgetsWhoWasNotSeenForLong) {
  PaceTracker tracker(PaceOptions{.forget_rounds = 4});
  tracker.Observe("gone", PaceMetric::kRound, 1);
  for (int round = 0; round < 9; ++round) {
    tracker.Observe("here", PaceMetric::kRound, 1);
    tracker.EndRound();
  }
  EXPECT_EQ(tracker.members(), 1u);
  EXPECT_NE(tracker.Quantile("here", PaceMetric::kRound, 0.5), std::nullopt);
}

TEST_F(Pace, TheTableIsBounded) {
  PaceTracker tracker(PaceOptions{.most_members = 2});
  for (const char* id : {"a", "b", "c", "a"}) tracker.Observe(id, PaceMetric::kRound, 1);
  tracker.Missed("d", 5, true);
  EXPECT_EQ(tracker.members(), 2u);
  EXPECT_EQ(tracker.Quantile("c", PaceMetric::kRound, 0.5), std::nullopt);
  tracker.Observe("b", PaceMetric::kRound, 3);
  EXPECT_EQ(tracker.Quantile("b", PaceMetric::kRound, 1), 3) << "who is in it is followed on";
}

TEST_F(Pace, IgnoresWhatIsNoMeasurementAndForgetsWhenTold) {
  tracker_.Observe("x", PaceMetric::kRound, std::nan(""));
  tracker_.Observe("x", PaceMetric::kRound, -1);
  tracker_.Observe("x", PaceMetric::kRound, HUGE_VAL);
  EXPECT_EQ(tracker_.members(), 0u);
  Round(10);
  Round(10);
  tracker_.Forget("x");
  EXPECT_FALSE(tracker_.degraded("x"));
}

}  // namespace
}  // namespace tributary::aggregation
