// Federated evaluation through tiers: what the root reports is, to the bit, the exact sum of what
// the clients said, whichever aggregators it came through.
#include <gmock/gmock.h>

#include <cmath>

#include "aggregation/grid.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

struct Score {
  double loss;
  double accuracy;
  uint64_t examples;
};
// As doubles their sum depends on the order: 1e-9 beside 4,095.
constexpr Score kScores[] = {{0.1, 1.0 / 3, 7},
                             {4095.9, 0, 1},
                             {1e-9, 0.99999, 1'000'003},
                             {2.7182818, 0.5, 12},
                             {0.30000001, 0.7, 999}};

v1::SessionRequest ReportOf(const Score& score, uint64_t round = 1) {
  google::protobuf::RepeatedPtrField<v1::Metric> metrics;
  for (const auto& [name, value] :
       {std::pair("test_loss", score.loss), {"test_accuracy", score.accuracy}}) {
    v1::Metric* metric = metrics.Add();
    metric->set_name(name);
    metric->set_value(value);
    metric->set_weight(score.examples);
  }
  v1::SessionRequest request;
  v1::Report* report = request.mutable_report();
  report->set_round(round);
  report->set_kind(v1::EVALUATE);
  report->set_contributors(1);
  *report->mutable_metrics() = *aggregation::MetricsToSums(metrics);
  return request;
}

// In integers, by hand; divided once.
double MeanOf(double (*value)(const Score&)) {
  __int128 sum = 0;
  uint64_t examples = 0;
  for (const Score& score : kScores) {
    sum += static_cast<__int128>(std::llrint(std::ldexp(value(score), 30))) *
           static_cast<int64_t>(score.examples);
    examples += score.examples;
  }
  return static_cast<double>(static_cast<int64_t>(sum)) / static_cast<double>(examples) * 0x1p-30;
}

class EvaluationTest : public NodeTest {
 protected:
  std::string Root(uint32_t clients) {
    return absl::StrReplaceAll(Config("", 1, clients),
                               {{"evaluate_every = 0", "evaluate_every = 1"}});
  }
  static std::string Below(const std::string& name, const TestNode& parent) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n",
        name, parent.endpoint());
  }
  // Each trains, and says what it thinks of the model that came of it.
  static RoundReport Play(TestNode& root, const std::vector<std::string>& doors) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (size_t i = 0; i < doors.size(); ++i) {
      clients.push_back(std::make_unique<RawClient>(doors[i], absl::StrCat("c", i)));
    }
    for (auto& client : clients) {
      client->AwaitTask();
      EXPECT_EQ(client->Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
    }
    for (size_t i = 0; i < clients.size(); ++i) {
      EXPECT_EQ(clients[i]->AwaitTask().spec().kind(), v1::EVALUATE);
      clients[i]->Send(ReportOf(kScores[i]));
    }
    return root.Round(0);
  }
  static void Check(const RoundReport& report) {
    EXPECT_THAT(
        report.evaluation,
        ElementsAre(
            Pair("test_accuracy", MeanOf([](const Score& score) { return score.accuracy; })),
            Pair("test_loss", MeanOf([](const Score& score) { return score.loss; }))));
    const uint64_t examples = 7 + 1 + 1'000'003 + 12 + 999;
    EXPECT_THAT(report.evaluation_examples,
                ElementsAre(Pair("test_accuracy", examples), Pair("test_loss", examples)));
    EXPECT_EQ(report.evaluation_clients, 5u);
    EXPECT_THAT(ToJson(report),
                ::testing::HasSubstr("\"evaluation_examples\":{\"test_accuracy\":1001022,"
                                     "\"test_loss\":1001022},\"evaluation_clients\":5"));
  }
};

TEST_F(EvaluationTest, LossAccuracyAndCountsAreTheExactSumsOfWhatClientsSay) {
  TestNode root(Root(5));
  Check(Play(root, std::vector<std::string>(5, root.endpoint())));
}

TEST_F(EvaluationTest, TiersChangeNoBitOfThem) {
  TestNode root(Root(5));
  TestNode region(Below("region", root)), rack(Below("rack", root));
  TestNode one(Below("one", region)), two(Below("two", region));
  Check(Play(root,
             {two.endpoint(), rack.endpoint(), one.endpoint(), root.endpoint(), two.endpoint()}));
}

TEST_F(EvaluationTest, WhoHasNothingToEvaluateWithIsLeftOut) {
  TestNode root(Root(2));
  TestNode rack(Below("rack", root));
  RawClient a(rack.endpoint(), "a"), b(rack.endpoint(), "b");
  for (RawClient* client : {&a, &b}) {
    client->AwaitTask();
    EXPECT_EQ(client->Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  }
  for (RawClient* client : {&a, &b}) EXPECT_EQ(client->AwaitTask().spec().kind(), v1::EVALUATE);
  a.Send(ReportOf(kScores[3]));
  v1::SessionRequest request;
  request.mutable_report()->set_round(1);
  request.mutable_report()->set_kind(v1::EVALUATE);
  request.mutable_report()->set_declined("no test data");
  b.Send(request);
  const RoundReport report = root.Round(0);
  EXPECT_EQ(report.evaluation_clients, 1u);
  EXPECT_EQ(report.evaluation_examples.at("test_loss"), 12u);
  EXPECT_EQ(report.evaluation.at("test_accuracy"), 0.5);
}

}  // namespace
}  // namespace tributary::server
