// An asynchronous run of real processes, flat and in two tiers, with kill -9 of the global, racks
// and clients. Whatever happened: no update counts twice, and each committed model is, to the bit,
// what its list of contributions says, recomputed here from the clients' deltas, which depend on
// client and base version alone.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <set>
#include <sstream>

#include "tests/e2e/recompute.h"

namespace tributary {
namespace {

constexpr int kVersions = 25;
constexpr int kClients = 6;
constexpr int kBuffer = 3;

// w / sqrt(1 + tau), rounded once, half to even.
uint64_t Weighed(const std::string& id, uint64_t staleness) {
  return static_cast<uint64_t>(std::nearbyint(static_cast<double>(WeightOf(id) * 65536) /
                                              std::sqrt(1.0 + static_cast<double>(staleness))));
}

class AsyncRun : public ::testing::TestWithParam<int> {
 protected:
  void Start(int racks) {
    root_ = run_.Port();
    run_.Write("global",
               absl::StrFormat(
                   "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n[transport]\nlisten = "
                   "\"127.0.0.1:0\"\n[run]\nname = \"e2e\"\nrounds = %d\nmodel = \"logreg\"\n"
                   "startup_limit_s = 60\nevaluate_every = 5\n[aggregation]\nmode = \"async\"\n"
                   "fractional_weights = true\n[async]\nbuffer = %d\nmax_staleness = 6\nflush_s = "
                   "1\ncollect_s = 2\n[cohort]\nminimum = 2\n[checkpoint]\ndirectory = "
                   "\"%s/checkpoints\"\nkeep = 1000\n",
                   root_, kVersions, kBuffer, run_.dir()));
    run_.Serve("global");
    for (int r = 0; r < racks; ++r) {
      racks_.push_back(run_.Port());
      run_.Rack(absl::StrCat("rack-", r), racks_.back(), root_);
    }
    for (int i = 0; i < kClients; ++i) StartClient(i);
  }
  // Some are slower than others.
  void StartClient(int i) {
    std::vector<int> doors = {root_};
    if (!racks_.empty()) {
      doors = {racks_[static_cast<size_t>(i) % racks_.size()],
               racks_[static_cast<size_t>(i + 1) % racks_.size()]};
    }
    run_.Client(absl::StrCat("c", i), doors, 20 + 60 * (i % 3));
  }
  void Kill(const std::string& name, absl::Duration dead) {
    if (!run_["global"].Running()) return;  // the run is over
    story_ += absl::StrCat(" ", name);
    run_.Kill(name);
    absl::SleepFor(dead);
    if (name[0] == 'c') {
      StartClient(name[1] - '0');
    } else {
      run_.Serve(name);
    }
  }
  // What went into this version, each update once over all versions.
  std::vector<Counted> Contributions(const v1::CheckpointState& state) {
    const uint64_t before = state.spec().base_version();
    EXPECT_EQ(state.version(), before + 1);
    last_ = state.version();
    std::vector<Counted> counted;
    for (const auto& c : state.contributions()) {
      EXPECT_TRUE(counted_.insert({c.id(), c.base_version()}).second)
          << c.id() << " counts twice from version " << c.base_version();
      const uint64_t staleness = before - c.base_version();
      EXPECT_EQ(c.staleness(), staleness);
      EXPECT_EQ(c.weight(), Weighed(c.id(), staleness));
      stale_ += staleness > 0 ? 1 : 0;
      counted.push_back({c.id(), c.base_version() + 1, static_cast<int64_t>(c.weight())});
    }
    return counted;
  }
  void Finish() {
    SCOPED_TRACE("killed:" + story_);
    EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
    CheckModels(run_, [this](const auto& state) { return Contributions(state); });
    EXPECT_EQ(last_, static_cast<uint64_t>(kVersions));
    EXPECT_GT(stale_, 0) << "nothing was late: the test shows nothing";
  }

