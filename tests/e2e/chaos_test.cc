// Real processes killed, started again, stopped and continued at random moments: global, racks and
// clients, over a run of twenty rounds.
// Whatever happened, each committed model is, to the bit, what its contributor list says:
// recomputed here from the clients' deltas, which depend on client and round alone.
#include <gmock/gmock.h>

#include <csignal>

#include "base/philox.h"
#include "tests/e2e/recompute.h"

namespace tributary {
namespace {

constexpr int kRounds = 20;
constexpr int kClients = 6;
constexpr int kFirstFull = 4;  // seeds from here on are those of the full tests
constexpr int kKills = 8;      // and stops: a schedule

// ---- A schedule of kills and stops

class Chaos : public ::testing::TestWithParam<int> {
 protected:
  void Start() {
    root_ = run_.Port();
    racks_ = {run_.Port(), run_.Port()};
    run_.Root(root_, "keep = 1000\n", kRounds, 1);
    for (size_t r = 0; r < racks_.size(); ++r) {
      const std::string name = absl::StrCat("rack-", r);
      run_.Rack(name, racks_[r], root_);
      ASSERT_TRUE(run_.AwaitLog(name, "joined run")) << run_.Log(name);
    }
    for (int i = 0; i < kClients; ++i) StartClient(i);
  }
  // Each lists both racks, its own first.
  void StartClient(int i) {
    run_.Client(absl::StrCat("c", i), {racks_[i % 2], racks_[(i + 1) % 2]}, 40);
  }
  // kill -9 and started again, or SIGSTOP and SIGCONT.
  void Disturb(PhiloxStream* random) {
    const auto victim = static_cast<int>(random->NextBelow(kClients + 3));
    const std::string name = victim == 0   ? "global"
                             : victim <= 2 ? absl::StrCat("rack-", victim - 1)
                                           : absl::StrCat("c", victim - 3);
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random->NextBelow(300))));
    if (!run_["global"].Running()) return;  // the run is over
    if (random->NextBelow(3) == 0) {
      const bool longer = GetParam() >= kFirstFull && random->NextBelow(2) == 0;
      const auto ms = static_cast<int64_t>(random->NextBelow(longer ? 4000 : 400));
      story_ += absl::StrCat(" ", name, "(stopped ", ms, " ms)");
      run_[name].Signal(SIGSTOP);
      absl::SleepFor(absl::Milliseconds(ms));
      run_[name].Signal(SIGCONT);
      return;
    }
    story_ += absl::StrCat(" ", name);
    run_[name].Signal(SIGKILL);
    ASSERT_TRUE(run_[name].Wait(kPatience).ok());
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random->NextBelow(200))));
    if (victim <= 2) {
      run_.Serve(name);
    } else {
      StartClient(victim - 3);
    }
  }
  Cluster run_;
  int root_ = 0;
  std::vector<int> racks_;
  std::string story_;
};

TEST_P(Chaos, EveryCommittedModelIsTheSumOfTheContributorsThatItNames) {
  PhiloxStream random(SeededHash(static_cast<uint64_t>(GetParam()), "chaos", "kills"));
  Start();
  ASSERT_TRUE(run_.AwaitRounds(1)) << run_.Log("global");
  for (int kill = 0; kill < kKills && run_["global"].Running(); ++kill) Disturb(&random);
  EXPECT_EQ(run_.ExitCode("global"), 0) << "seed " << GetParam() << ", disturbed:" << story_ << "\n"
                                        << run_.Log("global");
  SCOPED_TRACE(absl::StrCat("seed ", GetParam(), ", disturbed:", story_));
  CheckModels(run_);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Chaos, ::testing::Range(1, kFirstFull));
// The same fifty times; only `./run test --full`.
INSTANTIATE_TEST_SUITE_P(Full, Chaos, ::testing::Range(kFirstFull, kFirstFull + 50));

}  // namespace
}  // namespace tributary
