// Promises of a node towards the slow: fixed counts, adaptive deadlines, carried updates.
#include <gmock/gmock.h>

#include <algorithm>

#include "aggregation/cohort.h"
#include "tests/server/fractional_fixture.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;

class StragglersTest : public FractionalTest {};

TEST_F(StragglersTest, AsksMoreThanItWantsAndClosesWhenThoseAreIn) {
  TestNode node(Config(1, 2, "count = 2\nover_selection = 1.5", ""));
  std::vector<std::string> line = {"a", "b", "c", "d", "e"};
  std::sort(line.begin(), line.end(), [](const auto& x, const auto& y) {
    return aggregation::CohortKey(1, 1, x, 1) < aggregation::CohortKey(1, 1, y, 1);
  });
  // The round begins with the first two; the third joins in time for the count of three.
  RawClient first(node.endpoint(), line[0]), second(node.endpoint(), line[1]);
  first.AwaitTask();
  second.AwaitTask();
  RawClient third(node.endpoint(), line[2]);
  third.AwaitTask();
  RawClient fourth(node.endpoint(), line[3]);
  fourth.AwaitJoined();
  EXPECT_EQ(first.Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(third.Upload(EncodeTest(2), kExample).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.collected.wait.closed_by, "target");
  EXPECT_EQ(report.collected.wait.asked, 3u);
  EXPECT_EQ(report.collected.wait.unanswered, 1u);
  EXPECT_EQ(report.collected.result.clients, 2u);
  EXPECT_THAT(ToJson(report), HasSubstr("\"closed_by\":\"target\""));
}

TEST_F(StragglersTest, LearnsItsDeadlineAndDoesNotWaitForTheSilent) {
  TestNode node(Config(2, 2, "", "deadline_s = 600\ndeadline_floor_s = 0.4"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b"), c(node.endpoint(), "c");
  for (RawClient* client : {&a, &b, &c}) client->AwaitTask();
  for (RawClient* client : {&a, &b, &c}) {
    EXPECT_EQ(client->Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  }
  const RoundReport first = node.Round(0);
  EXPECT_EQ(first.collected.wait.deadline, 600);
  EXPECT_EQ(first.collected.wait.closed_by, "answers");
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(2), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2), kExample).status(), v1::UploadResponse::ACCEPTED);
  // "c" says nothing. Without the adaptive deadline this test would last ten minutes.
  const RoundReport second = node.Round(1);
  EXPECT_LT(second.collected.wait.deadline, 60);
  EXPECT_EQ(second.collected.wait.closed_by, "deadline");
  EXPECT_EQ(second.collected.wait.unanswered, 1u);
  EXPECT_TRUE(second.committed) << second.why_not;
}

// Four have to be there, three are asked: a round that waited for four would wait for ever.
TEST_F(StragglersTest, ACohortSmallerThanTheMinimumLearnsItsDeadlineToo) {
  std::vector<std::string> asked, idle;
  for (int i = 0; asked.size() < 3 || idle.empty(); ++i) {
    const std::string id = absl::StrCat("c", i);
    const bool first = aggregation::InCohort(1, 1, id, 0.5);
    const bool second = aggregation::InCohort(1, 2, id, 0.5);
    if (first && second && asked.size() < 3) asked.push_back(id);
    if (!first && !second && idle.empty()) idle.push_back(id);
  }
  TestNode node(Config(2, 4, "fraction = 0.5", "deadline_s = 600\ndeadline_floor_s = 0.4"));
  RawClient a(node.endpoint(), asked[0]), b(node.endpoint(), asked[1]);
  RawClient c(node.endpoint(), asked[2]), other(node.endpoint(), idle[0]);
  for (RawClient* client : {&a, &b, &c}) client->AwaitTask();
  for (RawClient* client : {&a, &b, &c}) {
    EXPECT_EQ(client->Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  }
  EXPECT_TRUE(node.Round(0).committed);
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(2), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2), kExample).status(), v1::UploadResponse::ACCEPTED);
  // "c" says nothing.
  const RoundReport second = node.Round(1);
  EXPECT_TRUE(second.committed) << second.why_not;
  EXPECT_EQ(second.collected.wait.closed_by, "deadline");
  EXPECT_EQ(second.collected.result.clients, 2u);
}

// Twelve are asked, ten of them make 0.8 and answer; the others say nothing. Without what it learns
// within the round this test would last ten minutes.
TEST_F(StragglersTest, TheFirstRoundDoesNotWaitForTheSilentEither) {
  TestNode node(Config(1, 2, "", "deadline_s = 600\ndeadline_floor_s = 0.4"));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<RawClient>(node.endpoint(), absl::StrCat("c", i)));
  }
  for (auto& client : clients) client->AwaitTask();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(clients[i]->Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  }
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_EQ(report.collected.wait.closed_by, "deadline");
  EXPECT_EQ(report.collected.wait.unanswered, 2u);
  EXPECT_EQ(report.collected.result.clients, 10u);
}

