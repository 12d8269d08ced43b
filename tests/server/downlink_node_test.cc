// The compressed way down through whole nodes: what is asked for is what comes, all train from what
// the root has published, and a checkpoint brings both models back.
#include <gmock/gmock.h>

#include <map>

#include "aggregation/model_delta.h"
#include "base/philox.h"
#include "client/client.h"
#include "tests/client/random_result.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

struct Fetched {
  v1::ModelHeader header;
  std::string data;
};

// As any gRPC client would.
Fetched Fetch(RawClient& client, const std::string& wanted, const std::string& held) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
  v1::DownloadRequest request;
  request.set_run("test");
  request.set_id("x");
  request.set_sha256(wanted);
  request.set_held_sha256(held);
  auto reader = client.stub().Download(&context, request);
  Fetched out;
  v1::DownloadResponse response;
  v1::ModelTrailer trailer;
  while (reader->Read(&response)) {
    if (response.has_header()) out.header = response.header();
    if (response.has_trailer()) trailer = response.trailer();
    out.data += response.data();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  const ByteSpan bytes(reinterpret_cast<const uint8_t*>(out.data.data()), out.data.size());
  EXPECT_EQ(trailer.bytes(), out.data.size());
  EXPECT_EQ(out.header.bytes(), out.data.size());
  EXPECT_EQ(trailer.crc32c(), Crc32c(bytes));
  return out;
}

