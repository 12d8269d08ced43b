// Racks killed within a round: their clients' updates are in the same round through the next rack
// of their list, once; and updates that were late for a rack's first sum are in its second.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/e2e/recompute.h"

namespace tributary {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Client i lists both racks, rack i mod 2 first.
class Failover : public ::testing::Test {
 protected:
  void Start(const std::string& more, int rounds, int minimum) {
    root_ = run_.Port();
    racks_ = {run_.Port(), run_.Port()};
    run_.Root(root_, more + "[log]\nlevel = \"debug\"\n", rounds, minimum);
    Racks();
  }
  // A root of one round that waits long for second partial sums.
  void Patient(int minimum, const std::string& straggler) {
    run_.Write(
        "global",
        absl::StrFormat(
            "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n[transport]\nkind = "
            "\"tcp\"\nlisten = \"127.0.0.1:0\"\n[run]\nname = \"e2e\"\nrounds = 1\nmodel = "
            "\"logreg\"\nstartup_limit_s = 60\n[cohort]\nminimum = %d\n[straggler]\ndeadline = "
            "\"fixed\"\ndeadline_s = 60\nsupplement_wait_s = 20\n%s[checkpoint]\ndirectory = "
            "\"%s/checkpoints\"\n[log]\nlevel = \"debug\"\n",
            root_, minimum, straggler, run_.dir()));
    run_.Serve("global");
  }
  // Until both answer: a client whose first rack does not would go to its second.
  void Racks() {
    for (int r = 0; r < 2; ++r) {
      const std::string name = absl::StrCat("rack-", r);
      run_.Rack(name, racks_[r], root_);
      ASSERT_TRUE(run_.AwaitLog(name, "joined run")) << run_.Log(name);
    }
  }
  void Client(int i, int think_ms) {
    run_.Client(absl::StrCat("c", i), {racks_[i % 2], racks_[(i + 1) % 2]}, think_ms);
  }
  // The global has all of this rack's partial sum.
  bool AwaitSumOf(const std::string& rack) {
    return run_.AwaitLog("global", absl::StrCat("partial sum of \"", rack, "\": chunk 1 of 1"));
  }
  std::vector<std::string> Contributors(int round) {
    const v1::CheckpointState state = StateOf(run_, round);
    return {state.contributors().begin(), state.contributors().end()};
  }

