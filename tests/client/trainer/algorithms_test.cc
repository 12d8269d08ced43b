// SCAFFOLD, FedDyn and FedNova through whole nodes, with LibTorch's training: three rounds are
// those of a float64 reference (tests/reference/client_algorithms.py), the tree changes no bit, and
// neither do restarts of the root and of the clients.
#include <gmock/gmock.h>

#include "aggregation/variates.h"
#include "nodes_fixture.h"

namespace tributary::client::trainer {
namespace {

using server::RoundReport;
using server::TestNode;
using testing::Clients;
using testing::kAwayRound;
using testing::kClients;
using testing::kExamples;
using testing::Watched;

struct Algorithm {
  const char* name;
  double momentum;
  std::string training;
};
const std::vector<Algorithm>& Algorithms() {
  static const auto* all =
      new std::vector<Algorithm>{{"scaffold", 0, "scaffold = 1\npopulation_weight = 24\n"},
                                 {"scaffold", 0.5, "scaffold = 1\npopulation_weight = 24\n"},
                                 {"feddyn", 0, "feddyn = 0.1\npopulation_weight = 24\n"},
                                 {"fednova", 0.5, "fednova = 1\n"}};
  return *all;
}

class AlgorithmsTest : public testing::NodesTest {
 protected:
  std::string Root(const Algorithm& algorithm, const std::string& checkpoints, int rounds = 3,
                   const std::string& codec = "fp32") const {
    return NodesTest::Root(
        checkpoints, absl::StrFormat("momentum = %g\n%s", algorithm.momentum, algorithm.training),
        "", rounds, codec);
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
};

TEST_F(AlgorithmsTest, ThreeRoundsEqualFloat64ToOneMillionth) {
  nlohmann::json cases = testing::ThreeRounds("scaffold");
  for (const char* name : {"feddyn", "fednova"}) {
    for (const auto& one : testing::ThreeRounds(name)) cases.push_back(one);
  }
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
      const double error = LargestError(Floats(checkpoints, round), wanted["model"]);
      RecordProperty(absl::StrCat(algorithm.name, a, "_", round), absl::StrCat(error));
      EXPECT_LT(error, 1e-6);
      if (!wanted.contains("variate")) continue;
      const double off =
          LargestError(Floats(checkpoints, round, aggregation::kVariatePrefix), wanted["variate"]);
      RecordProperty(absl::StrCat("variate", a, "_", round), absl::StrCat(off));
      EXPECT_LT(off, 1e-6);
    }
  }
}

TEST_F(AlgorithmsTest, ThroughRacksItIsTheSameToTheBit) {
  for (size_t a = 0; a < Algorithms().size(); ++a) {
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
  for (size_t a = 0; a < Algorithms().size(); ++a) {
    const Algorithm& algorithm = Algorithms()[a];
    const std::vector<std::string> whole = RunFlat(algorithm, absl::StrCat("whole-", a));
    const std::string state = dir_ / absl::StrCat("state-", a);
    std::filesystem::create_directories(state);
    for (size_t round = 0; round < 3; ++round) {
      TestNode root(Root(algorithm, absl::StrCat("lives-", a)));
      Clients clients(Everywhere(root), state, round + 1, round + 1);
      EXPECT_EQ(root.Round(0).model_sha256, whole[round]) << algorithm.name << " " << round;
    }
  }
}

TEST_F(AlgorithmsTest, WithoutItsMemoryAClientTrainsOtherwise) {
  const Algorithm& algorithm = Algorithms()[0];
  const std::vector<std::string> whole = RunFlat(algorithm, "whole");
  for (size_t round = 0; round < 2; ++round) {
    TestNode root(Root(algorithm, "lives"));
    Clients clients(Everywhere(root), "", round + 1, round + 1);
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
