// The promises of one node, kept against clients that do well and clients that do not.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "compression/segment.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

constexpr uint64_t kEpoch = 1;

class NodeTest : public testing::Test {
 protected:
  std::string Config(const std::string& more = "", uint32_t rounds = 1, uint32_t minimum = 2) {
    return absl::StrFormat(
        "[node]\nname = \"global\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n"
        "[run]\nname = \"test\"\nrounds = %d\nmodel = \"%s\"\nevaluate_every = 0\nstartup_limit_s "
        "= 30\n"
        "[cohort]\nminimum = %d\n[checkpoint]\ndirectory = \"%s\"\n%s",
        rounds, WriteTestModel(dir_), minimum, dir_ / absl::StrCat("checkpoints-", ++runs_), more);
  }
  std::vector<uint8_t> Model() const {
    auto checkpoint = models::ReadSafetensorsAs(
        dir_ / absl::StrCat("checkpoints-", runs_, "/test/00000001/model.safetensors"),
        TestLayout());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? checkpoint->bytes : std::vector<uint8_t>();
  }

  // The hash after one round of two honest clients with seeds 1 and 2, and nobody else.
  std::string HonestHash() {
    TestNode node(Config());
    RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
    a.AwaitTask();
    b.AwaitTask();
    EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
    EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
    return node.Round(0).model_sha256;
  }

  TempDir dir_;
  int runs_ = 0;
};

TEST_F(NodeTest, ModelIsBasePlusWeightedMeanOfDeltas) {
  TestNode node(Config());
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  ASSERT_EQ(a.Upload(EncodeTest(1), 10).status(), v1::UploadResponse::ACCEPTED);
  ASSERT_EQ(b.Upload(EncodeTest(2), 30).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.collected.result.weight, 40u);
  ASSERT_TRUE(node.End().ok());
  const std::vector<uint8_t> bytes = Model();
  ASSERT_EQ(bytes.size(), TestLayout()->model_bytes());
  const TestDeltas one(1), two(2);
  const uint64_t count = TestLayout()->TensorElements(0);
  for (uint64_t i = 0; i < count; ++i) {
    float got = 0;
    std::memcpy(&got, bytes.data() + 4 * i, 4);
    const double base = static_cast<double>(i % 64) / 8;
    const double mean = (10.0 * one.Value(0, i) + 30.0 * two.Value(0, i)) / 40.0;
    ASSERT_EQ(got, static_cast<float>(base + mean)) << "element " << i;
  }
  // Counters: MAX over deltas 1 and 2, on a base of 100, still int64.
  for (int i = 0; i < 3; ++i) {
    int64_t counter = 0;
    std::memcpy(&counter, bytes.data() + TestLayout()->TensorByteOffset(3) + 8 * i, 8);
    EXPECT_EQ(counter, 102);
  }
}

TEST_F(NodeTest, UpdateSentTwiceCountsOnce) {
  const std::string expected = HonestHash();
  TestNode node(Config());
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::DUPLICATE);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_EQ(report.model_sha256, expected);
  EXPECT_EQ(report.collected.result.weight, 20u);
}

TEST_F(NodeTest, UploadCutAtHalfCountsForNothingAndOnceWhenSentAgain) {
  const std::string expected = HonestHash();
  TestNode node(Config());
  RawClient b(node.endpoint(), "b");
  {
    RawClient a(node.endpoint(), "a", kEpoch);
    a.AwaitTask();
    a.UploadHalf(EncodeTest(1));
  }  // its session is gone too
  RawClient again(node.endpoint(), "a", kEpoch + 1);
  again.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(again.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_EQ(report.model_sha256, expected);
  EXPECT_EQ(report.collected.result.clients, 2u);
  EXPECT_TRUE(again.AwaitOutcome().included());
}

TEST_F(NodeTest, UpdateForTheRoundBeforeIsStale) {
  TestNode node(Config("", 2));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  const Segments segments = EncodeTest(1);
  const v1::UploadHeader first = a.Header(segments);
  a.Upload(segments);
  b.Upload(EncodeTest(2));
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(first, segments, RawClient::Trailer(segments)).status(),
            v1::UploadResponse::STALE);
  a.Upload(EncodeTest(1));
  b.Upload(EncodeTest(2));
  const RoundReport report = node.Round(1);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.collected.result.late, 1u);
}

// ---- Refusals: each with its reason, and the others' result as if the offender had never been.

struct Offence {
  std::string name;
  std::string reason;
  std::function<v1::UploadResponse(RawClient&)> commit;
  // Not counted as an answer: the offender must answer otherwise for the round to close.
  bool still_awaited = false;
};

Segments WithFloat(float value, const std::string& codec = "fp32") {
  Segments segments = EncodeTest(3, codec);
  // The first element of the first segment, right behind its header.
  std::memcpy(segments[0].data() + compression::SegmentHeader::kBytes, &value, 4);
  return segments;
}

