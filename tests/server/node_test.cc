// The promises of one node, kept against clients that do well and clients that do not.
#include <gmock/gmock.h>

#include "base/status.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

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

// As a BatchNorm's counter of batches: read back with its dtype, or Model would say so.
TEST_F(NodeTest, AnInt64TensorKeepsItsDtypeAndItsArithmeticUnderEachPolicy) {
  // Deltas 1 with weight 10 and 2 with weight 30, on a base of 100.
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"mean", 102},  // 70 / 40 = 1.75, rounded
      {"sum", 103},
      {"max", 102},
      {"first", 101},
      {"skip", 100}};
  for (const auto& [policy, counter] : expected) {
    SCOPED_TRACE(policy);
    TestNode node(Config(absl::StrCat("[aggregation.policies]\n\"counter\" = \"", policy, "\"\n")));
    RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
    a.AwaitTask();
    b.AwaitTask();
    Segments one = EncodeTest(1), two = EncodeTest(2);
    if (policy == "skip") {  // never sent: the counter's segment is the last
      one.pop_back();
      two.pop_back();
    }
    ASSERT_EQ(a.Upload(one, 10).status(), v1::UploadResponse::ACCEPTED);
    ASSERT_EQ(b.Upload(two, 30).status(), v1::UploadResponse::ACCEPTED);
    ASSERT_TRUE(node.Round(0).committed);
    const std::vector<uint8_t> bytes = Model();
    ASSERT_EQ(bytes.size(), TestLayout()->model_bytes());
    for (int i = 0; i < 3; ++i) {
      int64_t got = 0;
      std::memcpy(&got, bytes.data() + TestLayout()->TensorByteOffset(3) + 8 * i, 8);
      EXPECT_EQ(got, counter);
    }
  }
}

// Weights on the wire are 65,536ths of an example, and so are the caps.
TEST_F(NodeTest, FractionalWeightsWeighAsTheyAreAndTheCapsAreInExamples) {
  TestNode node(
      Config("[aggregation]\nfractional_weights = true\nmax_client_weight = 30\nmax_round_weight = "
             "1000\n"));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  EXPECT_EQ(a.AwaitTask().spec().grid().weight_fraction_bits(), 16u);
  b.AwaitTask();
  constexpr int64_t kExample = 65536, kA = 10 * kExample + kExample / 2, kB = 30 * kExample;
  const v1::UploadResponse over = a.Upload(EncodeTest(1), kB + 1);
  EXPECT_EQ(over.status(), v1::UploadResponse::REJECTED);
  EXPECT_EQ(over.reason(), "weight");
  ASSERT_EQ(a.Upload(EncodeTest(1), kA).status(), v1::UploadResponse::ACCEPTED);
  ASSERT_EQ(b.Upload(EncodeTest(2), kB).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_THAT(ToJson(report), testing::HasSubstr("\"weight\":40.5,"));
  ASSERT_TRUE(node.End().ok());
  const std::vector<uint8_t> bytes = Model();
  ASSERT_EQ(bytes.size(), TestLayout()->model_bytes());
  const TestDeltas one(1), two(2);
  for (uint64_t i = 0; i < TestLayout()->TensorElements(0); ++i) {
    float got = 0;
    std::memcpy(&got, bytes.data() + 4 * i, 4);
    // The deltas are whole numbers of 1/1024: the sum is exact, and divided once.
    const double sum = static_cast<double>(kA * static_cast<int64_t>(one.Value(0, i) * 1024) +
                                           kB * static_cast<int64_t>(two.Value(0, i) * 1024));
    const double mean = sum / static_cast<double>(kA + kB) / 1024;
    ASSERT_EQ(got, static_cast<float>(static_cast<double>(i % 64) / 8 + mean)) << "element " << i;
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
  EXPECT_THAT(ToJson(report), testing::HasSubstr("\"late\":1,"));
}

// ---- Sessions

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

// Awaited as one that vanished it would hold the round for longer than this test has patience.
TEST_F(NodeTest, AClientThatSaysThatItLeavesIsNotAwaited) {
  TestNode node(Config("[straggler]\nrejoin_grace_s = 600\n", 1, 1));
  RawClient a(node.endpoint(), "a");
  a.AwaitTask();
  RawClient leaver(node.endpoint(), "b");
  leaver.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  v1::SessionRequest request;
  request.mutable_leave()->set_reason("shut down");
  leaver.Send(request);
  EXPECT_FALSE(leaver.Await([](const auto&) { return false; }).has_value()) << "its session ends";
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_EQ(report.collected.wait.closed_by, "answers");
  EXPECT_EQ(report.collected.wait.gone, 1u);
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
  const absl::Time asked = absl::Now();
  node.Shutdown();
  EXPECT_TRUE(node.End().ok());
  const absl::Duration took = absl::Now() - asked;
  EXPECT_GE(took, absl::Milliseconds(300)) << "the clients were given the grace";
  EXPECT_LT(took, absl::Seconds(10)) << "and no more, but for a slow machine";
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
