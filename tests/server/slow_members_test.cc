// What a node knows of each member's times, and what follows for the slow: in virtual time.
#include <gmock/gmock.h>

#include <algorithm>

#include "aggregation/round.h"
#include "server/round_report.h"
#include "server/stragglers.h"

namespace tributary::server {
namespace {

using aggregation::PaceMetric;
using aggregation::RoundMachine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SlowMembers : public ::testing::Test {
 protected:
  SlowMembers() {
    spec_.set_deadline_ms(600'000);
    spec_.mutable_stragglers()->set_degraded_work(0.5);
  }
  // A round in which five members take a second each and "x" so long, a rack or a client.
  WaitReport Round(double seconds, bool rack) {
    spec_.set_round(spec_.round() + 1);
    stragglers_.BeginRound(spec_);
    RoundMachine machine({.round = spec_.round()});
    std::vector<RoundMachine::Member> members = {{.id = "x", .aggregator = rack, .epoch = 1}};
    for (int i = 0; i < 5; ++i) {
      members.push_back({.id = absl::StrCat("peer-", i), .aggregator = rack, .epoch = 1});
    }
    machine.Begin(members, now_);
    for (const auto& member : members) stragglers_.TaskSent(member.id, now_);
    const absl::Duration began = now_;
    // The slow one last, or the fast one first.
    if (seconds > 1) std::reverse(members.begin(), members.end());
    for (const auto& member : members) {
      now_ = began + absl::Seconds(member.id == "x" ? seconds : 1);
      const std::vector<std::string> clients =
          rack ? std::vector<std::string>{member.id + "'s"} : std::vector<std::string>();
      const auto admission = machine.Offer(member.id, 1, spec_.round(), 1, clients, now_);
      EXPECT_TRUE(machine.Commit(admission.ticket)) << admission.message;
      machine.Folded(admission.ticket, now_);
    }
    EXPECT_TRUE(machine.closed());
    return stragglers_.EndRound(machine, now_ - began);
  }

  v1::RoundSpec spec_;
  Stragglers stragglers_;
  absl::Duration now_ = absl::Seconds(1000);
};

TEST_F(SlowMembers, AClientThatFallsBehindIsNamedChosenLessAndGivenLessWorkUntilItRecovers) {
  EXPECT_THAT(Round(10, false).degraded, IsEmpty());
  EXPECT_EQ(stragglers_.Work("x"), 1);
  const WaitReport slow = Round(10, false);
  EXPECT_THAT(slow.degraded, ElementsAre("x"));
  EXPECT_LT(stragglers_.Preference("x"), 1);
  EXPECT_EQ(stragglers_.Work("x"), 0.5);
  EXPECT_EQ(stragglers_.Work("peer-1"), 1);
  RoundReport report;
  report.collected.wait = slow;
  EXPECT_THAT(ToJson(report), HasSubstr("\"degraded\":[\"x\"]"));
  // With half of the work it takes half the time, and is as slow as it was.
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Round(5, false).degraded, ElementsAre("x"));
  int rounds = 0;
  while (!Round(0.5, false).degraded.empty()) ASSERT_LT(++rounds, 10);
  EXPECT_GE(rounds, 2) << "one good round is chance";
  EXPECT_EQ(stragglers_.Work("x"), 1);
  EXPECT_EQ(stragglers_.Preference("x"), 1);
}

TEST_F(SlowMembers, SoIsARack) {
  Round(10, true);
  EXPECT_THAT(Round(10, true).degraded, ElementsAre("x"));
}

// Task at 0, model within two seconds, ready at ten, whole at eleven.
TEST_F(SlowMembers, TheTimesOfEachPartOfAClientsWayAreKnown) {
  spec_.set_round(1);
  stragglers_.BeginRound(spec_);
  stragglers_.TaskSent("a", now_);
  stragglers_.Downloaded("a", absl::Seconds(2));
  stragglers_.OfferSeen("a", now_ + absl::Seconds(10));
  stragglers_.Whole("a", 5000, false, now_ + absl::Seconds(11));
  const aggregation::PaceTracker& pace = stragglers_.pace();
  EXPECT_EQ(pace.Quantile("a", PaceMetric::kDownload, 0.5), 2);
  EXPECT_EQ(pace.Quantile("a", PaceMetric::kTrain, 0.5), 8);
  EXPECT_EQ(pace.Quantile("a", PaceMetric::kUpload, 0.5), 1);
  EXPECT_EQ(pace.Quantile("a", PaceMetric::kThroughput, 0.5), 5000);
  EXPECT_EQ(pace.Quantile("a", PaceMetric::kForward, 0.5), std::nullopt);
  stragglers_.TaskSent("rack", now_);
  stragglers_.OfferSeen("rack", now_ + absl::Seconds(4));
  stragglers_.Whole("rack", 5000, true, now_ + absl::Seconds(9));
  EXPECT_EQ(pace.Quantile("rack", PaceMetric::kForward, 0.5), 5);
}

TEST_F(SlowMembers, WhoHasNoTaskIsNotMeasured) {
  spec_.set_round(1);
  stragglers_.BeginRound(spec_);
  stragglers_.Downloaded("stranger", absl::Seconds(2));
  EXPECT_EQ(stragglers_.pace().members(), 0u);
}

// Nobody would be forgotten: no round ends.
TEST_F(SlowMembers, AsynchronousRunsKeepNothingOfThem) {
  spec_.mutable_asynchronous()->set_buffer(10);
  stragglers_.BeginRound(spec_);
  stragglers_.TaskSent("a", now_);
  stragglers_.OfferSeen("a", now_ + absl::Seconds(1));
  stragglers_.Whole("a", 5000, false, now_ + absl::Seconds(2));
  EXPECT_EQ(stragglers_.pace().members(), 0u);
}

TEST_F(SlowMembers, HowLongAClientMayTrainIsNineTenthsOfWhatIsLeftLessItsUpload) {
  spec_.set_round(1);
  stragglers_.BeginRound(spec_);
  EXPECT_EQ(stragglers_.Seconds("a", absl::ZeroDuration(), absl::Seconds(600)), 0) << "not asked";
  spec_.mutable_stragglers()->set_partial_work(true);
  stragglers_.BeginRound(spec_);
  const auto seconds = [&](double began) {
    return stragglers_.Seconds("a", absl::Seconds(began), absl::Seconds(700 - began));
  };
  EXPECT_DOUBLE_EQ(seconds(0), 540);
  EXPECT_DOUBLE_EQ(seconds(100), 450);
  stragglers_.TaskSent("a", now_);
  stragglers_.OfferSeen("a", now_ + absl::Seconds(10));
  stragglers_.Whole("a", 5000, false, now_ + absl::Seconds(50));
  EXPECT_DOUBLE_EQ(seconds(0), 500) << "it took 40 seconds to send";
  EXPECT_DOUBLE_EQ(seconds(590), 1) << "a tenth at least";
  EXPECT_DOUBLE_EQ(seconds(650), 5) << "the soft deadline is past, and the round not over";
}

}  // namespace
}  // namespace tributary::server