// The same of an evaluation: two of twelve train in time, and then never say what they think of it.
TEST_F(StragglersTest, AnEvaluationDoesNotWaitForTheSilent) {
  TestNode node(Config(1, 12, "", "deadline_s = 600\ndeadline_floor_s = 0.4", 1));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<RawClient>(node.endpoint(), absl::StrCat("c", i)));
  }
  for (auto& client : clients) {
    client->AwaitTask();
    EXPECT_EQ(client->Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(clients[i]->AwaitTask().spec().kind(), v1::EVALUATE);
    v1::SessionRequest request;
    v1::Report* report = request.mutable_report();
    report->set_round(1);
    report->set_kind(v1::EVALUATE);
    report->set_contributors(1);
    v1::MetricSum* metric = report->add_metrics();
    metric->set_name("test_loss");
    metric->set_sum(int64_t{3} << 30);
    metric->set_weight(2);
    clients[i]->Send(request);
  }
  // Else this test would last ten minutes.
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.evaluation.at("test_loss"), 1.5);
  EXPECT_EQ(report.evaluation_clients, 10u);
  EXPECT_EQ(report.evaluation_examples.at("test_loss"), 20u);
}

// It sends half of its update, and is gone a moment before the round's end: its grace would last
// for a minute more.
TEST_F(StragglersTest, ASlowClientKilledJustBeforeTheCutOffDoesNotStopTheTimer) {
  TestNode node(Config(1, 1, "", "deadline = \"fixed\"\ndeadline_s = 2\nrejoin_grace_s = 60"));
  auto slow = std::make_unique<RawClient>(node.endpoint(), "slow");
  const absl::Duration left =
      absl::Milliseconds(static_cast<int64_t>(slow->AwaitTask().spec().deadline_ms()));
  const absl::Time end = absl::Now() + left;
  RawClient fast(node.endpoint(), "fast");
  fast.AwaitTask();
  EXPECT_EQ(fast.Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  absl::SleepFor(end - absl::Now() - absl::Milliseconds(100));
  slow->UploadHalf(EncodeTest(2));
  slow.reset();
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_EQ(report.collected.wait.closed_by, "deadline");
  EXPECT_THAT(report.collected.result.contributors, testing::ElementsAre("fast"));
  EXPECT_GE(report.collected.seconds, 1.9);
  EXPECT_LT(report.collected.seconds, 10);  // a slow machine adds something
}

TEST_F(StragglersTest, CarriesALateUpdateIntoTheNextRoundAndTellsItsClientSo) {
  TestNode node(Config(3, 1, "", "deadline = \"fixed\"\nquorum = 0.5\nlate = \"carry\""));
  RawClient b(node.endpoint(), "b");
  b.AwaitTask();
  RawClient a(node.endpoint(), "a");
  for (uint64_t round = 1; round <= 2; ++round) {
    EXPECT_EQ(a.AwaitTask().spec().round(), round);
    EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
    EXPECT_TRUE(node.Round(round - 1).committed);  // half of two
    // Late in its first round it is dropped: it may have been counted elsewhere. Then it is known.
    if (round == 1) {
      EXPECT_EQ(b.AwaitOutcome().round(), 1u);
      EXPECT_EQ(b.AwaitTask().spec().round(), 2u);
    }
  }
  EXPECT_EQ(a.AwaitTask().spec().round(), 3u);
  EXPECT_EQ(b.Upload(EncodeTest(2), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2), 10 * kExample).status(), v1::UploadResponse::DUPLICATE);
  EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport second = node.Round(2);
  // 655360 / sqrt(2) is 463409.502...
  EXPECT_EQ(second.collected.result.weight, 655360u + 463410u);
  EXPECT_EQ(second.collected.wait.carried, 1u);
  EXPECT_THAT(second.collected.result.contributors, testing::ElementsAre("a", "b"));
  const v1::Outcome outcome = b.AwaitOutcome();
  EXPECT_EQ(outcome.round(), 2u);
  EXPECT_TRUE(outcome.included());
}

TEST_F(StragglersTest, HoldsALateUpdateUntilTheNextRoundBeginsAndCallsNobodyAwayToEvaluate) {
  // An evaluation after the second round.
  TestNode node(Config(3, 1, "", "deadline = \"fixed\"\nquorum = 0.5\nlate = \"carry\"", 2));
  RawClient b(node.endpoint(), "b");
  b.AwaitTask();
  RawClient a(node.endpoint(), "a");
  a.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.AwaitOutcome().round(), 1u);
  EXPECT_EQ(b.AwaitTask().spec().round(), 2u);
  EXPECT_EQ(a.AwaitTask().spec().round(), 2u);
  EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(a.AwaitTask().spec().kind(), v1::EVALUATE);
  v1::UploadResponse late;
  std::thread upload([&] { late = b.Upload(EncodeTest(2), 10 * kExample); });
  node.AwaitPhase("hold");  // else it may come when the round has begun already
  v1::SessionRequest request;
  v1::Report* report = request.mutable_report();
  report->set_round(2);
  report->set_kind(v1::EVALUATE);
  report->set_contributors(1);
  a.Send(request);
  EXPECT_EQ(a.AwaitTask().spec().round(), 3u);
  upload.join();
  EXPECT_EQ(late.status(), v1::UploadResponse::ACCEPTED) << late.message();
  EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  const v1::Outcome outcome = b.AwaitOutcome();
  EXPECT_EQ(outcome.round(), 2u) << "the next outcome that it hears of is of what it owed";
  EXPECT_TRUE(outcome.included());
}