ByteSpan Span(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class DownlinkNodeTest : public NodeTest {
 protected:
  // Two clients that drive the rounds by hand.
  void PlayRound(RawClient& a, RawClient& b) {
    ASSERT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
    ASSERT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  }
};

TEST_F(DownlinkNodeTest, ADownloadIsStepsFromWhatIsHeldWithinTheWindowElseWhole) {
  TestNode node(Config("[compression]\ndownlink = \"int8\"\ndownlink_steps = 2\n", 4));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  std::vector<std::string> hashes;
  std::string held;  // the model after each round, stepped to
  for (int round = 1; round <= 4; ++round) {
    SCOPED_TRACE(round);
    const v1::RoundSpec spec = a.AwaitTask().spec();
    b.AwaitTask();
    EXPECT_EQ(spec.downlink_codec(), "int8");
    const std::string wanted = spec.base_sha256();
    // An old client says nothing of what it holds.
    const Fetched whole = Fetch(a, wanted, "");
    EXPECT_EQ(whole.header.chain().steps_size(), 0);
    EXPECT_EQ(Sha256Of(Span(whole.data)), wanted);
    for (const std::string& never : {std::string(32, 'x'), std::string("x"), wanted}) {
      EXPECT_TRUE(Fetch(a, wanted, never).data == whole.data);
    }
    if (round == 1) {
      held = whole.data;
    } else {
      const Fetched steps = Fetch(a, wanted, hashes.back());
      ASSERT_EQ(steps.header.chain().steps_size(), 1);
      EXPECT_LT(steps.data.size(), whole.data.size() / 3);
      std::vector<uint8_t> model(held.begin(), held.end());
      ASSERT_TRUE(
          aggregation::ApplyChain(*TestLayout(), steps.header.chain(), Span(steps.data), model)
              .ok());
      EXPECT_EQ(Sha256Of(model), wanted);
      EXPECT_TRUE(std::string(model.begin(), model.end()) == whole.data);
      held.assign(model.begin(), model.end());
    }
    if (round == 3) {
      EXPECT_EQ(Fetch(a, wanted, hashes[0]).header.chain().steps_size(), 2);
    }
    if (round == 4) {
      EXPECT_EQ(Fetch(a, wanted, hashes[1]).header.chain().steps_size(), 2);
      EXPECT_EQ(Fetch(a, wanted, hashes[0]).header.chain().steps_size(), 0) << "too far behind";
    }
    hashes.push_back(wanted);
    PlayRound(a, b);
    const RoundReport report = node.Round(round - 1);
    ASSERT_TRUE(report.committed);
    EXPECT_NE(report.published_sha256, report.model_sha256);
    EXPECT_THAT(ToJson(report),
                HasSubstr(absl::StrCat("\"published_sha256\":\"", report.published_sha256, "\"")));
    if (round > 1) {
      EXPECT_GT(report.collected.bytes.saved_to_clients, 100'000u) << "one download in steps";
    }
  }
  ASSERT_TRUE(node.End().ok());
  EXPECT_NE(Hex(hashes.back()), node.Round(3).published_sha256);
  EXPECT_EQ(Hex(hashes.back()), node.Round(2).published_sha256) << "round 4's base";
}

TEST_F(DownlinkNodeTest, WithoutACodecOrWithFp32EverythingIsAsItWas) {
  std::vector<std::string> ends;
  for (const std::string more :
       {"", "[compression]\ndownlink = \"none\"\n", "[compression]\ndownlink = \"fp32\"\n"}) {
    TestNode node(Config(more, 3));
    RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
    for (int round = 0; round < 3; ++round) {
      a.AwaitTask();
      b.AwaitTask();
      PlayRound(a, b);
      const RoundReport report = node.Round(round);
      EXPECT_EQ(report.published_sha256, report.model_sha256);
    }
    ends.push_back(node.Round(2).model_sha256);
  }
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_EQ(ends[2], ends[0]);
}

// Updates are against the published model and are applied to the exact one: as if nothing had been
// compressed, since these clients' deltas do not depend on where they start.
TEST_F(DownlinkNodeTest, TheExactModelIsThatOfAnUncompressedRun) {
  std::vector<std::string> ends;
  for (const std::string more : {"", "[compression]\ndownlink = \"int4\"\n"}) {
    TestNode node(Config(more, 3));
    RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
    for (int round = 0; round < 3; ++round) {
      a.AwaitTask();
      b.AwaitTask();
      PlayRound(a, b);
      node.Round(round);
    }
    ends.push_back(node.Round(2).model_sha256);
  }
  EXPECT_EQ(ends[1], ends[0]);
}

TEST_F(DownlinkNodeTest, CodecsThatCannotGoDownAreRefusedWithLineAndReason) {
  const std::pair<const char*, const char*> rows[] = {
      {"downlink = \"hq\"", "nothing is summed"},
      {"downlink = \"randk(0.1)\"", "scaled=no"},
      {"downlink = \"int8 | ef21\"", "each client"},
      {"downlink = \"int9\"", "is not a codec"},
      {"downlink = \"int8\"\ndownlink_steps = 0", "out of range"},
      {"downlink_steps = 4", "does nothing without downlink"},
  };
  for (const auto& [line, reason] : rows) {
    const auto config = ParseConfig(Config(absl::StrCat("[compression]\n", line, "\n")), "x.toml");
    ASSERT_FALSE(config.ok()) << line;
    EXPECT_THAT(std::string(config.status().message()),
                testing::AllOf(HasSubstr("x.toml:1"), HasSubstr(reason)))
        << line;
  }
}

// ---- With the SDK's clients, over two tiers

// Yields deltas that depend on every bit of the base, and keeps its hash.
class Watching final : public client::Trainer {
 public:
  explicit Watching(uint64_t seed) : seed_(seed) {}
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask& task,
                                            const std::function<bool()>&) override {
    const std::string sha256 = Sha256Of(*task.base);
    {
      std::lock_guard lock(mu_);
      bases_[task.spec.round()] = sha256;
      if (sha256 != task.spec.base_sha256()) ++wrong_;
    }
    return client::testing::RandomResult(*task.layout, SeededHash(seed_, "bits", sha256));
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    return std::vector<v1::Metric>{};
  }
  void OnNotice(const std::string& notice) override {
    std::lock_guard lock(mu_);
    notices_.push_back(notice);
  }
  std::map<uint64_t, std::string> bases() {
    std::lock_guard lock(mu_);
    return bases_;
  }
  int wrong() {
    std::lock_guard lock(mu_);
    return wrong_;
  }
  std::vector<std::string> notices() {
    std::lock_guard lock(mu_);
    return notices_;
  }

 private:
  const uint64_t seed_;
  std::mutex mu_;
  std::map<uint64_t, std::string> bases_;
  int wrong_ = 0;
  std::vector<std::string> notices_;
};

class SdkClient {
 public:
  SdkClient(const std::string& id, const std::string& endpoint, uint64_t seed) : trainer_(seed) {
    client::ClientOptions options;
    options.id = id;
    options.endpoints = {endpoint};
    options.backoff_max = absl::Milliseconds(200);
    client_ = *client::Client::Create(options, &trainer_);
    thread_ = std::thread([this] { end_ = client_->Run(); });
  }
  ~SdkClient() {
    client_->Shutdown();
    if (thread_.joinable()) thread_.join();
  }
  absl::Status Join() {
    thread_.join();
    return end_;
  }
  Watching& trainer() { return trainer_; }
  client::ClientStats stats() const { return client_->stats(); }

 private:
  Watching trainer_;
  std::unique_ptr<client::Client> client_;
  absl::Status end_;
  std::thread thread_;
};

std::string RackConfig(const std::string& parent) {
  return absl::StrFormat(
      "[node]\nname = \"rack\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\nlisten = "
      "\"127.0.0.1:0\"\n",
      parent);
}

class DownlinkTiers : public NodeTest, public testing::WithParamInterface<std::string> {};

TEST_P(DownlinkTiers, AllTrainFromWhatTheRootHasPublished) {
  constexpr int kRounds = 6;
  TestNode root(
      Config(absl::StrCat("[compression]\ndownlink = \"", GetParam(), "\"\n"), kRounds, 3));
  TestNode rack(RackConfig(root.endpoint()));
  SdkClient a("a", rack.endpoint(), 1), b("b", rack.endpoint(), 2), c("c", root.endpoint(), 3);
  std::string published;
  ByteCounts bytes;
  for (int round = 1; round <= kRounds; ++round) {
    const RoundReport report = root.Round(round - 1);
    ASSERT_TRUE(report.committed) << report.why_not;
    bytes.saved_to_aggregators += report.collected.bytes.saved_to_aggregators;
    bytes.model_to_aggregators += report.collected.bytes.model_to_aggregators;
    bytes.saved_to_clients += report.collected.bytes.saved_to_clients;
    if (!published.empty()) {
      for (SdkClient* client : {&a, &b, &c}) {
        EXPECT_EQ(Hex(client->trainer().bases()[round]), published) << "round " << round;
      }
    }
    published = report.published_sha256;
    EXPECT_NE(published, report.model_sha256);
  }
  EXPECT_TRUE(root.End().ok());
  const uint64_t whole = TestLayout()->model_bytes();
  for (SdkClient* client : {&a, &b, &c}) {
    EXPECT_TRUE(client->Join().ok());
    EXPECT_EQ(client->trainer().wrong(), 0);
    EXPECT_THAT(client->trainer().notices(), testing::IsEmpty());
    // One whole model; steps are half of one (bf16) or less.
    EXPECT_LT(client->stats().downloaded_bytes, whole + (kRounds - 1) * whole * 6 / 10);
  }
  // The rack was sent the first whole and five in steps.
  EXPECT_EQ(bytes.model_to_aggregators + bytes.saved_to_aggregators, kRounds * whole);
  EXPECT_GE(bytes.saved_to_aggregators, (kRounds - 1) * whole * 4 / 10);
  EXPECT_GE(bytes.saved_to_clients, (kRounds - 1) * whole * 4 / 10);
}

INSTANTIATE_TEST_SUITE_P(Codecs, DownlinkTiers,
                         testing::Values("bf16", "int8", "int4; small = bf16",
                                         "topk(0.02, values=ternary) | zstd"),
                         [](const auto& info) { return absl::StrCat("Codec", info.index); });

// A new process of the client holds nothing; a new rack holds nothing and has no steps to give.
TEST_F(DownlinkNodeTest, ARestartedClientAndARestartedRackGetTheWholeModelAndGoOn) {
  constexpr int kRounds = 8;
  TestNode root(
      Config("[compression]\ndownlink = \"int8\"\n[straggler]\nrejoin_grace_s = 30\n", kRounds, 2));
  auto rack = std::make_unique<TestNode>(RackConfig(root.endpoint()));
  auto a = std::make_unique<SdkClient>("a", rack->endpoint(), 1);
  SdkClient b("b", root.endpoint(), 2);
  root.Round(1);
  a.reset();
  rack.reset();
  rack = std::make_unique<TestNode>(RackConfig(root.endpoint()));
  a = std::make_unique<SdkClient>("a", rack->endpoint(), 1);
  EXPECT_TRUE(root.End().ok());
  EXPECT_TRUE(a->Join().ok());
  EXPECT_EQ(a->trainer().wrong(), 0);
  EXPECT_THAT(a->trainer().notices(), testing::IsEmpty());
  std::string published;
  int both = 0;
  for (size_t i = 0; i < root.rounds(); ++i) {
    const RoundReport report = root.Round(i);
    const auto bases = a->trainer().bases();
    const auto base = bases.find(report.round);
    if (base != bases.end() && !published.empty()) {
      EXPECT_EQ(Hex(base->second), published) << "round " << report.round;
      ++both;
    }
    if (report.committed) published = report.published_sha256;
  }
  EXPECT_GE(both, 4);
}

// ---- Checkpoints

TEST_F(DownlinkNodeTest, ARunThatWasStoppedGoesOnFromBothModels) {
  // Six rounds at once, and six with a stop after the third.
  const std::string more = "[compression]\ndownlink = \"int4\"\n";
  const auto play = [&](const std::string& config, int from, int to) {
    std::vector<RoundReport> reports;
    TestNode node(config);
    SdkClient a("a", node.endpoint(), 1), b("b", node.endpoint(), 2);
    for (int i = 0; i < to - from; ++i) reports.push_back(node.Round(i));
    EXPECT_TRUE(node.End().ok());
    return reports;
  };
  const std::vector<RoundReport> whole = play(Config(more, 6), 0, 6);
  std::string config = Config(more, 3);
  play(config, 0, 3);
  const std::vector<RoundReport> rest =
      play(absl::StrReplaceAll(config, {{"rounds = 3", "rounds = 6"}}), 3, 6);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(rest[i].round, whole[i + 3].round);
    EXPECT_EQ(rest[i].model_sha256, whole[i + 3].model_sha256);
    EXPECT_EQ(rest[i].published_sha256, whole[i + 3].published_sha256);
  }
}

}  // namespace
}  // namespace tributary::server
