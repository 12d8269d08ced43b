// What the SDK's tests share: a small run, a trainer that records, a client that runs in a thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "aggregation/update.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "client/client.h"
#include "compression/policy.h"
#include "tests/client/fake_aggregator.h"

namespace tributary::client::testing {

inline std::shared_ptr<const aggregation::ModelLayout> MakeLayout(uint64_t weights) {
  using aggregation::DType;
  using aggregation::Policy;
  auto layout = aggregation::ModelLayout::Create({{"w", {weights}, DType::kF32, Policy::kMean},
                                                  {"steps", {}, DType::kI64, Policy::kSum},
                                                  {"fixed", {3}, DType::kF32, Policy::kSkip}});
  return *layout;
}

inline std::string MakeModel(const aggregation::ModelLayout& layout, uint8_t salt = 0) {
  std::string bytes(layout.model_bytes(), '\0');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>((i * 31 + i / 251 + salt) & 0x7f);
  return bytes;
}

inline std::string Sha(const std::string& bytes) {
  return Sha256Of({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// The delta that the default trainer yields in `round`.
inline TrainResult DeltaOf(const aggregation::ModelLayout& layout, uint64_t round) {
  TrainResult result;
  result.weight = 7;
  result.floats.resize(3);
  result.ints.resize(3);
  result.floats[0].resize(layout.TensorElements(0));
  for (size_t i = 0; i < result.floats[0].size(); ++i) {
    result.floats[0][i] = 0.25f * static_cast<float>(i % 1000) + static_cast<float>(round);
  }
  result.ints[1] = {static_cast<int64_t>(round) * 100};
  return result;
}

// What EncodeUpdate makes of it, as one string.
inline std::string EncodedByHand(const aggregation::ModelLayout& layout, TrainResult result,
                                 const v1::RoundSpec& spec, const std::string& id) {
  struct Source final : aggregation::DeltaSource {
    explicit Source(TrainResult* r) : result(r) {}
    absl::StatusOr<std::span<const float>> Floats(uint32_t t) override { return result->floats[t]; }
    absl::StatusOr<std::span<const int64_t>> Ints(uint32_t t) override { return result->ints[t]; }
    TrainResult* result;
  } source(&result);
  std::string all;
  const auto codec = compression::CodecPolicy::Parse(spec.codec());
  EXPECT_TRUE(codec.ok()) << codec.status();
  const absl::Status status = aggregation::EncodeUpdate(
      layout, **codec, {SeededHash(spec.seed(), "codec", id), SeededHash(spec.seed(), "mask", "")},
      static_cast<uint32_t>(spec.round()), source, [&](std::vector<uint8_t> segment) {
        all.append(segment.begin(), segment.end());
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return all;
}

class RecordingTrainer final : public Trainer {
 public:
  std::function<absl::StatusOr<TrainResult>(const TrainTask&, const std::function<bool()>&)> train;
  std::function<absl::StatusOr<std::vector<v1::Metric>>(const TrainTask&)> evaluate;

  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override {
    {
      std::lock_guard lock(mu_);
      bases_.emplace_back(task.base->begin(), task.base->end());
      rounds_.push_back(task.spec.round());
      changed_.notify_all();
    }
    if (train) return train(task, cancelled);
    return DeltaOf(*task.layout, task.spec.round());
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override {
    if (evaluate) return evaluate(task);
    return std::vector<v1::Metric>{};
  }
  void OnOutcome(const RoundOutcome& outcome) override {
    std::lock_guard lock(mu_);
    outcomes_.push_back(outcome);
    changed_.notify_all();
  }

  void OnNotice(const std::string& notice) override {
    std::lock_guard lock(mu_);
    notices_.push_back(notice);
  }

  std::vector<std::string> notices() {
    std::lock_guard lock(mu_);
    return notices_;
  }
  std::vector<uint64_t> rounds() {
    std::lock_guard lock(mu_);
    return rounds_;
  }
  std::vector<std::string> bases() {
    std::lock_guard lock(mu_);
    return bases_;
  }
  std::vector<RoundOutcome> outcomes() {
    std::lock_guard lock(mu_);
    return outcomes_;
  }
  // False where a minute did not bring it: a watchdog.
  bool WaitForOutcomes(size_t n) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return outcomes_.size() >= n; });
  }
  bool WaitForTrainings(size_t n) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return rounds_.size() >= n; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<uint64_t> rounds_;
  std::vector<std::string> bases_;
  std::vector<RoundOutcome> outcomes_;
  std::vector<std::string> notices_;
};

// A client whose Run goes on in a thread until it ends or Stop.
class RunningClient {
 public:
  explicit RunningClient(std::unique_ptr<Client> client)
      : client_(std::move(client)), thread_([this] { status_ = client_->Run(); }) {}
  ~RunningClient() {
    client_->Shutdown();
    if (thread_.joinable()) thread_.join();
  }
  // What Run returns of itself.
  absl::Status Join() {
    thread_.join();
    return status_;
  }
  absl::Status Stop() {
    client_->Shutdown();
    return Join();
  }
  Client* operator->() { return client_.get(); }

 private:
  std::unique_ptr<Client> client_;
  absl::Status status_;
  std::thread thread_;
};

class SdkTest : public ::testing::Test {
 protected:
  explicit SdkTest(uint64_t weights = 100)
      : layout_(MakeLayout(weights)), model_(MakeModel(*layout_)) {
    Serve(server_);
  }

  v1::Joined JoinedMessage() const {
    v1::Joined joined;
    joined.set_run("r");
    *joined.mutable_layout() = layout_->ToProto();
    joined.set_layout_hash(layout_->hash());
    joined.set_heartbeat_ms(20);
    joined.set_answers_inquiries(true);
    return joined;
  }
  void Serve(FakeAggregator& server) const {
    server.SetJoined(JoinedMessage());
    server.SetModel(model_);
  }
  v1::Task Task(uint64_t round, v1::TaskKind kind = v1::TRAIN, bool inlined = true) const {
    v1::Task task;
    v1::RoundSpec& spec = *task.mutable_spec();
    spec.set_run("r");
    spec.set_round(round);
    spec.set_kind(kind);
    spec.set_seed(11);
    spec.set_base_version(round - 1);
    spec.set_base_sha256(Sha(model_));
    spec.set_layout_hash(layout_->hash());
    spec.set_codec("fp32");
    *spec.mutable_grid() = aggregation::Grid().ToProto();
    if (inlined) task.set_model(model_);
    return task;
  }
  ClientOptions Options(std::vector<std::string> endpoints) const {
    ClientOptions options;
    options.endpoints = std::move(endpoints);
    options.id = "c1";
    options.epoch = 42;
    options.examples = 7;
    options.backoff_min = absl::Milliseconds(1);
    options.backoff_max = absl::Milliseconds(20);
    return options;
  }
  RunningClient StartClient() { return StartClient(Options({server_.endpoint()})); }
  RunningClient StartClient(const ClientOptions& options) {
    auto client = Client::Create(options, &trainer_);
    EXPECT_TRUE(client.ok()) << client.status();
    return RunningClient(*std::move(client));
  }
  std::string Expected(const v1::Task& task) const {
    return EncodedByHand(*layout_, DeltaOf(*layout_, task.spec().round()), task.spec(), "c1");
  }

  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::string model_;
  FakeAggregator server_;
  RecordingTrainer trainer_;
};

// 3 MB: several chunks down, several messages up.
class LargeModelTest : public SdkTest {
 protected:
  LargeModelTest() : SdkTest(750'000) {}
};

// An endpoint where nobody listens.
inline std::string DeadEndpoint() { return FakeAggregator().endpoint(); }

}  // namespace tributary::client::testing
