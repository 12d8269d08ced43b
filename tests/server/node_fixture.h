// A node in this process and raw clients that speak the protocol by hand, so that they can also
// speak it wrong.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "aggregation/update.h"
#include "base/checksum.h"
#include "models/safetensors.h"
#include "server/node.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::server {

inline constexpr absl::Duration kPatience =
    absl::Seconds(60);  // a test that waits longer has found a hang

// A folder of this test's own, removed at its end.
class TempDir {
 public:
  TempDir() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tributary-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Floats of several sizes, a scalar, an empty tensor, and integers: what policies and tiles must
// get right.
inline std::shared_ptr<const aggregation::ModelLayout> TestLayout() {
  using aggregation::DType;
  using aggregation::Policy;
  return *aggregation::ModelLayout::Create({{"weight", {300, 131}, DType::kF32, Policy::kMean},
                                            {"bias", {}, DType::kF32, Policy::kMean},
                                            {"nothing", {0, 7}, DType::kF32, Policy::kMean},
                                            {"counter", {3}, DType::kI64, Policy::kMax}});
}

// Writes a model of TestLayout whose elements are 1/8, 2/8, ... (exact in float) and counters 100.
inline std::string WriteTestModel(const TempDir& dir) {
  const auto layout = TestLayout();
  std::vector<uint8_t> bytes(layout->model_bytes());
  auto* floats = reinterpret_cast<float*>(bytes.data());
  const uint64_t count = layout->TensorByteOffset(3) / 4;
  for (uint64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(i % 64) / 8;
  const int64_t counter = 100;
  for (int i = 0; i < 3; ++i)
    std::memcpy(bytes.data() + layout->TensorByteOffset(3) + 8 * i, &counter, 8);
  const std::string path = dir / "model.safetensors";
  EXPECT_TRUE(models::WriteSafetensors(path, *layout, bytes, {}).ok());
  return path;
}

// Deltas of the test model: multiples of 1/1024 that depend on `seed`; counters count up by seed.
class TestDeltas final : public aggregation::DeltaSource {
 public:
  explicit TestDeltas(uint64_t seed) : layout_(TestLayout()), seed_(seed) {}
  float Value(uint32_t tensor, uint64_t i) const {
    return static_cast<float>(static_cast<int64_t>((i * 7 + seed_ * 13 + tensor) % 257) - 128) /
           1024;
  }
  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override {
    floats_.resize(layout_->TensorElements(tensor));
    for (uint64_t i = 0; i < floats_.size(); ++i) floats_[i] = Value(tensor, i);
    return std::span<const float>(floats_);
  }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t tensor) override {
    ints_.assign(layout_->TensorElements(tensor), static_cast<int64_t>(seed_));
    return std::span<const int64_t>(ints_);
  }

 private:
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  uint64_t seed_;
  std::vector<float> floats_;
  std::vector<int64_t> ints_;
};

using Segments = std::vector<std::vector<uint8_t>>;

inline Segments EncodeTest(uint64_t seed, const std::string& codec_spec = "fp32") {
  TestDeltas deltas(seed);
  const auto codec = compression::MakeCodec(codec_spec);
  EXPECT_TRUE(codec.ok()) << codec.status();
  Segments out;
  const absl::Status status = aggregation::EncodeUpdate(*TestLayout(), **codec, seed, 1, deltas,
                                                        [&](std::vector<uint8_t> segment) {
                                                          out.push_back(std::move(segment));
                                                          return absl::OkStatus();
                                                        });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// The node, running in a thread of its own.
class TestNode {
 public:
  // `text` without [node] listen: a free port is taken.
  explicit TestNode(const std::string& text) {
    auto config = ParseConfig(text, "test.toml");
    EXPECT_TRUE(config.ok()) << config.status();
    if (!config.ok()) return;
    auto node = Node::Create({.config = *config,
                              .on_round =
                                  [this](const RoundReport& report) {
                                    std::lock_guard lock(mu_);
                                    rounds_.push_back(report);
                                    changed_.notify_all();
                                  },
                              .on_phase =
                                  [this](uint64_t, const char* phase) {
                                    std::lock_guard lock(mu_);
                                    ++phases_[phase];
                                    changed_.notify_all();
                                  }});
    EXPECT_TRUE(node.ok()) << node.status();
    if (!node.ok()) return;
    node_ = *std::move(node);
    thread_ = std::thread([this] {
      const absl::Status status = node_->Run();
      std::lock_guard lock(mu_);
      end_ = status;
      changed_.notify_all();
    });
  }
  ~TestNode() {
    if (node_ == nullptr) return;
    node_->Shutdown();
    node_->Shutdown();
    thread_.join();
    node_.reset();  // its other threads tell of phases until it is gone
  }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", node_->port()); }
  void Shutdown() { node_->Shutdown(); }

  // Round reports, in order; waits for the n-th (from 0).
  RoundReport Round(size_t n) {
    std::unique_lock lock(mu_);
    const bool there = changed_.wait_for(lock, absl::ToChronoSeconds(kPatience),
                                         [&] { return rounds_.size() > n; });
    EXPECT_TRUE(there) << "round report " << n << " never came";
    return there ? rounds_[n] : RoundReport();
  }
  // Until something has passed this phase (Node::Options::on_phase) for the n-th time (from 1).
  void AwaitPhase(const std::string& phase, int n = 1) {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, absl::ToChronoSeconds(kPatience),
                                  [&] { return phases_[phase] >= n; }))
        << "nothing passed \"" << phase << "\"";
  }
  absl::Status End() {
    std::unique_lock lock(mu_);
    const bool there =
        changed_.wait_for(lock, absl::ToChronoSeconds(kPatience), [&] { return end_.has_value(); });
    EXPECT_TRUE(there) << "the node never ended";
    return there ? *end_ : absl::DeadlineExceededError("never ended");
  }
  size_t rounds() {
    std::lock_guard lock(mu_);
    return rounds_.size();
  }

