// What is remembered of the last rounds, and what is not any more.
#include "aggregation/outcome_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tributary::aggregation {
namespace {

void Commit(OutcomeLog& log, uint64_t round, const std::vector<std::string>& clients) {
  log.Committed(round, clients);
}

TEST(OutcomeLog, KnowsWhoWasCountedAndWhoWasNot) {
  OutcomeLog log;
  EXPECT_EQ(log.Of("a", 1), Fate::kNotCounted) << "no round yet";
  Commit(log, 1, {"a", "b"});
  Commit(log, 3, {"a"});  // 2 failed
  EXPECT_EQ(log.Of("a", 3), Fate::kCounted);
  EXPECT_EQ(log.Of("b", 1), Fate::kCounted);
  EXPECT_EQ(log.Of("b", 2), Fate::kNotCounted);
  EXPECT_EQ(log.Of("b", 3), Fate::kNotCounted);
  EXPECT_EQ(log.Of("c", 1), Fate::kNotCounted);
  // Who waits for the outcome of round 2 has made no update since: round 3 has counted that one.
  EXPECT_EQ(log.Of("a", 2), Fate::kCounted);
}

TEST(OutcomeLog, ForgetsWhatIsTooOldAndSaysSo) {
  OutcomeLog log(/*rounds=*/2);
  for (uint64_t round = 1; round <= 3; ++round) Commit(log, round, {"r" + std::to_string(round)});
  EXPECT_EQ(log.Of("r1", 1), Fate::kUnknown);
  EXPECT_EQ(log.Of("r1", 2), Fate::kNotCounted);
  EXPECT_EQ(log.Of("r2", 2), Fate::kCounted);
  EXPECT_EQ(log.Of("r3", 3), Fate::kCounted);
}

TEST(OutcomeLog, HoldsSoManyClients) {
  OutcomeLog log(/*rounds=*/64, /*most_clients=*/3);
  Commit(log, 1, {"a", "b"});
  Commit(log, 2, {"c"});
  EXPECT_EQ(log.Of("a", 1), Fate::kCounted);
  Commit(log, 3, {"d"});  // the fourth: what was before round 3 is forgotten
  EXPECT_EQ(log.Of("a", 1), Fate::kUnknown);
  EXPECT_EQ(log.Of("c", 2), Fate::kUnknown);
  EXPECT_EQ(log.Of("d", 3), Fate::kCounted);
  EXPECT_EQ(log.Of("a", 3), Fate::kNotCounted);
}

TEST(OutcomeLog, OfARunThatIsResumedOnlyTheLastRoundIsKnown) {
  OutcomeLog log;
  Commit(log, 4, {"z"});
  log.Begin(7);
  Commit(log, 7, {"a"});
  EXPECT_EQ(log.Of("a", 7), Fate::kCounted);
  EXPECT_EQ(log.Of("b", 7), Fate::kNotCounted);
  EXPECT_EQ(log.Of("b", 6), Fate::kUnknown);
  EXPECT_EQ(log.Of("z", 4), Fate::kUnknown);
}

TEST(OutcomeLog, OfARunThatGoesBackWhatItsLostRoundsCountedIsForgotten) {
  OutcomeLog log;
  for (uint64_t round = 8; round <= 10; ++round) {
    log.Running(round);
    Commit(log, round, {"a"});
  }
  log.Running(9);
  EXPECT_EQ(log.Of("a", 9), Fate::kNotCounted);
  EXPECT_EQ(log.Of("a", 8), Fate::kUnknown);
  Commit(log, 9, {"b"});
  EXPECT_EQ(log.Of("b", 9), Fate::kCounted);
}

}  // namespace
}  // namespace tributary::aggregation
