// HierFAVG through whole nodes, with LibTorch's training: racks' own rounds are those of a float64
// reference (tests/reference/client_algorithms.py), and one of them is what there was without.
#include "nodes_fixture.h"

namespace tributary::client::trainer {
namespace {

using server::RoundReport;
using server::TestNode;
using testing::Clients;

std::string Own(int rounds) { return absl::StrCat("rack_rounds = ", rounds, "\n"); }

class HierarchyTest : public testing::NodesTest {
 protected:
  // Clients 0 and 2 at one rack, 1 at another; with `deep`, 0 and 2 at racks of their own below it.
  std::vector<std::string> RunRacks(const std::string& checkpoints, const std::string& run,
                                    bool deep = false) {
    TestNode root(Root(checkpoints, "", run));
    TestNode one(Rack("rack-1", root)), two(Rack("rack-2", root));
    std::unique_ptr<TestNode> below[2];
    std::string doors[2] = {one.endpoint(), one.endpoint()};
    for (int i = 0; deep && i < 2; ++i) {
      below[i] = std::make_unique<TestNode>(Rack(absl::StrCat("leaf-", i), one));
      doors[i] = below[i]->endpoint();
    }
    Clients clients({doors[0], two.endpoint(), doors[1]}, "", 1);
    std::vector<std::string> hashes;
    for (size_t round = 0; round < 3; ++round) {
      const RoundReport report = root.Round(round);
      EXPECT_TRUE(report.committed) << report.why_not;
      hashes.push_back(report.model_sha256);
      contributors_.push_back(report.collected.result.contributors);
      weights_.push_back(report.collected.result.weight);
    }
    EXPECT_TRUE(root.End().ok());
    clients.Join();
    return hashes;
  }
  std::vector<std::vector<std::string>> contributors_;
  std::vector<uint64_t> weights_;
};

TEST_F(HierarchyTest, ThreeRoundsOfRacksWithTheirOwnEqualFloat64ToOneMillionth) {
  const auto cases = testing::ThreeRounds("hierfavg");
  ASSERT_EQ(cases.size(), 2u);
  for (const auto& one : cases) {
    const int kappa = one["kappa"];
    const std::string checkpoints = absl::StrCat("own-", kappa);
    RunRacks(checkpoints, Own(kappa));
    for (int round = 1; round <= 3; ++round) {
      const double error = LargestError(Floats(checkpoints, round),
                                        one["rounds"][static_cast<size_t>(round) - 1]["model"]);
      RecordProperty(absl::StrCat("kappa_", kappa, "_round_", round), absl::StrCat(error));
      EXPECT_LT(error, 1e-6) << kappa << " " << round;
    }
  }
  // Who was away in one of its rack's rounds is in the others.
  const std::vector<std::string> all = {"client-0", "client-1", "client-2"};
  for (const auto& contributors : contributors_) EXPECT_EQ(contributors, all);
  for (const uint64_t weight : weights_) EXPECT_EQ(weight, 24u);
}

TEST_F(HierarchyTest, OneRoundOfItsOwnIsTheFlatRunToTheBit) {
  std::vector<std::string> flat;
  {
    TestNode root(Root("flat", ""));
    Clients clients(Everywhere(root), "", 1);
    for (size_t round = 0; round < 3; ++round) flat.push_back(root.Round(round).model_sha256);
  }
  EXPECT_EQ(RunRacks("one", Own(1)), flat);
  EXPECT_EQ(RunRacks("unset", ""), flat);
  EXPECT_NE(RunRacks("two", Own(2)), flat);
}

TEST_F(HierarchyTest, RacksBelowARackTakePartInItsRoundsAndChangeNoBit) {
  const std::vector<std::string> two_tiers = RunRacks("two", Own(2));
  EXPECT_EQ(RunRacks("three", Own(2), true), two_tiers);
}

}  // namespace
}  // namespace tributary::client::trainer
