// An asynchronous run of real processes, flat and in two tiers, with kill -9 of the global, racks
// and clients. Whatever happened: no update counts twice, and each committed model is, to the bit,
// what its list of contributions says, recomputed here from the clients' deltas, which depend on
// client and base version alone.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <set>
#include <sstream>

#include "base/philox.h"
#include "models/builtin.h"
#include "tests/e2e/cluster.h"
#include "tributary/v1/checkpoint.pb.h"

namespace tributary {
namespace {

constexpr int kVersions = 25;
constexpr int kClients = 6;
constexpr int kBuffer = 3;

// ---- What e2e_client sends, by its rules.

int64_t UnitsOf(const std::string& id) {
  return (5 + static_cast<int64_t>(SeededHash(1, "weight", id) % 20)) * 65536;
}

// w / sqrt(1 + tau), rounded once, half to even.
uint64_t Weighed(const std::string& id, uint64_t staleness) {
  return static_cast<uint64_t>(std::nearbyint(static_cast<double>(UnitsOf(id)) /
                                              std::sqrt(1.0 + static_cast<double>(staleness))));
}

// base moved by the weighted mean of the deltas on the run's grid; all tensors are F32.
std::vector<uint8_t> Recomputed(const aggregation::ModelLayout& layout,
                                const std::vector<uint8_t>& base,
                                const v1::CheckpointState& state) {
  const int fraction_bits = static_cast<int>(state.spec().grid().fraction_bits());
  uint64_t total = 0;
  for (const auto& c : state.contributions()) total += c.weight();
  std::vector<uint8_t> next = base;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    std::vector<int64_t> sums(layout.TensorElements(t), 0);
    for (const auto& c : state.contributions()) {
      PhiloxStream random(SeededHash(c.base_version() + 1, "delta", c.id()), t);
      for (int64_t& sum : sums) {
        const float delta = static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
        sum += static_cast<int64_t>(c.weight()) *
               std::llrint(std::ldexp(static_cast<double>(delta), fraction_bits));
      }
    }
    for (uint64_t i = 0; i < sums.size(); ++i) {
      uint8_t* at = next.data() + layout.TensorByteOffset(t) + 4 * i;
      float value;
      std::memcpy(&value, at, 4);
      const double mean =
          std::ldexp(static_cast<double>(sums[i]) / static_cast<double>(total), -fraction_bits);
      value = static_cast<float>(static_cast<double>(value) + mean);
      std::memcpy(at, &value, 4);
    }
  }
  return next;
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
    run_[name].Signal(SIGKILL);
    ASSERT_TRUE(run_[name].Wait(kPatience).ok());
    absl::SleepFor(dead);
    if (name[0] == 'c') {
      StartClient(name[1] - '0');
    } else {
      run_.Serve(name);
    }
  }
  void CheckModels() {
    const std::string folder = run_.dir() + "/checkpoints/e2e/";
    v1::CheckpointManifest manifest;
    ASSERT_TRUE(manifest.ParseFromString(Read(folder + "MANIFEST")));
    auto model = models::BuiltinModel("logreg", 1);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<uint8_t> expected = model->bytes;
    uint64_t version = 0;
    std::set<std::pair<std::string, uint64_t>> counted;
    for (const auto& entry : manifest.entries()) {
      v1::CheckpointState state;
      ASSERT_TRUE(state.ParseFromString(Read(folder + entry.directory() + "/state.pb")));
      ASSERT_EQ(state.version(), version + 1);
      EXPECT_EQ(state.spec().base_version(), version);
      ASSERT_GT(state.contributions_size(), 0);
      for (const auto& c : state.contributions()) {
        EXPECT_TRUE(counted.insert({c.id(), c.base_version()}).second)
            << c.id() << " counts twice from version " << c.base_version() << "; killed:" << story_;
        const uint64_t staleness = version - c.base_version();
        EXPECT_EQ(c.staleness(), staleness);
        EXPECT_EQ(c.weight(), Weighed(c.id(), staleness));
        stale_ += staleness > 0 ? 1 : 0;
      }
      version = state.version();
      expected = Recomputed(*model->layout, expected, state);
      const auto saved = models::ReadSafetensors(folder + entry.directory() + "/model.safetensors");
      ASSERT_TRUE(saved.ok()) << saved.status();
      ASSERT_EQ(absl::BytesToHexString(Sha256Of(saved->bytes)),
                absl::BytesToHexString(Sha256Of(expected)))
          << "version " << version << " is not the sum of its contributions; killed:" << story_;
    }
    EXPECT_EQ(version, static_cast<uint64_t>(kVersions));
    EXPECT_GT(stale_, 0) << "nothing was late: the test shows nothing";
  }
  void Finish() {
    EXPECT_EQ(run_.ExitCode("global"), 0) << "killed:" << story_ << "\n" << run_.Log("global");
    CheckModels();
  }

  Cluster run_;
  int root_ = 0;
  std::vector<int> racks_;
  std::string story_;
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
