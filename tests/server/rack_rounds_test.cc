// A rack with rounds of its own, by raw clients: its numbers and outcomes, a rack that is started
// again, and a client that moves while its rack is in the middle of them.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "compression/segment.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

class RackRoundsTest : public NodeTest {
 protected:
  std::string Root(int own_rounds, int evaluate_every = 0, int minimum = 1) {
    return absl::StrFormat(
        "[node]\nname = \"global\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n[run]\nname = \"test\"\nrounds = 1\nmodel = \"%s\"\nrack_rounds = %d\n"
        "evaluate_every = %d\n[cohort]\nminimum = %d\nfraction = 0.999999\n[straggler]\n"
        "deadline = \"fixed\"\nrejoin_grace_s = 60\n[checkpoint]\ndirectory = \"%s\"\n",
        WriteTestModel(dir_), own_rounds, evaluate_every, minimum,
        dir_ / absl::StrCat("checkpoints-", runs_));
  }
  static std::string Rack(const std::string& name, const TestNode& root) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = [\"%s\"]\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n",
        name, root.endpoint());
  }
  // Takes the task of own round `round` and answers it.
  static void Play(RawClient& client, uint64_t round, uint64_t seed) {
    const v1::RoundSpec spec = client.AwaitTask().spec();
    EXPECT_EQ(spec.round(), round);
    EXPECT_EQ(spec.kind(), v1::TRAIN);
    EXPECT_EQ(spec.rack_rounds(), 0u) << "the rounds are the rack's affair";
    EXPECT_EQ(client.Upload(EncodeTest(seed)).status(), v1::UploadResponse::ACCEPTED);
  }
  // The test model moved by the deltas of these seeds, one after the other: exact in float.
  static void ExpectMovedBy(const std::vector<uint8_t>& model, const std::vector<uint64_t>& seeds) {
    ASSERT_EQ(model.size(), TestLayout()->model_bytes());
    uint64_t at = 0;
    for (uint32_t t = 0; t < 3; ++t) {
      for (uint64_t i = 0; i < TestLayout()->TensorElements(t); ++i, ++at) {
        float want = static_cast<float>(at % 64) / 8, got;
        for (const uint64_t seed : seeds) want += TestDeltas(seed).Value(t, i);
        std::memcpy(&got, model.data() + 4 * at, 4);
        ASSERT_EQ(got, want) << t << " " << i;
      }
    }
    int64_t counter, sum = 100;
    for (const uint64_t seed : seeds) sum += static_cast<int64_t>(seed);
    std::memcpy(&counter, model.data() + TestLayout()->TensorByteOffset(3), 8);
    EXPECT_EQ(counter, sum);
  }
};

TEST_F(RackRoundsTest, AreNumberedOnAndToldOfOneByOneAndTheEvaluationComesAfterThem) {
  TestNode root(Root(3, 1));
  TestNode rack(Rack("rack-0", root));
  RawClient a(rack.endpoint(), "a");
  for (uint64_t own = 1; own <= 3; ++own) {
    Play(a, own, own);
    const v1::Outcome outcome = a.AwaitOutcome();
    EXPECT_EQ(outcome.round(), own);
    EXPECT_TRUE(outcome.committed());
    EXPECT_TRUE(outcome.included());
  }
  const v1::RoundSpec spec = a.AwaitTask().spec();
  EXPECT_EQ(spec.kind(), v1::EVALUATE);
  EXPECT_EQ(spec.round(), 3u);
  v1::SessionRequest request;
  v1::Report* const report = request.mutable_report();
  report->set_round(3);
  report->set_kind(v1::EVALUATE);
  report->set_contributors(1);
  v1::MetricSum* const metric = report->add_metrics();
  metric->set_name("test_accuracy");
  metric->set_sum(int64_t{10} << 29);
  metric->set_weight(10);
  a.Send(request);
  const RoundReport round = root.Round(0);
  EXPECT_EQ(round.round, 1u);
  EXPECT_EQ(round.collected.result.clients, 1u);
  EXPECT_EQ(round.collected.result.weight, 10u);
  EXPECT_EQ(round.evaluation.at("test_accuracy"), 0.5);
  ExpectMovedBy(Model(), {1, 2, 3});
}

TEST_F(RackRoundsTest, ARackStartedAgainInTheMiddleBeginsThemAnew) {
  TestNode root(Root(2));
  {
    TestNode rack(Rack("rack-0", root));
    RawClient a(rack.endpoint(), "a", 1);
    Play(a, 1, 7);
    EXPECT_EQ(a.AwaitTask().spec().round(), 2u);
  }
  TestNode rack(Rack("rack-0", root));
  RawClient a(rack.endpoint(), "a", 2);
  Play(a, 1, 3);
  Play(a, 2, 4);
  EXPECT_TRUE(root.Round(0).committed);
  ExpectMovedBy(Model(), {3, 4});
}

