// Reports of bias, and weights against it, at a node with clients by hand.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "tests/server/fractional_fixture.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;

class ParticipationTest : public FractionalTest {
 protected:
  // Three rounds that one of two closes: "a" the first two, "b" the last.
  std::vector<RoundReport> ThreeRounds(const std::string& cohort) {
    TestNode node(Config(3, 1, cohort, "deadline = \"fixed\"\nquorum = 0.5"));
    RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
    std::vector<RoundReport> reports;
    for (int round = 0; round < 3; ++round) {
      a.AwaitTask();
      b.AwaitTask();
      // Both are asked before one answers.
      if (round == 2) {
        EXPECT_EQ(b.Upload(EncodeTest(2), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
      } else {
        EXPECT_EQ(a.Upload(EncodeTest(1), 10 * kExample).status(), v1::UploadResponse::ACCEPTED);
      }
      reports.push_back(node.Round(static_cast<size_t>(round)));
    }
    EXPECT_EQ(node.End(), absl::OkStatus());
    return reports;
  }
};

TEST_F(ParticipationTest, IsCountedAndWrittenAtTheEnd) {
  const auto reports = ThreeRounds("");
  ASSERT_EQ(reports.size(), 3u);
  // Ever in: "a" in two of three rounds, "b" in one of one.
  const aggregation::ParticipationSummary& last = reports[2].participation;
  EXPECT_EQ(last.clients, 2u);
  EXPECT_DOUBLE_EQ(last.least, 2.0 / 3);
  EXPECT_DOUBLE_EQ(last.most, 1);
  EXPECT_THAT(ToJson(reports[0]), HasSubstr("\"participation\":{\"clients\":1,"));
  std::ifstream file(dir_ / "checkpoints/t/rounds-participation.csv");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "client,asked,in\na,3,2\nb,1,1\n");
}

TEST_F(ParticipationTest, ExamplesWeighTheSameUnlessAskedFor) {
  for (const RoundReport& report : ThreeRounds("")) {
    EXPECT_EQ(report.collected.result.weight, uint64_t{10 * kExample});
  }
}

// most_gain = 4: all are multiplied by 1/4. After two rounds "a" was in twice of two, "b" never:
// its probability is 1/3, and its weight 3 times that of "a".
TEST_F(ParticipationTest, WhoWasAwayWeighsMoreByTheInverseOfItsProbability) {
  const auto reports = ThreeRounds("weighting = \"inverse_probability\"\nmost_gain = 4\n");
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[0].collected.result.weight, 163840u);  // 655360 / 4
  EXPECT_EQ(reports[1].collected.result.weight, 163840u);
  EXPECT_EQ(reports[2].collected.result.weight, 491520u);
}

// most_gain = 2: "b" would gain 3 times.
TEST_F(ParticipationTest, NobodyGainsMoreThanIsAllowed) {
  const auto reports = ThreeRounds("weighting = \"inverse_probability\"\nmost_gain = 2\n");
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[0].collected.result.weight, 327680u);
  EXPECT_EQ(reports[2].collected.result.weight, 655360u);
}

// "a" has eight examples, six of label 0 and two of label 1; "b" has 24, all of label 1.
TEST_F(ParticipationTest, SharesOfLabelsAreOfTheExamplesOfTheCohortThatIsIn) {
  TestNode node(Config(2, 1, "", "deadline = \"fixed\""));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  const auto upload = [](const RawClient& client, double first, double second, uint64_t examples) {
    v1::UploadHeader header = client.Header(EncodeTest(1), kExample);
    for (const double share : {first, second}) {
      v1::Metric* metric = header.add_metrics();
      metric->set_name(share == first ? "label.0" : "label.1");
      metric->set_value(share);
      metric->set_weight(examples);
    }
    return header;
  };
  // The first round has "a" alone.
  a.AwaitTask();
  b.AwaitTask();
  v1::SessionRequest request;
  request.mutable_report()->set_round(1);
  request.mutable_report()->set_kind(v1::TRAIN);
  request.mutable_report()->set_declined("not now");
  b.Send(request);
  const Segments segments = EncodeTest(1);
  const v1::UploadTrailer trailer = RawClient::Trailer(segments);
  EXPECT_EQ(a.Upload(upload(a, 0.75, 0.25, 8), segments, trailer).status(),
            v1::UploadResponse::ACCEPTED);
  const RoundReport alone = node.Round(0);
  EXPECT_EQ(alone.metrics.at("label.0"), 0.75);
  EXPECT_EQ(alone.metrics.at("label.1"), 0.25);
  // The second has both: (6 + 0) / 32 and (2 + 24) / 32.
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(upload(a, 0.75, 0.25, 8), segments, trailer).status(),
            v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(upload(b, 0, 1, 24), segments, trailer).status(),
            v1::UploadResponse::ACCEPTED);
  const RoundReport both = node.Round(1);
  EXPECT_EQ(both.metrics.at("label.0"), 6.0 / 32);
  EXPECT_EQ(both.metrics.at("label.1"), 26.0 / 32);
}

}  // namespace
}  // namespace tributary::server
