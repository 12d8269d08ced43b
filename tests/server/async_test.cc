// Promises of a node in an asynchronous run, with clients that speak the protocol by hand. What a
// buffer becomes is computed here anew, from the deltas that were sent.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "tests/server/node_fixture.h"
#include "tributary/v1/checkpoint.pb.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kExample = 65536;

struct Sent {
  uint64_t seed;    // of its deltas
  uint64_t weight;  // as it is to be folded
};

class AsyncNode : public testing::Test {
 protected:
  std::string Config(int versions, int minimum, const std::string& async,
                     const std::string& mode = "async", int evaluate_every = 0) {
    return absl::StrFormat(
        "[node]\nname = \"root\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n[run]\nname = \"t\"\nrounds = %d\n"
        "model = \"%s\"\nevaluate_every = %d\n[aggregation]\nmode = \"%s\"\nfractional_weights = "
        "true\nmax_round_weight = 4096\n[async]\n%s\n"
        "[cohort]\nminimum = %d\n[checkpoint]\ndirectory = \"%s\"\nkeep = 100\n",
        versions, WriteTestModel(dir_), evaluate_every, mode, async, minimum, dir_ / "checkpoints");
  }
  std::vector<uint8_t> Model(uint64_t version) const {
    auto model = models::ReadSafetensorsAs(
        dir_ / absl::StrFormat("checkpoints/t/%08d/model.safetensors", version), TestLayout());
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->bytes : std::vector<uint8_t>();
  }
  v1::CheckpointState State(uint64_t version) const {
    std::ifstream file(dir_ / absl::StrFormat("checkpoints/t/%08d/state.pb", version));
    v1::CheckpointState state;
    EXPECT_TRUE(state.ParseFromIstream(&file));
    return state;
  }
  // base moved by `scale` times the weighted mean, in integers on the grid; counters by the
  // largest.
  static std::vector<uint8_t> Moved(std::vector<uint8_t> model, const std::vector<Sent>& sent,
                                    int fraction_bits, double scale = 1) {
    const auto layout = TestLayout();
    for (uint32_t t = 0; t < 3; ++t) {
      for (uint64_t i = 0; i < layout->TensorElements(t); ++i) {
        __int128 sum = 0;
        __int128 weight = 0;
        for (const Sent& s : sent) {
          const double delta = TestDeltas(s.seed).Value(t, i);
          sum += static_cast<__int128>(s.weight) * std::llrint(std::ldexp(delta, fraction_bits));
          weight += s.weight;
        }
        const double mean = std::ldexp(static_cast<double>(static_cast<int64_t>(sum)) /
                                           static_cast<double>(static_cast<uint64_t>(weight)),
                                       -fraction_bits);
        uint8_t* at = model.data() + layout->TensorByteOffset(t) + 4 * i;
        float value = 0;
        std::memcpy(&value, at, 4);
        value = static_cast<float>(static_cast<double>(value) + mean * scale);
        std::memcpy(at, &value, 4);
      }
    }
    uint64_t most = 0;
    for (const Sent& s : sent) most = std::max(most, s.seed);
    for (uint64_t i = 0; i < 3; ++i) {
      uint8_t* at = model.data() + layout->TensorByteOffset(3) + 8 * i;
      int64_t value = 0;
      std::memcpy(&value, at, 8);
      value += static_cast<int64_t>(most);
      std::memcpy(at, &value, 8);
    }
    return model;
  }
  static int Bits(const v1::CheckpointState& state) {
    return static_cast<int>(state.spec().grid().fraction_bits());
  }
  TempDir dir_;
};

std::vector<std::string> Names(const RoundReport& report) {
  std::vector<std::string> out;
  for (const auto& c : report.collected.contributions) {
    out.push_back(absl::StrCat(c.id, "@", c.base, "*", c.weight));
  }
  return out;
}