// Rewrites the header of segment `n`.
Segments WithHeader(size_t n, const std::function<void(compression::SegmentHeader&)>& change) {
  Segments segments = EncodeTest(3);
  const PiecedBytes bytes{ByteSpan(segments[n])};
  ByteCursor cursor(bytes);
  compression::SegmentHeader header = *compression::ReadSegmentHeader(&cursor);
  change(header);
  compression::WriteSegmentHeader(header, segments[n].data());
  return segments;
}

v1::UploadResponse Send(RawClient& client, const Segments& segments) {
  return client.Upload(segments);
}

std::vector<Offence> Offences() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto weight = [](int64_t w) {
    return [w](RawClient& c) { return c.Upload(EncodeTest(3), w); };
  };
  return {
      {"NaN", "non_finite", [=](RawClient& c) { return Send(c, WithFloat(nan)); }},
      {"Inf", "non_finite", [=](RawClient& c) { return Send(c, WithFloat(-inf)); }},
      {"BeyondTheBound", "bound", [=](RawClient& c) { return Send(c, WithFloat(1e30f)); }},
      {"NaNScale", "non_finite", [=](RawClient& c) { return Send(c, WithFloat(nan, "int8")); }},
      {"WeightZero", "weight", weight(0), true},
      {"WeightNegative", "weight", weight(-5), true},
      {"WeightOverTheCap", "weight", weight(1'000'000), true},
      {"LayoutHash", "layout",
       [](RawClient& c) {
         const Segments s = EncodeTest(3);
         v1::UploadHeader header = c.Header(s);
         header.set_layout_hash(std::string(32, 'x'));
         return c.Upload(header, s, RawClient::Trailer(s));
       },
       true},
      {"MissingTensor", "layout",
       [](RawClient& c) {
         Segments s = EncodeTest(3);
         s.pop_back();
         return Send(c, s);
       }},
      {"ExtraTensor", "layout",
       [](RawClient& c) { return Send(c, WithHeader(0, [](auto& h) { h.tensor = 9; })); }},
      {"OtherSize", "layout",
       [](RawClient& c) { return Send(c, WithHeader(1, [](auto& h) { h.count += 1; })); }},
      {"ChunkOutOfOrder", "layout",
       [](RawClient& c) {
         Segments s = EncodeTest(3);
         std::swap(s[0], s[1]);
         return Send(c, s);
       }},
      {"UnknownCodec", "codec",
       [](RawClient& c) { return Send(c, WithHeader(0, [](auto& h) { h.codec = 999; })); }},
      {"TruncatedPayload", "malformed",
       [](RawClient& c) {
         Segments s = EncodeTest(3);
         s.back().resize(s.back().size() - 3);
         return Send(c, s);
       }},
      {"OverlongPayload", "size",
       [](RawClient& c) {
         const Segments honest = EncodeTest(3);
         Segments longer = honest;
         longer.push_back(std::vector<uint8_t>(100, 0));
         return c.Upload(c.Header(honest), longer, RawClient::Trailer(longer));
       }},
      {"DeclaresMoreThanTheBudget", "size",
       [](RawClient& c) {
         const Segments s = EncodeTest(3);
         v1::UploadHeader header = c.Header(s);
         header.set_encoded_bytes(uint64_t{1} << 60);
         return c.Upload(header, s, RawClient::Trailer(s));
       }},
      {"UnknownRun", "run",
       [](RawClient& c) {
         const Segments s = EncodeTest(3);
         v1::UploadHeader header = c.Header(s);
         header.set_run("another");
         return c.Upload(header, s, RawClient::Trailer(s));
       },
       true},
  };
}

class OffenceTest : public NodeTest, public testing::WithParamInterface<Offence> {};

TEST_P(OffenceTest, IsRefusedWithItsReasonAndLeavesTheOthersBitIdentical) {
  const std::string expected = HonestHash();
  TestNode node(Config("[aggregation]\nmax_client_weight = 1000\n"));
  // Three are present before the round starts: two honest ones are its minimum.
  RawClient bad(node.endpoint(), "offender");
  bad.AwaitJoined();
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  bad.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  const v1::UploadResponse answer = GetParam().commit(bad);
  EXPECT_EQ(answer.status(), v1::UploadResponse::REJECTED);
  EXPECT_EQ(answer.reason(), GetParam().reason) << answer.message();
  EXPECT_FALSE(answer.message().empty());
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  if (GetParam().still_awaited) {
    v1::SessionRequest decline;
    decline.mutable_report()->set_round(1);
    decline.mutable_report()->set_kind(v1::TRAIN);
    decline.mutable_report()->set_declined("found out");
    bad.Send(decline);
  }
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.collected.result.clients, 2u);
  EXPECT_EQ(report.model_sha256, expected);
}