  Cluster run_;
  int root_ = 0;
  std::vector<int> racks_;
};

// rack-1 has sent its sum already when rack-0 dies: what rack-0's clients send comes as a second.
TEST_F(Failover, ClientsOfARackKilledMidRoundAreInTheSameRoundThroughTheNext) {
  Start("", 2, 4);
  Client(0, 10);    // has sent its update to rack-0, and sends it again to rack-1
  Client(2, 2500);  // trains when rack-0 dies
  Client(1, 10);
  Client(3, 10);
  ASSERT_TRUE(AwaitSumOf("rack-1")) << run_.Log("global") << run_.Log("rack-1");
  run_.Kill("rack-0");
  EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
  EXPECT_THAT(Contributors(1), ElementsAre("c0", "c1", "c2", "c3"))
      << run_.Log("global") << run_.Log("rack-1");
  EXPECT_EQ(StateOf(run_, 1).parts().at("rack-1"), 2u) << "it came as a second partial sum";
  // All its clients are with rack-1: nobody waits for rack-0's return (rejoin_grace_s is 20).
  const auto rounds = run_.Rounds();
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_LT(rounds[0]["seconds"].get<double>(), 15);
  for (const char* client : {"c0", "c1", "c2", "c3"}) EXPECT_EQ(run_.ExitCode(client), 0);
  CheckModels(run_);
}

TEST_F(Failover, ClientsWhoseRackIsKilledAfterItsSumIsInAreNotCountedAgain) {
  Start("", 1, 4);
  Client(0, 10);
  Client(2, 10);
  Client(1, 10);
  Client(3, 4000);
  ASSERT_TRUE(AwaitSumOf("rack-0")) << run_.Log("global") << run_.Log("rack-0");
  run_.Kill("rack-0");
  for (const char* client : {"c0", "c2"}) {
    EXPECT_TRUE(run_.AwaitLog("rack-1", absl::StrCat("\"", client,
                                                     "\" is counted in round 1 "
                                                     "through another aggregator already")));
  }
  EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
  EXPECT_THAT(Contributors(1), ElementsAre("c0", "c1", "c2", "c3"));
  EXPECT_EQ(StateOf(run_, 1).parts_size(), 0) << "nobody sent a second partial sum";
  EXPECT_THAT(run_.Log("global"), testing::Not(HasSubstr("refused")));
  CheckModels(run_);
}

// rack-1 closes its sum at 60 % of its clients, without c5, whose update comes before rack-0's sum.
TEST_F(Failover, AnUpdateLateForItsRacksSumIsInItsSecond) {
  root_ = run_.Port();
  racks_ = {run_.Port(), run_.Port()};
  Patient(5, "quorum = 0.6\nlate = \"supplement\"\n");
  Racks();
  Client(0, 3000);
  Client(2, 3000);
  Client(1, 10);
  Client(3, 10);
  Client(5, 1000);
  EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
  EXPECT_THAT(Contributors(1), ElementsAre("c0", "c1", "c2", "c3", "c5")) << run_.Log("rack-1");
  EXPECT_EQ(StateOf(run_, 1).parts().at("rack-1"), 2u);
  CheckModels(run_);
}

// ---- Three tiers

// Region r has rack r; the second region has rack-2 too.
class FailoverAcrossRegions : public Failover {
 protected:
  void Start(int minimum) {
    root_ = run_.Port();
    Patient(minimum, "");
    std::vector<int> regions;
    for (int r = 0; r < 2; ++r) {
      regions.push_back(run_.Port());
      Tier(absl::StrCat("region-", r), regions.back(), root_);
    }
    for (int r = 0; r < 3; ++r) {
      racks_.push_back(run_.Port());
      Tier(absl::StrCat("rack-", r), racks_.back(), regions[r > 0]);
    }
  }
  void Tier(const std::string& name, int port, int parent) {
    run_.Rack(name, port, parent, "[log]\nlevel = \"debug\"\n");
    ASSERT_TRUE(run_.AwaitLog(name, "joined run")) << run_.Log(name);
  }
};

// The first region knows of no other rack, and says so when rack-0 has been away for long enough;
// then the root grants what rack-1 has claimed by way of its own region.
class RackOfAnotherRegion : public FailoverAcrossRegions,
                            public ::testing::WithParamInterface<bool> {};

TEST_P(RackOfAnotherRegion, TakesClientsOfOneKilledMidRoundIntoTheSameRound) {
  const bool closed = GetParam();  // its own region's first sum is at the root by then
  Start(5);
  run_.Client("a", {racks_[0], racks_[1]}, 10);    // has sent its update to rack-0, likely
  run_.Client("b", {racks_[0], racks_[1]}, 3000);  // trains when rack-0 dies
  run_.Client("c", {racks_[1]}, 10);
  run_.Client("d", {racks_[1]}, closed ? 10 : 3000);
  run_.Client("e", {racks_[2]}, 10);
  if (closed) {
    ASSERT_TRUE(AwaitSumOf("region-1")) << run_.Log("global") << run_.Log("region-1");
  } else {
    ASSERT_TRUE(run_.AwaitLog("region-1", "partial sum of \"rack-2\": chunk 1 of 1"))
        << run_.Log("region-1");
  }
  run_.Kill("rack-0");
  EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
  EXPECT_THAT(Contributors(1), ElementsAre("a", "b", "c", "d", "e"))
      << run_.Log("region-1") << run_.Log("rack-1");
  const v1::CheckpointState state = StateOf(run_, 1);
  EXPECT_THAT(state.children(), ElementsAre("region-1"));
  EXPECT_EQ(state.parts().contains("region-1"), closed) << "a second partial sum of the region";
  const auto rounds = run_.Rounds();
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_LT(rounds[0]["seconds"].get<double>(), 30) << "not until the deadline of a minute";
  for (const char* client : {"a", "b", "c", "d", "e"}) EXPECT_EQ(run_.ExitCode(client), 0);
  CheckModels(run_);
}

INSTANTIATE_TEST_SUITE_P(ThreeTiers, RackOfAnotherRegion, ::testing::Bool(), [](const auto& param) {
  return param.param ? "WhoseRegionHasSent" : "WhoseRegionWaits";
});

}  // namespace
}  // namespace tributary