TEST_F(RackRoundsTest, AClientThatMovesInTheMiddleCountsOnce) {
  TestNode root(Root(2, 0, 3));
  TestNode one(Rack("rack-1", root)), two(Rack("rack-2", root));
  RawClient x(one.endpoint(), "x"), y(two.endpoint(), "y");
  {
    RawClient moving(one.endpoint(), "m", 1);
    Play(moving, 1, 1);
    Play(x, 1, 2);
    // It sits the second out, and is gone.
    EXPECT_EQ(moving.AwaitTask().spec().round(), 2u);
    v1::SessionRequest request;
    request.mutable_report()->set_round(2);
    request.mutable_report()->set_kind(v1::TRAIN);
    request.mutable_report()->set_declined("moving on");
    moving.Send(request);
    request.mutable_leave()->set_reason("moving on");
    moving.Send(request);
    moving.Await([](const auto&) { return false; });  // until the stream ends
  }
  RawClient moved(two.endpoint(), "m", 2);
  Play(moved, 1, 1);
  Play(y, 1, 3);
  Play(moved, 2, 1);
  Play(y, 2, 3);
  Play(x, 2, 2);
  const RoundReport report = root.Round(0);
  ASSERT_TRUE(report.committed) << report.why_not;
  const std::vector<std::string>& contributors = report.collected.result.contributors;
  EXPECT_EQ(std::count(contributors.begin(), contributors.end(), "m"), 1);
  EXPECT_EQ(report.collected.result.clients, contributors.size());
  EXPECT_EQ(report.collected.result.weight, 10 * contributors.size());
  // The sum that would count it again is refused whole, and all its clients are told.
  EXPECT_EQ(report.collected.result.rejected.at("duplicate_clients"), 1u);
  EXPECT_EQ(contributors.size(), 2u);
  for (auto& [id, client] : std::map<std::string, RawClient*>{{"x", &x}, {"y", &y}}) {
    const v1::Outcome outcome = client->AwaitOutcome();
    const bool in = std::count(contributors.begin(), contributors.end(), id) == 1;
    EXPECT_EQ(outcome.round(), 2u);
    EXPECT_TRUE(outcome.committed());
    EXPECT_EQ(outcome.included(), in) << id;
    EXPECT_EQ(outcome.reason().empty(), in) << id;
  }
}

// What docs/operations.md says of a line, at a rack: what it took in itself, and at the root what
// came from below.
TEST_F(RackRoundsTest, ARacksOwnFileCountsWhatItTookOfItsClientsAndWhatItRefused) {
  TestNode root(Root(1, 0, 3));
  const std::string file = dir_ / "rack-0-rounds.jsonl";
  TestNode rack(absl::StrCat(Rack("rack-0", root), "[metrics]\nrounds_file = \"", file, "\"\n"));
  RawClient bad(rack.endpoint(), "bad");
  bad.AwaitJoined();
  RawClient a(rack.endpoint(), "a"), b(rack.endpoint(), "b");
  bad.AwaitTask();
  Segments segments = EncodeTest(3);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(segments[0].data() + compression::SegmentHeader::kBytes, &nan, sizeof(nan));
  EXPECT_EQ(bad.Upload(segments).status(), v1::UploadResponse::REJECTED);
  Play(a, 1, 1);
  Play(b, 1, 2);
  EXPECT_TRUE(rack.Round(0).committed);
  std::vector<nlohmann::json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 1u);
  const nlohmann::json& line = lines[0];
  SCOPED_TRACE(line.dump());
  EXPECT_EQ(line.at("run"), "test");
  EXPECT_EQ(line.at("node"), "rack-0");
  EXPECT_EQ(line.at("role"), "rack");
  EXPECT_EQ(line.at("round"), 1);
  EXPECT_EQ(line.at("committed"), true);
  EXPECT_EQ(line.at("accepted"), 2);
  EXPECT_EQ(line.at("weight"), 20);
  EXPECT_EQ(line.at("late"), 0);
  EXPECT_EQ(line.at("rejected"), (nlohmann::json{{"non_finite", 1}}));
  EXPECT_EQ(line.at("children"), 2);
  EXPECT_EQ(line.at("transport"), "tcp");
  const uint64_t bytes = RawClient::Trailer(EncodeTest(1)).encoded_bytes() +
                         RawClient::Trailer(EncodeTest(2)).encoded_bytes();
  EXPECT_EQ(line.at("bytes").at("from_clients"), bytes);
  EXPECT_EQ(line.at("bytes").at("from_aggregators"), 0);
  EXPECT_EQ(line.at("bytes").at("updates_below"), bytes);
  const auto above = nlohmann::json::parse(ToJson(root.Round(0)));
  EXPECT_EQ(above.at("accepted"), 2);
  EXPECT_EQ(above.at("rejected"), line.at("rejected"));
  EXPECT_EQ(above.at("bytes").at("from_clients"), 0);
  EXPECT_EQ(above.at("bytes").at("updates_below"), bytes);
}

}  // namespace
}  // namespace tributary::server