TEST_F(AsyncNode, AppliesEveryKUpdatesAndCountsALateOneByItsStaleness) {
  TestNode node(Config(2, 3, "buffer = 2"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b"), c(node.endpoint(), "c");
  for (RawClient* client : {&a, &b, &c}) EXPECT_EQ(client->AwaitTask().spec().base_version(), 0u);
  EXPECT_EQ(a.Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2), 3 * kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_TRUE(a.AwaitOutcome().included());
  EXPECT_TRUE(b.AwaitOutcome().included());
  EXPECT_EQ(a.AwaitTask().spec().base_version(), 1u);
  // c has had no word of version 1, and counts in version 2: 65536 / sqrt(2) = 46340.95.
  EXPECT_EQ(c.Upload(EncodeTest(3), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(a.Upload(EncodeTest(4), kExample).status(), v1::UploadResponse::ACCEPTED);
  const v1::Outcome late = c.AwaitOutcome();
  EXPECT_TRUE(late.included());
  EXPECT_EQ(late.round(), 1u) << "its update was for version 1";
  EXPECT_THAT(Names(node.Round(0)), ElementsAre("a@0*65536", "b@0*196608"));
  EXPECT_THAT(Names(node.Round(1)), ElementsAre("a@1*65536", "c@0*46341"));
  EXPECT_EQ(node.Round(1).collected.wait.closed_by, "full");
  EXPECT_THAT(ToJson(node.Round(1)), HasSubstr("\"contributions\":[[\"a\",1,1.0],[\"c\",0,0.70"));
  EXPECT_TRUE(node.End().ok());
  auto base = models::ReadSafetensorsAs(dir_ / "model.safetensors", TestLayout());
  const auto first = Moved(base->bytes, {{1, 65536}, {2, 196608}}, Bits(State(1)));
  EXPECT_EQ(Model(1), first);
  EXPECT_EQ(Model(2), Moved(first, {{3, 46341}, {4, 65536}}, Bits(State(1))));
}

TEST_F(AsyncNode, RefusesWhatIsTooOldWithTheReasonAndGivesItTheNewestModel) {
  TestNode node(Config(4, 2, "buffer = 1\nmax_staleness = 1"));
  RawClient a(node.endpoint(), "a"), slow(node.endpoint(), "slow");
  slow.AwaitTask();
  for (int version = 0; version < 2; ++version) {
    a.AwaitTask();
    EXPECT_EQ(a.Upload(EncodeTest(1), kExample).status(), v1::UploadResponse::ACCEPTED);
    a.AwaitOutcome();
  }
  a.AwaitTask();  // version 2 is there
  const v1::UploadResponse answer = slow.Upload(EncodeTest(9), kExample);
  EXPECT_EQ(answer.status(), v1::UploadResponse::STALE);
  EXPECT_EQ(answer.reason(), "staleness");
  EXPECT_THAT(answer.message(), HasSubstr("2 behind version 2; [async] max_staleness = 1"));
  EXPECT_EQ(slow.AwaitTask().spec().base_version(), 2u);
  EXPECT_EQ(slow.Upload(EncodeTest(9), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(node.Round(2).collected.result.late, 1u);
}

TEST_F(AsyncNode, AnUpdateCountsOnceAlsoWhereItIsSentAgainLater) {
  TestNode node(Config(3, 2, "buffer = 1"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  const auto first = a.Header(EncodeTest(1), kExample);
  const auto trailer = RawClient::Trailer(EncodeTest(1));
  EXPECT_EQ(a.Upload(first, EncodeTest(1), trailer).status(), v1::UploadResponse::ACCEPTED);
  a.AwaitTask();
  EXPECT_EQ(a.Upload(first, EncodeTest(1), trailer).status(), v1::UploadResponse::DUPLICATE);
  EXPECT_EQ(a.Upload(EncodeTest(2), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_THAT(Names(node.Round(1)), ElementsAre("a@1*65536"));
}

TEST_F(AsyncNode, ResumesFromItsCheckpointAndKnowsWhatHasCounted) {
  const std::string config = Config(4, 1, "buffer = 1");
  {
    TestNode node(config);
    RawClient a(node.endpoint(), "a");
    a.AwaitTask();
    a.Upload(EncodeTest(1), kExample);
    a.AwaitTask();
    a.Upload(EncodeTest(2), kExample);
    a.AwaitTask();
  }
  TestNode node(config);
  RawClient a(node.endpoint(), "a", 2);
  const v1::Joined joined = a.AwaitJoined();
  EXPECT_EQ(joined.last_outcome().round(), 2u);
  EXPECT_TRUE(joined.last_outcome().included());
  EXPECT_EQ(joined.committed_round(), 0u) << "what is younger than max_staleness may still count";
  EXPECT_EQ(a.AwaitTask().spec().base_version(), 2u);
  for (const uint64_t base : {0, 1}) {
    auto header = a.Header(EncodeTest(7), kExample);
    header.set_base_version(base);
    header.set_round(base + 1);
    EXPECT_EQ(a.Upload(header, EncodeTest(7), RawClient::Trailer(EncodeTest(7))).status(),
              v1::UploadResponse::DUPLICATE);
  }
  EXPECT_EQ(a.Upload(EncodeTest(3), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(node.Round(0).round, 3u);
  EXPECT_EQ(Model(3), Moved(Model(2), {{3, kExample}}, Bits(State(3))));
}

TEST_F(AsyncNode, SoManyTrainAtOnceAndTheNextIsGivenTheNewestModel) {
  TestNode node(Config(2, 3, "buffer = 2\nconcurrency = 1"));
  RawClient a(node.endpoint(), "a");
  a.AwaitJoined();
  RawClient b(node.endpoint(), "b");
  b.AwaitJoined();
  RawClient c(node.endpoint(), "c");
  EXPECT_EQ(a.AwaitTask().spec().base_version(), 0u);
  a.Upload(EncodeTest(1), kExample);
  EXPECT_EQ(b.AwaitTask().spec().base_version(), 0u);
  b.Upload(EncodeTest(2), kExample);
  EXPECT_EQ(c.AwaitTask().spec().base_version(), 1u) << "c had no task before";
}

TEST_F(AsyncNode, FlushesASmallerBufferAfterItsTime) {
  TestNode node(Config(1, 2, "buffer = 2\nflush_s = 0.3"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  a.Upload(EncodeTest(1), kExample);
  EXPECT_EQ(node.Round(0).collected.wait.closed_by, "flush");
  EXPECT_THAT(Names(node.Round(0)), ElementsAre("a@0*65536"));
}

TEST_F(AsyncNode, EvaluatesWithThoseWhoDoNotTrain) {
  TestNode node(Config(1, 2, "buffer = 1", "async", 1));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  b.AwaitTask();
  a.AwaitTask();
  a.Upload(EncodeTest(1), kExample);
  EXPECT_EQ(a.AwaitTask().spec().kind(), v1::EVALUATE);
  v1::SessionRequest request;
  request.mutable_report()->set_round(1);
  request.mutable_report()->set_kind(v1::EVALUATE);
  request.mutable_report()->set_contributors(1);
  v1::MetricSum* metric = request.mutable_report()->add_metrics();
  metric->set_name("test_accuracy");
  metric->set_sum(int64_t{10} << 29);
  metric->set_weight(10);
  a.Send(request);
  EXPECT_EQ(node.Round(0).evaluation.at("test_accuracy"), 0.5);  // b, which trains, was not asked
}

// FedAsync: x += alpha * s(tau) * delta, one update at a time.
TEST_F(AsyncNode, FedAsyncMixesEachUpdateInByItsAge) {
  TestNode node(Config(2, 2, "mixing = 0.5", "fedasync"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  a.Upload(EncodeTest(1), 7 * kExample);
  a.AwaitTask();
  b.Upload(EncodeTest(2), kExample);
  EXPECT_TRUE(node.End().ok());
  auto base = models::ReadSafetensorsAs(dir_ / "model.safetensors", TestLayout());
  const auto first = Moved(base->bytes, {{1, 7 * kExample}}, Bits(State(1)), 0.5);
  EXPECT_EQ(Model(1), first);
  // The age is found from the weight: 46341 * sqrt(2), to the grid's 1/65,536.
  const double scale = 0.5 * 46341 / (46341 * std::sqrt(2.0));
  EXPECT_EQ(Model(2), Moved(first, {{2, 46341}}, Bits(State(1)), scale));
}

TEST_F(AsyncNode, RacksCollectAndTheRootAppliesWhatTheyHaveTogether) {
  TestNode root(Config(2, 3, "buffer = 3"));
  const auto rack_config = [&](const std::string& name) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n",
        name, root.endpoint());
  };
  TestNode r0(rack_config("r0")), r1(rack_config("r1"));
  RawClient a(r0.endpoint(), "a"), b(r0.endpoint(), "b"), c(r1.endpoint(), "c"),
      d(r1.endpoint(), "d");
  for (RawClient* client : {&a, &b, &c, &d}) client->AwaitTask();
  a.Upload(EncodeTest(1), kExample);
  b.Upload(EncodeTest(2), kExample);
  c.Upload(EncodeTest(3), kExample);
  EXPECT_THAT(Names(root.Round(0)), ElementsAre("a@0*65536", "b@0*65536", "c@0*65536"));
  EXPECT_TRUE(a.AwaitOutcome().included());
  for (RawClient* client : {&a, &b, &c}) {
    EXPECT_EQ(client->AwaitTask().spec().base_version(), 1u);
  }
  EXPECT_EQ(d.Upload(EncodeTest(4), kExample).status(), v1::UploadResponse::ACCEPTED);
  a.Upload(EncodeTest(5), kExample);
  c.Upload(EncodeTest(6), kExample);
  EXPECT_TRUE(d.AwaitOutcome().included());
  EXPECT_THAT(Names(root.Round(1)), ElementsAre("a@1*65536", "c@1*65536", "d@0*46341"));
  EXPECT_TRUE(root.End().ok());
  EXPECT_EQ(Model(2), Moved(Model(1), {{4, 46341}, {5, 65536}, {6, 65536}}, Bits(State(2))));
}

}  // namespace
}  // namespace tributary::server