 private:
  std::unique_ptr<Node> node_;
  std::thread thread_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<RoundReport> rounds_;
  std::map<std::string, int> phases_;
  std::optional<absl::Status> end_;
};

// A client by hand.
class RawClient {
 public:
  RawClient(const std::string& endpoint, const std::string& id, uint64_t epoch = 1,
            const std::string& run = "")
      : id_(id), epoch_(epoch) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Aggregator::NewStub(channel_);
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    stream_ = stub_->Session(&context_);
    v1::SessionRequest request;
    v1::Join* join = request.mutable_join();
    join->set_protocol(1);
    join->set_id(id);
    join->set_role(v1::CLIENT);
    join->set_epoch(epoch);
    join->set_examples(10);
    join->set_run(run);
    stream_->Write(request);
  }
  ~RawClient() {
    context_.TryCancel();
    v1::SessionResponse response;
    while (stream_->Read(&response)) {
    }
    (void)stream_->Finish();
  }
  // The next message that `wanted` says yes to; others are passed over. Nullopt where the stream
  // ends.
  template <typename Wanted>
  std::optional<v1::SessionResponse> Await(Wanted wanted) {
    v1::SessionResponse response;
    while (stream_->Read(&response)) {
      if (wanted(response)) return response;
    }
    return std::nullopt;
  }
  v1::Joined AwaitJoined() {
    auto r = Await([](const auto& m) { return m.has_joined(); });
    EXPECT_TRUE(r.has_value()) << id_ << " was never welcomed";
    return r.has_value() ? r->joined() : v1::Joined();
  }
  v1::Task AwaitTask() {
    auto r = Await([](const auto& m) { return m.has_task(); });
    EXPECT_TRUE(r.has_value()) << id_ << " never got a task";
    if (r.has_value()) task_ = r->task();
    return task_;
  }
  v1::Outcome AwaitOutcome() {
    auto r = Await([](const auto& m) { return m.has_outcome(); });
    EXPECT_TRUE(r.has_value()) << id_ << " never got an outcome";
    return r.has_value() ? r->outcome() : v1::Outcome();
  }
  v1::Stop AwaitStop() {
    auto r = Await([](const auto& m) { return m.has_stop(); });
    EXPECT_TRUE(r.has_value()) << id_ << " was never stopped";
    return r.has_value() ? r->stop() : v1::Stop();
  }
  void Send(const v1::SessionRequest& request) { stream_->Write(request); }

  // What an honest upload of `segments` would say.
  v1::UploadHeader Header(const Segments& segments, int64_t weight = 10) const {
    v1::UploadHeader header;
    header.set_run(task_.spec().run());
    header.set_round(task_.spec().round());
    header.set_id(id_);
    header.set_epoch(epoch_);
    header.set_base_version(task_.spec().base_version());
    header.set_layout_hash(task_.spec().layout_hash());
    header.set_weight(weight);
    uint64_t bytes = 0;
    for (const auto& segment : segments) bytes += segment.size();
    header.set_encoded_bytes(bytes);
    return header;
  }
  static v1::UploadTrailer Trailer(const Segments& segments) {
    v1::UploadTrailer trailer;
    uint32_t crc = 0;
    uint64_t bytes = 0;
    for (const auto& segment : segments) {
      crc = ExtendCrc32c(crc, segment);
      bytes += segment.size();
    }
    trailer.set_crc32c(crc);
    trailer.set_encoded_bytes(bytes);
    return trailer;
  }
  // One message a segment, as the typed protobuf messages that any gRPC client would send.
  v1::UploadResponse Upload(const v1::UploadHeader& header, const Segments& segments,
                            const std::optional<v1::UploadTrailer>& trailer) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    v1::UploadResponse response;
    auto writer = stub_->Upload(&context, &response);
    v1::UploadRequest request;
    *request.mutable_header() = header;
    bool open = writer->Write(request);
    for (size_t i = 0; i < segments.size() && open; ++i) {
      request.Clear();
      request.set_segments(segments[i].data(), segments[i].size());
      open = writer->Write(request);
    }
    if (trailer.has_value() && open) {
      request.Clear();
      *request.mutable_trailer() = *trailer;
      writer->Write(request);
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::UploadResponse Upload(const Segments& segments, int64_t weight = 10) {
    return Upload(Header(segments, weight), segments, Trailer(segments));
  }
  // Sends the header and half of the segments, then breaks the call off.
  void UploadHalf(const Segments& segments) {
    grpc::ClientContext context;
    v1::UploadResponse response;
    auto writer = stub_->Upload(&context, &response);
    v1::UploadRequest request;
    *request.mutable_header() = Header(segments);
    writer->Write(request);
    for (size_t i = 0; i < (segments.size() + 1) / 2; ++i) {
      request.Clear();
      request.set_segments(segments[i].data(), segments[i].size());
      writer->Write(request);
    }
    context.TryCancel();
    (void)writer->Finish();
  }
  v1::Aggregator::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  const v1::Task& task() const { return task_; }

 private:
  const std::string id_;
  const uint64_t epoch_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Aggregator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream_;
  v1::Task task_;
};

inline constexpr uint64_t kEpoch = 1;

// A root with the test model, two clients to a round unless told.
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

}  // namespace tributary::server