TEST_F(StragglersTest, HoldsOneLateUpdateOfAClientAndNoMore) {
  TestNode node(Config(3, 1, "", "deadline = \"fixed\"\nquorum = 0.5\nlate = \"carry\"", 2));
  RawClient b(node.endpoint(), "b");
  b.AwaitTask();
  RawClient a(node.endpoint(), "a");
  a.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.AwaitTask().spec().round(), 2u);
  EXPECT_EQ(a.AwaitTask().spec().round(), 2u);
  EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(a.AwaitTask().spec().kind(), v1::EVALUATE);
  // Two at once: whichever comes first makes room for the other, while the round is not there yet.
  std::mutex mu;
  std::condition_variable changed;
  std::vector<v1::UploadResponse> answers;
  std::vector<std::thread> uploads;
  for (int i = 0; i < 2; ++i) {
    uploads.emplace_back([&] {
      const v1::UploadResponse answer = b.Upload(EncodeTest(2), 10 * kExample);
      const std::lock_guard lock(mu);
      answers.push_back(answer);
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mu);
    EXPECT_TRUE(
        changed.wait_for(lock, absl::ToChronoSeconds(kPatience), [&] { return !answers.empty(); }));
  }
  v1::SessionRequest request;
  v1::Report* report = request.mutable_report();
  report->set_round(2);
  report->set_kind(v1::EVALUATE);
  report->set_contributors(1);
  a.Send(request);
  for (std::thread& upload : uploads) upload.join();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].status(), v1::UploadResponse::STALE);
  EXPECT_EQ(answers[0].message(), "a newer upload of this id replaced it");
  EXPECT_EQ(answers[1].status(), v1::UploadResponse::ACCEPTED) << answers[1].message();
}

// Nine tenths of what is left of the round, by the deadline that it has learnt.
TEST_F(StragglersTest, TellsClientsHowLongTheyMayTrainWhereTheyMaySendWhatTheyHave) {
  const auto seconds = [](RawClient& client) {
    const v1::RoundSpec spec = client.AwaitTask().spec();
    const auto& told = spec.hyperparameters();
    const auto it = told.find("seconds");
    return it == told.end() ? 0 : it->second;
  };
  const std::string straggler = "deadline_s = 100\ndeadline_floor_s = 10\npartial_work = true\n";
  TestNode node(Config(2, 3, "", straggler + "[training]\nfednova = 1"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b"), c(node.endpoint(), "c");
  const Segments segments = EncodeTest(1);
  for (RawClient* client : {&a, &b, &c}) {
    const double first = seconds(*client);
    EXPECT_GT(first, 50) << "the deadline is a hundred seconds";
    EXPECT_LE(first, 90);
    v1::UploadHeader header = client->Header(segments, kExample);
    v1::Metric* steps = header.add_metrics();
    steps->set_name("local_kilosteps");
    steps->set_value(1.0 / 1024);
    steps->set_weight(1);
    EXPECT_EQ(client->Upload(header, segments, RawClient::Trailer(segments)).status(),
              v1::UploadResponse::ACCEPTED);
  }
  EXPECT_TRUE(node.Round(0).committed) << node.Round(0).why_not;
  const double second = seconds(a);
  EXPECT_GT(second, 0);
  EXPECT_LE(second, 90) << "by what it has learnt; ten seconds at least, of which nine are its";
}

TEST_F(StragglersTest, SaysNothingOfSecondsUnlessItIsAskedTo) {
  TestNode node(Config(1, 1, "", ""));
  RawClient a(node.endpoint(), "a");
  EXPECT_EQ(a.AwaitTask().spec().hyperparameters().count("seconds"), 0u);
}

TEST_F(StragglersTest, RefusesConfigsThatContradictThemselves) {
  const auto error = [&](const std::string& cohort, const std::string& straggler) {
    const auto config = ParseConfig(
        absl::StrReplaceAll(Config(1, 2, cohort, straggler), {{"fractional_weights = true\n", ""}}),
        "t.toml");
    return std::string(config.status().message());
  };
  EXPECT_THAT(error("", "late = \"carry\""), HasSubstr("fractional_weights = true"));
  EXPECT_THAT(error("count = 1", ""), HasSubstr("minimum = 2 passes count = 1"));
  EXPECT_THAT(error("count = 5\nfraction = 0.5", ""), HasSubstr("exclude each other"));
  EXPECT_THAT(error("over_selection = 2", ""), HasSubstr("without count"));
  EXPECT_THAT(error("", "[training]\nfednova = 1\nmu = 0.1"), HasSubstr("exclude each other"));
  EXPECT_THAT(error("", "partial_work = true"), HasSubstr("set [training] fednova = 1"));
  EXPECT_THAT(error("", "deadline = \"adaptiv\""), HasSubstr("did you mean \"adaptive\"?"));
}

}  // namespace
}  // namespace tributary::server
