// For tests of algorithms through whole nodes: three clients on made-up images, as
// tests/reference/client_algorithms.py has them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/client.h"
#include "tests/server/node_fixture.h"
#include "training_fixture.h"

namespace tributary::client::trainer::testing {

using server::RoundReport;
using server::TempDir;
using server::TestNode;

inline constexpr int kClients = 3;
inline constexpr size_t kExamples[kClients] = {12, 7, 5};
inline constexpr uint64_t kAwayRound = 2;                  // client 1 declines it
inline constexpr double kNovaSteps[kClients] = {5, 2, 3};  // full batches, under FedNova
inline constexpr size_t kEvery = 61;

// As in the reference.
inline TorchTrainer::Data DataOf(size_t client) {
  TorchTrainer::Data data{.format = {.dataset = "made up",
                                     .channels = 1,
                                     .height = 28,
                                     .width = 28,
                                     .classes = 10,
                                     .pixel_max = 255,
                                     .mean = 0,
                                     .deviation = 4},
                          .train = {},
                          .test = {}};
  for (size_t i = 0; i < kExamples[client]; ++i) {
    const size_t label = (i * 3 + client * 4) % 10;
    data.train.labels.push_back(static_cast<uint8_t>(label));
    for (size_t p = 0; p < 784; ++p) {
      data.train.pixels.push_back(
          static_cast<uint8_t>((p * 31 + label * 57 + i * 11 + client * 101) % 256));
    }
  }
  return data;
}

inline std::string WriteModel(const TempDir& dir) {
  const auto layout = *models::BuiltinLayout("logreg");
  std::vector<uint8_t> bytes(layout->model_bytes());
  for (size_t i = 0; i < bytes.size() / 4; ++i) {
    const float value = static_cast<float>(static_cast<int>(i * 13 % 29) - 14) / 256;
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  const std::string path = dir / "start.safetensors";
  EXPECT_TRUE(models::WriteSafetensors(path, *layout, bytes, {}).ok());
  return path;
}

// TorchTrainer, but away in one round; remembers what it was given last. Rounds after `last` are
// held until Release.
class Watched final : public Trainer {
 public:
  Watched(size_t client, std::shared_ptr<NetworkPool> pool, uint64_t last)
      : client_(client),
        last_(last),
        inner_(MakeTrainer(std::move(pool), DataOf(client), "client-" + std::to_string(client))) {}
  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override {
    if (task.spec.round() > last_) {
      released_.WaitForNotification();
      return absl::UnavailableError("beyond the test's last round");
    }
    memory_.clear();
    for (const auto& tensor : task.memory) memory_.emplace_back(tensor.begin(), tensor.end());
    base_ = task.base;
    layout_ = task.layout;
    if (client_ == 1 && task.spec.round() == kAwayRound) return absl::UnavailableError("away");
    TrainTask own = task;
    auto& values = *own.spec.mutable_hyperparameters();
    if (values.contains("fednova") && values.at("fednova") > 0) {
      values["local_epochs"] = kNovaSteps[client_];
    }
    return inner_->Train(own, cancelled);
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override {
    return inner_->Evaluate(task);
  }
  void Release() {
    if (!released_.HasBeenNotified()) released_.Notify();
  }
  const std::vector<std::vector<float>>& memory() const { return memory_; }
  const ModelBytes& base() const { return base_; }
  const aggregation::ModelLayout& layout() const { return *layout_; }

 private:
  const size_t client_;
  const uint64_t last_;
  absl::Notification released_;
  const std::unique_ptr<TorchTrainer> inner_;
  std::vector<std::vector<float>> memory_;
  ModelBytes base_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
};

// The three clients, each on a thread of its own, until they are stopped or the run ends.
class Clients {
 public:
  // Client i joins endpoints[i]; `epoch` is larger in each later life. None trains in a round after
  // `last`: a life of which a test wants so many has no more of them.
  Clients(const std::vector<std::string>& endpoints, const std::string& state, uint64_t epoch,
          uint64_t last = std::numeric_limits<uint64_t>::max()) {
    const auto pool = MakePool("logreg", kClients);
    for (size_t i = 0; i < kClients; ++i) {
      trainers_.push_back(std::make_unique<Watched>(i, pool, last));
      ClientOptions options;
      options.endpoints = {endpoints[i]};
      options.id = "client-" + std::to_string(i);
      options.examples = kExamples[i];
      options.epoch = epoch;
      options.state_directory = state;
      options.backoff_max = absl::Milliseconds(200);
      auto client = Client::Create(std::move(options), trainers_.back().get());
      EXPECT_TRUE(client.ok()) << client.status();
      clients_.push_back(*std::move(client));
    }
    for (auto& client : clients_) threads_.emplace_back([&client] { (void)client->Run(); });
  }
  ~Clients() { Stop(); }
  void Stop() {
    for (auto& client : clients_) client->Shutdown();
    for (auto& trainer : trainers_) trainer->Release();
    Join();
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const Watched& trainer(size_t i) const { return *trainers_[i]; }

 private:
  std::vector<std::unique_ptr<Watched>> trainers_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::thread> threads_;
};

inline nlohmann::json ThreeRounds(const std::string& name) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& one : nlohmann::json::parse(
           std::ifstream(TRIBUTARY_SOURCE_DIR "/tests/golden/algorithms/three_rounds.json"))) {
    if (one["name"] == name) out.push_back(one);
  }
  EXPECT_FALSE(out.empty()) << name;
  return out;
}

class NodesTest : public ::testing::Test {
 protected:
  // The cohort is everybody (a fraction, so that a round may count without the one that is away).
  // `run`: more of [run]; `training`: of [training].
  std::string Root(const std::string& checkpoints, const std::string& training,
                   const std::string& run = "", int rounds = 3,
                   const std::string& codec = "fp32") const {
    return absl::StrFormat(
        "[node]\nname = \"root\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n[run]\nname = \"r\"\nrounds = %d\nmodel = \"%s\"\nevaluate_every = 0\n"
        "%s[cohort]\nminimum = 3\nfraction = 0.999999\n[compression]\ncodec = \"%s\"\n"
        "[checkpoint]\ndirectory = \"%s\"\nkeep = 10\n[training]\nlr = 0.1\nlocal_epochs = 5\n"
        "batch_size = 0\n%s",
        rounds, model_, run, codec, dir_ / checkpoints, training);
  }
  static std::string Rack(const std::string& name, const TestNode& parent) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = [\"%s\"]\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n",
        name, parent.endpoint());
  }
  static std::vector<std::string> Everywhere(const TestNode& node) {
    return std::vector<std::string>(kClients, node.endpoint());
  }
  std::vector<float> Floats(const std::string& checkpoints, int round,
                            const std::string& prefix = "") const {
    const auto model = models::ReadSafetensors(
        dir_ / absl::StrFormat("%s/r/%08d/model.safetensors", checkpoints, round));
    EXPECT_TRUE(model.ok()) << model.status();
    std::vector<float> out;
    for (const std::string name : {"fc.weight", "fc.bias"}) {
      const std::string wanted = prefix + name;
      for (uint32_t t = 0; t < model->layout->tensors().size(); ++t) {
        if (model->layout->tensors()[t].name != wanted) continue;
        const size_t at = out.size();
        out.resize(at + model->layout->TensorElements(t));
        std::memcpy(out.data() + at, model->bytes.data() + model->layout->TensorByteOffset(t),
                    (out.size() - at) * sizeof(float));
      }
    }
    EXPECT_EQ(out.size(), 7850u);
    return out;
  }
  static double LargestError(const std::vector<float>& got, const nlohmann::json& wanted) {
    double largest = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      largest = std::max(largest, std::abs(got[kEvery * i] - wanted[i].get<double>()));
    }
    EXPECT_EQ(wanted.size(), (got.size() + kEvery - 1) / kEvery);
    return largest;
  }

  TempDir dir_;
  const std::string model_ = WriteModel(dir_);
};

}  // namespace tributary::client::trainer::testing
