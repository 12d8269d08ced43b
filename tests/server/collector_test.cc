// The collector against sessions and uploads that tests hold in their hands: what comes late or
// twice.
#include "server/collector.h"

#include <gtest/gtest.h>

#include "tests/server/collector_fixture.h"

namespace tributary::server {
namespace {

class CollectorTest : public CollectorFixture {
 protected:
  CollectorTest() {
    LimitsConfig limits;
    limits.fold_workers = 1;
    Start(limits);
    for (const char* id : {"a", "b"}) Join(id);
  }
  // Ends the round by force, as a rack does whose parent has begun it again.
  void GiveUpRound() {
    CloseRound();
    FinishRound(false, "given up");
  }
};

// Tickets are counted anew in each round: the late one and the other's are the same number.
TEST_F(CollectorTest, AnUploadOfARoundGivenUpDoesNotCountAsAnothersInTheRetry) {
  const Segments segments_a = EncodeTest(1), segments_b = EncodeTest(2);
  BeginRound(1);
  const auto late = Upload("a", segments_a);
  const auto late_update = late->Fill(segments_a);
  GiveUpRound();
  EXPECT_EQ(late->answer->status(), v1::UploadResponse::STALE);
  BeginRound(1);
  const auto honest = Upload("b", segments_b);
  ASSERT_EQ(honest->ticket, late->ticket) << "what the test is about";

  collector_->OnUploadComplete(late, late_update);  // was under way while the round was retried
  OnLoop([&] { EXPECT_FALSE(honest->answer.has_value()) << "nothing of b's has come yet"; });
  Complete(honest, segments_b);
  OnLoop([&] {
    collector_->CloseNow();
    ASSERT_TRUE(closed_.has_value());
    EXPECT_EQ(closed_->result.contributors, std::vector<std::string>{"b"});
    const TestDeltas deltas(2);
    for (uint64_t i = 0; i < 1000; ++i) {
      const double expected = 10 * std::ldexp(double{deltas.Value(0, i)}, grid_.fraction_bits);
      ASSERT_EQ(static_cast<double>(collector_->sum()->sums()[i]), expected) << i;
    }
    collector_->Finish({.committed = true, .included = true});
  });
}

TEST_F(CollectorTest, AnUploadOfARoundGivenUpThatBreaksDoesNotBreakAnothersInTheRetry) {
  const Segments segments = EncodeTest(2);
  BeginRound(1);
  const auto late = Upload("a", EncodeTest(1));
  GiveUpRound();
  BeginRound(1);
  const auto honest = Upload("b", segments);
  ASSERT_EQ(honest->ticket, late->ticket) << "what the test is about";
  collector_->OnUploadFailed(late, {"bound", "of the round before"});
  Complete(honest, segments);
  CloseRound();
  FinishRound();
}

v1::Metric MetricOf(const std::string& name, double value, uint64_t weight) {
  v1::Metric metric;
  metric.set_name(name);
  metric.set_value(value);
  metric.set_weight(weight);
  return metric;
}

TEST_F(CollectorTest, EachMessageOfASessionIsToldAsHandled) {
  v1::SessionRequest heartbeat, offer;
  heartbeat.mutable_heartbeat()->set_phase("train");
  offer.mutable_offer()->set_round(1);
  collector_->OnMessage(sessions_["a"], heartbeat);
  collector_->OnMessage(sessions_["a"], offer);
  OnLoop([] {});
  EXPECT_EQ(sessions_["a"]->handled, 2);
}

TEST_F(CollectorTest, MetricNamesThatFillTheListTakeNobodysUpdateOut) {
  std::vector<v1::Metric> odd;
  for (int i = 0; i < 31; ++i) odd.push_back(MetricOf(absl::StrCat("odd-", i), 1, 1));
  const Segments segments_a = EncodeTest(1), segments_b = EncodeTest(2);
  BeginRound(1);
  Complete(Upload("a", segments_a, 0, odd), segments_a);
  Complete(Upload("b", segments_b, 0, {MetricOf("accuracy", 0.5, 10), MetricOf("loss", 2, 10)}),
           segments_b);
  const CollectedRound round = CloseRound();
  EXPECT_EQ(round.result.contributors, (std::vector<std::string>{"a", "b"}));
  const auto means = MetricMeans(round.metrics);
  EXPECT_EQ(means.size(), 32u);
  EXPECT_EQ(means.at("accuracy"), 0.5) << "there was room for one";
  FinishRound();
}

TEST_F(CollectorTest, AMetricThatFillsItsSumTakesNobodysUpdateOut) {
  const Segments segments_a = EncodeTest(1), segments_b = EncodeTest(2);
  BeginRound(1);
  Complete(Upload("a", segments_a, 0, {MetricOf("loss", 4096, (1 << 21) - 1)}), segments_a);
  Complete(Upload("b", segments_b, 0, {MetricOf("accuracy", 0.5, 10), MetricOf("loss", 2.5, 2000)}),
           segments_b);
  const CollectedRound round = CloseRound();
  EXPECT_EQ(round.result.contributors, (std::vector<std::string>{"a", "b"}));
  const auto means = MetricMeans(round.metrics);
  EXPECT_EQ(means.at("loss"), 4096) << "b's has no room";
  EXPECT_EQ(means.at("accuracy"), 0.5) << "all else of b's has";
  FinishRound();
}

TEST_F(CollectorTest, AClientsWordOnWhatOthersRefusedIsNotCounted) {
  BeginRound(1);
  v1::SessionRequest request;
  v1::Report* report = request.mutable_report();
  report->set_round(1);
  report->set_kind(v1::TRAIN);
  report->set_declined("no battery");
  report->set_late(5);
  report->add_rejected()->set_reason("made up");
  report->mutable_rejected(0)->set_count(1000);
  collector_->OnMessage(sessions_["a"], request);
  const CollectedRound round = CloseRound();
  EXPECT_TRUE(round.result.rejected.empty());
  EXPECT_EQ(round.result.late, 0u);
  FinishRound();
}

// Ids that come and go must not fill the memory of a long round.
TEST_F(CollectorTest, WhoComesWhenAsManyHaveLeftAsARoundRemembersSitsItOut) {
  const Segments segments = EncodeTest(1);
  BeginRound(1);
  for (uint64_t i = 0; i < aggregation::kMostAway; ++i) {
    const auto passing = std::make_shared<HeldSession>(absl::StrCat("x", i), v1::CLIENT, kEpoch);
    collector_->OnJoin(passing);
    collector_->OnSessionEnd(passing);
  }
  Join("new");
  const auto refused = Upload("new", segments);
  ASSERT_TRUE(refused->answer.has_value());
  EXPECT_EQ(refused->answer->status(), v1::UploadResponse::REJECTED);
  EXPECT_EQ(refused->answer->reason(), "full");
  Complete(Upload("a", segments), segments);
  EXPECT_EQ(CloseRound().result.contributors, std::vector<std::string>{"a"});
  FinishRound();
  BeginRound(2);
  Complete(Upload("new", segments), segments);
  CloseRound();
  FinishRound();
}

}  // namespace
}  // namespace tributary::server