  Cluster run_;
  int root_ = 0;
  std::vector<int> racks_;
  std::string story_;
  std::set<std::pair<std::string, uint64_t>> counted_;  // client and base version
  uint64_t last_ = 0;                                   // version looked at
  int stale_ = 0;
};

TEST_F(AsyncRun, FlatResumesAfterKillsAndEveryModelIsTheSumOfWhatItNames) {
  Start(0);
  for (const size_t at : {4, 9}) {
    ASSERT_TRUE(run_.AwaitRounds(at)) << run_.Log("global");
    Kill("global", absl::Milliseconds(50));
  }
  Kill("c1", absl::Milliseconds(50));
  Finish();
  EXPECT_THAT(run_.Log("global"), ::testing::HasSubstr("resumes after round"));
}

TEST_F(AsyncRun, TwoTiersResumeAfterKillsOfGlobalRackAndClient) {
  Start(2);
  ASSERT_TRUE(run_.AwaitRounds(4)) << run_.Log("global");
  Kill("global", absl::Milliseconds(50));
  ASSERT_TRUE(run_.AwaitRounds(9)) << run_.Log("global");
  Kill("rack-0", absl::Milliseconds(50));
  Kill("c1", absl::Milliseconds(50));
  Finish();
}

// ---- Virtual time, real training: what the bench runs.

TEST(VirtualRun, LearnsAndRunsTheSameAgain) {
  if (!std::filesystem::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  Cluster run;
  run.Write("client",
            "[client]\nid = \"c\"\nendpoints = [\"127.0.0.1:1\"]\n[data]\ndataset = \"digits\"\n"
            "[model]\nname = \"mlp-digits\"\n");
  run.Write("latencies",
            "[clients]\ncount = 20\ntrain_s = 1\npareto_alpha = 1.5\n[racks]\ncount = 1\n");
  std::map<std::string, std::string> out;
  for (const std::string name : {"async", "async-again", "wait"}) {
    run.Start(name, {Cluster::Binary("tributary-client"), run.dir() + "/client.toml", "--simulate",
                     "20", "--virtual-arm", name.substr(0, name.find('-')), "--virtual-latencies",
                     run.dir() + "/latencies.toml", "--virtual-buffer", "5", "--virtual-versions",
                     "200"});
    ASSERT_EQ(run.ExitCode(name), 0) << run.Log(name);
    double seconds = 0;
    uint64_t version = 0;
    nlohmann::json line;
    std::istringstream lines(run.Log(name));
    for (std::string text; std::getline(lines, text);) {
      line = nlohmann::json::parse(text, nullptr, false);
      ASSERT_FALSE(line.is_discarded()) << text;
      EXPECT_EQ(line["version"], version++);
      EXPECT_GE(line["seconds"], seconds);
      seconds = line["seconds"];
    }
    EXPECT_GE(line["test_accuracy"], 0.8) << name;
    EXPECT_GE(line["updates"], 5 * (version - 1)) << name;
    out[name] = run.Log(name);
  }
  EXPECT_EQ(out["async"], out["async-again"]);
}

// Random moments and victims; only `./run test --full`.
class AsyncChaos : public AsyncRun {};

TEST_P(AsyncChaos, EveryModelIsTheSumOfWhatItNames) {
  PhiloxStream random(SeededHash(static_cast<uint64_t>(GetParam()), "async", "kills"));
  const int racks = GetParam() % 3;
  Start(racks);
  ASSERT_TRUE(run_.AwaitRounds(1)) << run_.Log("global");
  for (int kill = 0; kill < 6 && run_["global"].Running(); ++kill) {
    const auto victim =
        static_cast<int>(random.NextBelow(static_cast<uint64_t>(kClients + racks + 1)));
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random.NextBelow(300))));
    Kill(victim == 0       ? "global"
         : victim <= racks ? absl::StrCat("rack-", victim - 1)
                           : absl::StrCat("c", victim - racks - 1),
         absl::Milliseconds(static_cast<int64_t>(random.NextBelow(200))));
  }
  Finish();
}

INSTANTIATE_TEST_SUITE_P(Full, AsyncChaos, ::testing::Range(1, 26));

}  // namespace
}  // namespace tributary