INSTANTIATE_TEST_SUITE_P(All, OffenceTest, testing::ValuesIn(Offences()),
                         [](const auto& info) { return info.param.name; });

TEST_F(NodeTest, BitFlippedUploadIsAskedForAgainAndThenCounts) {
  const std::string expected = HonestHash();
  TestNode node(Config());
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  const Segments honest = EncodeTest(1);
  Segments flipped = honest;
  flipped[0].back() ^= 1;
  EXPECT_EQ(a.Upload(a.Header(honest), flipped, RawClient::Trailer(honest)).status(),
            v1::UploadResponse::RETRY);
  EXPECT_EQ(a.Upload(honest).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(node.Round(0).model_sha256, expected);
}

TEST_F(NodeTest, NewerSessionWithTheSameIdWinsAndTheOlderIsTold) {
  const std::string expected = HonestHash();
  TestNode node(Config());
  RawClient old(node.endpoint(), "a", kEpoch);
  old.AwaitJoined();
  RawClient fresh(node.endpoint(), "a", kEpoch + 1);
  EXPECT_EQ(old.AwaitStop().kind(), v1::Stop::SUPERSEDED);
  RawClient b(node.endpoint(), "b");
  fresh.AwaitTask();
  b.AwaitTask();
  fresh.Upload(EncodeTest(1));
  b.Upload(EncodeTest(2));
  EXPECT_EQ(node.Round(0).model_sha256, expected);
}

TEST_F(NodeTest, SessionForAnUnknownRunIsRefused) {
  TestNode node(Config());
  RawClient client(node.endpoint(), "a", kEpoch, "another");
  const auto answer = client.Await([](const auto&) { return true; });
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->has_refused());
  EXPECT_THAT(answer->refused().reason(), testing::HasSubstr("\"another\""));
}

TEST_F(NodeTest, RoundWhoseEveryUpdateWasRefusedFailsCleanlyAndTheNextRuns) {
  TestNode node(Config("", 2));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  a.Upload(WithFloat(nan));
  b.Upload(WithFloat(nan));
  const RoundReport failed = node.Round(0);
  EXPECT_FALSE(failed.committed);
  EXPECT_EQ(failed.collected.result.rejected.at("non_finite"), 2u);
  const v1::Outcome outcome = a.AwaitOutcome();
  EXPECT_FALSE(outcome.committed());
  EXPECT_FALSE(outcome.included());
  EXPECT_EQ(a.AwaitTask().spec().base_version(), 0u);
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_TRUE(node.Round(1).committed);
}

// ---- Never hangs

TEST_F(NodeTest, FewerClientsThanTheMinimumEndTheRunAtTheStartupLimit) {
  TestNode node(
      absl::StrReplaceAll(Config("", 1, 3), {{"startup_limit_s = 30", "startup_limit_s = 1"}}));
  RawClient a(node.endpoint(), "a");
  const absl::Status end = node.End();
  EXPECT_TRUE(absl::IsAborted(end)) << end;
  EXPECT_THAT(Text(end), testing::HasSubstr("1 of 3 are here"));
}

TEST_F(NodeTest, RoundWhoseClientsAllVanishFailsAfterTheGrace) {
  TestNode node(absl::StrReplaceAll(Config("[straggler]\nrejoin_grace_s = 0.2\n"),
                                    {{"startup_limit_s = 30", "startup_limit_s = 1"}}));
  {
    RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
    a.AwaitTask();
    b.AwaitTask();
  }
  EXPECT_FALSE(node.Round(0).committed);
}

TEST_F(NodeTest, DeadlineClosesTheRoundWithThoseThatAnswered) {
  TestNode node(Config("[straggler]\ndeadline_s = 1\n", 1, 1));
  RawClient silent(node.endpoint(), "silent");
  silent.AwaitTask();
  RawClient a(node.endpoint(), "a");
  a.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.collected.result.contributors, std::vector<std::string>{"a"});
  EXPECT_FALSE(silent.AwaitOutcome().included());
}

TEST_F(NodeTest, StalledUploadIsBrokenOffAndDoesNotHoldTheRound) {
  TestNode node(Config("[straggler]\ndeadline_s = 2\n", 1, 1));
  RawClient a(node.endpoint(), "a");
  RawClient b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  // A header, and then nothing: the call stays open.
  grpc::ClientContext context;
  v1::UploadResponse answer;
  auto writer = b.stub().Upload(&context, &answer);
  v1::UploadRequest request;
  *request.mutable_header() = b.Header(EncodeTest(2));
  writer->Write(request);
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_TRUE(node.Round(0).committed);
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(answer.status(), v1::UploadResponse::STALE);
}

