// SCAFFOLD and FedDyn through whole nodes, with LibTorch's training: three rounds are those of a
// float64 reference (tests/reference/client_algorithms.py), the tree changes no bit, and neither do
// restarts of the root and of the clients.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "aggregation/variates.h"
#include "client/client.h"
#include "tests/server/node_fixture.h"
#include "training_fixture.h"

namespace tributary::client::trainer {
namespace {

using server::RoundReport;
using server::TempDir;
using server::TestNode;

constexpr int kClients = 3;
constexpr size_t kExamples[kClients] = {12, 7, 5};
constexpr uint64_t kAwayRound = 2;  // client 1 declines it
constexpr size_t kEvery = 61;

// As in the reference.
TorchTrainer::Data DataOf(size_t client) {
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

std::string WriteModel(const TempDir& dir) {
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

// TorchTrainer, but away in one round; remembers what it was given last.
class Watched final : public Trainer {
 public:
  Watched(size_t client, std::shared_ptr<NetworkPool> pool)
      : client_(client),
        inner_(testing::MakeTrainer(std::move(pool), DataOf(client),
                                    "client-" + std::to_string(client))) {}
  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override {
    memory_.clear();
    for (const auto& tensor : task.memory) memory_.emplace_back(tensor.begin(), tensor.end());
    base_ = task.base;
    layout_ = task.layout;
    if (client_ == 1 && task.spec.round() == kAwayRound) return absl::UnavailableError("away");
    return inner_->Train(task, cancelled);
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override {
    return inner_->Evaluate(task);
  }
  const std::vector<std::vector<float>>& memory() const { return memory_; }
  const ModelBytes& base() const { return base_; }
  const aggregation::ModelLayout& layout() const { return *layout_; }

 private:
  const size_t client_;
  const std::unique_ptr<TorchTrainer> inner_;
  std::vector<std::vector<float>> memory_;
  ModelBytes base_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
};

// The three clients, each on a thread of its own, until they are stopped or the run ends.
class Clients {
 public:
  // Client i joins endpoints[i]; `epoch` is larger in each later life.
  Clients(const std::vector<std::string>& endpoints, const std::string& state, uint64_t epoch) {
    const auto pool = testing::MakePool("logreg", kClients);
    for (size_t i = 0; i < kClients; ++i) {
      trainers_.push_back(std::make_unique<Watched>(i, pool));
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

struct Algorithm {
  const char* name;
  double momentum;
  std::string training;
};
const std::vector<Algorithm>& Algorithms() {
  static const auto* all =
      new std::vector<Algorithm>{{"scaffold", 0, "scaffold = 1\npopulation_weight = 24\n"},
                                 {"scaffold", 0.5, "scaffold = 1\npopulation_weight = 24\n"},
                                 {"feddyn", 0, "feddyn = 0.1\npopulation_weight = 24\n"}};
  return *all;
}

class AlgorithmsTest : public ::testing::Test {
 protected:
  // The cohort is everybody (a fraction, so that a round may count without the one that is away).
  std::string Root(const Algorithm& algorithm, const std::string& checkpoints, int rounds = 3,
                   const std::string& codec = "fp32") {
    return absl::StrFormat(
        "[node]\nname = \"root\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n[run]\nname = \"r\"\nrounds = %d\nmodel = \"%s\"\nevaluate_every = 0\n"
        "[cohort]\nminimum = 3\nfraction = 0.999999\n[compression]\ncodec = \"%s\"\n[checkpoint]\n"
        "directory = \"%s\"\nkeep = 10\n[training]\nlr = 0.1\nlocal_epochs = 5\nbatch_size = 0\n"
        "momentum = %g\n%s",
        rounds, model_, codec, dir_ / checkpoints, algorithm.momentum, algorithm.training);
  }
  static std::string Rack(const std::string& name, const TestNode& root) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = [\"%s\"]\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n",
        name, root.endpoint());
  }
  static std::vector<std::string> Everywhere(const TestNode& node) {
    return std::vector<std::string>(kClients, node.endpoint());
  }
  std::vector<std::string> RunFlat(const Algorithm& algorithm, const std::string& checkpoints) {
    TestNode root(Root(algorithm, checkpoints));
    Clients clients(Everywhere(root), "", 1);
    std::vector<std::string> hashes;
    for (size_t round = 0; round < 3; ++round) {
      const RoundReport report = root.Round(round);
      EXPECT_TRUE(report.committed) << report.why_not;
      EXPECT_EQ(report.collected.result.clients, round + 1 == kAwayRound ? 2u : 3u);
      hashes.push_back(report.model_sha256);
    }
    EXPECT_TRUE(root.End().ok());
    clients.Join();
    return hashes;
  }
  std::vector<float> Floats(const std::string& checkpoints, int round, bool variates) {
    const auto model = models::ReadSafetensors(
        dir_ / absl::StrFormat("%s/r/%08d/model.safetensors", checkpoints, round));
    EXPECT_TRUE(model.ok()) << model.status();
    std::vector<float> out;
    for (const std::string name : {"fc.weight", "fc.bias"}) {
      const std::string wanted = (variates ? aggregation::kVariatePrefix : "") + name;
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

TEST_F(AlgorithmsTest, ThreeRoundsEqualFloat64ToOneMillionth) {
  const auto cases = nlohmann::json::parse(
      std::ifstream(TRIBUTARY_SOURCE_DIR "/tests/golden/algorithms/three_rounds.json"));
  ASSERT_EQ(cases.size(), Algorithms().size());
  for (size_t a = 0; a < cases.size(); ++a) {
    const Algorithm& algorithm = Algorithms()[a];
    ASSERT_EQ(cases[a]["name"], algorithm.name);
    ASSERT_EQ(cases[a]["momentum"], algorithm.momentum);
    const std::string checkpoints = absl::StrCat("checkpoints-", a);
    RunFlat(algorithm, checkpoints);
    for (int round = 1; round <= 3; ++round) {
      SCOPED_TRACE(
          absl::StrCat(algorithm.name, ", momentum ", algorithm.momentum, ", round ", round));
      const auto& wanted = cases[a]["rounds"][static_cast<size_t>(round) - 1];
      const double error = LargestError(Floats(checkpoints, round, false), wanted["model"]);
      RecordProperty(absl::StrCat(algorithm.name, a, "_", round), absl::StrCat(error));
      EXPECT_LT(error, 1e-6);
      if (!wanted.contains("variate")) continue;
      const double off = LargestError(Floats(checkpoints, round, true), wanted["variate"]);
      RecordProperty(absl::StrCat("variate", a, "_", round), absl::StrCat(off));
      EXPECT_LT(off, 1e-6);
    }
  }
}

TEST_F(AlgorithmsTest, ThroughRacksItIsTheSameToTheBit) {
  for (size_t a = 1; a < Algorithms().size(); ++a) {
    const Algorithm& algorithm = Algorithms()[a];
    const std::vector<std::string> flat = RunFlat(algorithm, absl::StrCat("flat-", a));
    TestNode root(Root(algorithm, absl::StrCat("tiers-", a)));
    TestNode one(Rack("rack-1", root)), two(Rack("rack-2", root));
    Clients clients({one.endpoint(), two.endpoint(), one.endpoint()}, "", 1);
    for (size_t round = 0; round < 3; ++round) {
      EXPECT_EQ(root.Round(round).model_sha256, flat[round]) << algorithm.name << " " << round;
    }
    EXPECT_TRUE(root.End().ok());
    clients.Join();
  }
}

TEST_F(AlgorithmsTest, RestartsOfTheRootAndOfTheClientsAfterEachRoundChangeNoBit) {
  for (size_t a = 1; a < Algorithms().size(); ++a) {
    const Algorithm& algorithm = Algorithms()[a];
    const std::vector<std::string> whole = RunFlat(algorithm, absl::StrCat("whole-", a));
    const std::string state = dir_ / absl::StrCat("state-", a);
    std::filesystem::create_directories(state);
    for (size_t round = 0; round < 3; ++round) {
      TestNode root(Root(algorithm, absl::StrCat("lives-", a)));
      Clients clients(Everywhere(root), state, round + 1);
      EXPECT_EQ(root.Round(0).model_sha256, whole[round]) << algorithm.name << " " << round;
    }
  }
}

TEST_F(AlgorithmsTest, WithoutItsMemoryAClientTrainsOtherwise) {
  const Algorithm& algorithm = Algorithms()[0];
  const std::vector<std::string> whole = RunFlat(algorithm, "whole");
  for (size_t round = 0; round < 2; ++round) {
    TestNode root(Root(algorithm, "lives"));
    Clients clients(Everywhere(root), "", round + 1);
    const std::string hash = root.Round(0).model_sha256;
    EXPECT_EQ(hash == whole[round], round == 0) << "the memory is what makes the difference";
  }
}

// What SCAFFOLD rests on, whatever the codec loses: the server's variate is the mean of the
// clients'.
TEST_F(AlgorithmsTest, TheServersVariateIsTheMeanOfTheClientsUnderALossyCodecToo) {
  TestNode root(Root(Algorithms()[0], "lossy", 4, "int8; scaffold.* = int4"));
  Clients clients(Everywhere(root), "", 1);
  ASSERT_TRUE(root.Round(3).committed);
  ASSERT_TRUE(root.End().ok());
  clients.Join();
  const Watched& first = clients.trainer(0);
  const auto& layout = first.layout();
  ASSERT_EQ(layout.tensors().size(), 4u);
  double largest = 0;
  for (uint32_t t = 2; t < 4; ++t) {
    std::vector<float> c(layout.TensorElements(t));
    std::memcpy(c.data(), first.base()->data() + layout.TensorByteOffset(t), 4 * c.size());
    for (size_t i = 0; i < c.size(); ++i) {
      double mean = 0;
      for (size_t k = 0; k < kClients; ++k) {
        ASSERT_EQ(clients.trainer(k).memory()[t].size(), c.size());
        mean += static_cast<double>(kExamples[k]) * clients.trainer(k).memory()[t][i] / 24;
      }
      ASSERT_NEAR(c[i], mean, 1e-7) << t << " " << i;
      largest = std::max(largest, std::abs(mean));
    }
  }
  EXPECT_GT(largest, 1e-3) << "nothing was learnt of the variates";
}

TEST_F(AlgorithmsTest, ARunGoesOnWithItsAlgorithmOnlyAndSaysSo) {
  {
    TestNode root(Root(Algorithms()[0], "kept", 1));
    Clients clients(Everywhere(root), "", 1);
    ASSERT_TRUE(root.Round(0).committed);
    ASSERT_TRUE(root.End().ok());
    clients.Join();
  }
  for (const Algorithm& other : {Algorithm{"fedavg", 0, ""}, Algorithms()[2]}) {
    const auto config = server::ParseConfig(Root(other, "kept"), "test.toml");
    ASSERT_TRUE(config.ok()) << config.status();
    const auto node = server::Node::Create({.config = *config, .on_round = {}});
    EXPECT_EQ(node.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(node.status().message()), ::testing::HasSubstr("control variates"));
  }
}

}  // namespace
}  // namespace tributary::client::trainer