TEST_F(NodeTest, ShutdownWhileWaitingEndsWell) {
  TestNode node(Config());
  RawClient a(node.endpoint(), "a");
  a.AwaitJoined();
  node.Shutdown();
  EXPECT_EQ(a.AwaitStop().kind(), v1::Stop::GOING_AWAY);
  EXPECT_TRUE(node.End().ok());
}

TEST_F(NodeTest, ShutdownWithinARoundLetsItFinish) {
  TestNode node(Config("", 5));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  a.Upload(EncodeTest(1));
  node.Shutdown();
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_TRUE(node.Round(0).committed);
  EXPECT_EQ(a.AwaitStop().kind(), v1::Stop::GOING_AWAY);
  EXPECT_TRUE(node.End().ok());
}

TEST_F(NodeTest, ShutdownWithinARoundThatDoesNotFinishEndsAtTheGrace) {
  TestNode node(Config("[limits]\nshutdown_grace_s = 0.3\n", 5));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  node.Shutdown();
  EXPECT_TRUE(node.End().ok());
}

// ---- The memory budget

TEST_F(NodeTest, UpdatesBeyondTheBudgetWaitTheirTurn) {
  const std::string expected = HonestHash();
  // Room for one update and a half.
  const uint64_t bytes = RawClient::Trailer(EncodeTest(1)).encoded_bytes();
  TestNode node(Config(absl::StrCat("[limits]\ninflight_bytes = ", bytes * 3 / 2, "\n")));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  v1::UploadResponse first, second;
  std::thread other([&] { second = b.Upload(EncodeTest(2)); });
  first = a.Upload(EncodeTest(1));
  other.join();
  EXPECT_EQ(first.status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(second.status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(node.Round(0).model_sha256, expected);
}

// ---- Resuming

TEST_F(NodeTest, ResumesAtTheLastCommittedRoundAndTellsTheOutcomeMissed) {
  const std::string config = Config("", 2);
  std::string committed;
  {
    TestNode node(config);
    RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
    a.AwaitTask();
    b.AwaitTask();
    a.Upload(EncodeTest(1));
    b.Upload(EncodeTest(2));
    committed = node.Round(0).model_sha256;
  }
  TestNode node(config);
  RawClient a(node.endpoint(), "a", kEpoch + 1), b(node.endpoint(), "b", kEpoch + 1),
      c(node.endpoint(), "c");
  const v1::Joined joined = a.AwaitJoined();
  EXPECT_EQ(joined.committed_round(), 1u);
  EXPECT_TRUE(joined.last_outcome().included());
  EXPECT_FALSE(c.AwaitJoined().last_outcome().included());
  const v1::Task task = a.AwaitTask();
  EXPECT_EQ(task.spec().round(), 2u);
  EXPECT_EQ(absl::BytesToHexString(task.spec().base_sha256()), committed);
}

// ---- What a client fetches

TEST_F(NodeTest, DownloadedModelIsTheTasksBase) {
  TestNode node(Config());
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  const v1::Task task = a.AwaitTask();
  EXPECT_TRUE(task.model().empty()) << "the test model is too large to ride in a task";
  grpc::ClientContext context;
  v1::DownloadRequest request;
  request.set_run("test");
  request.set_id("a");
  request.set_sha256(task.spec().base_sha256());
  auto reader = a.stub().Download(&context, request);
  v1::DownloadResponse response;
  std::string bytes;
  std::optional<v1::ModelTrailer> trailer;
  while (reader->Read(&response)) {
    bytes += response.data();
    if (response.has_trailer()) trailer = response.trailer();
  }
  ASSERT_TRUE(reader->Finish().ok());
  const ByteSpan span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  EXPECT_EQ(Sha256Of(span), task.spec().base_sha256());
  ASSERT_TRUE(trailer.has_value());
  EXPECT_EQ(trailer->bytes(), bytes.size());
  EXPECT_EQ(trailer->crc32c(), Crc32c(span));
}

TEST_F(NodeTest, AModelThatIsNotTheCurrentOneIsNotFound) {
  TestNode node(Config());
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  grpc::ClientContext context;
  v1::DownloadRequest request;
  request.set_sha256(std::string(32, 'x'));
  auto reader = a.stub().Download(&context, request);
  v1::DownloadResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(NodeTest, PortInUseIsAnErrorThatNamesIt) {
  TestNode node(Config());
  const std::string text = absl::StrReplaceAll(
      Config(), {{"listen = \"127.0.0.1:0\"\n[transport]",
                  absl::StrCat("listen = \"", node.endpoint(), "\"\n[transport]")}});
  auto config = ParseConfig(text, "test.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  const auto second = Node::Create({.config = *config, .on_round = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(Text(second.status()), testing::HasSubstr(node.endpoint()));
  EXPECT_THAT(Text(second.status()), testing::HasSubstr("test.toml:3:"));
}

}  // namespace
}  // namespace tributary::server
