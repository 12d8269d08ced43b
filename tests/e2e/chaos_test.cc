// Real processes killed, started again, stopped and continued at random moments: global, racks and
// clients, over a run of twenty rounds.
// Whatever happened, each committed model is, to the bit, what its contributor list says:
// recomputed here from the clients' deltas, which depend on client and round alone.
#include <gmock/gmock.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "tests/e2e/recompute.h"

namespace tributary {
namespace {

constexpr int kRounds = 20;
constexpr int kClients = 6;
constexpr int kFirstFull = 4;  // seeds from here on are those of the full tests,
constexpr int kFull = 50;      // which are so many
constexpr int kKills = 8;      // and stops: a schedule

// ---- A schedule of kills and stops

struct Step {
  std::string victim;
  int64_t after_ms = 0;  // the step before it
  bool stop = false;     // SIGSTOP and SIGCONT; else kill -9 and a new start
  int64_t for_ms = 0;    // until that
};

std::vector<Step> ScheduleOf(int seed) {
  PhiloxStream random(SeededHash(static_cast<uint64_t>(seed), "chaos", "kills"));
  const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random.NextBelow(n)); };
  std::vector<Step> steps(kKills);
  for (Step& step : steps) {
    const int64_t victim = below(kClients + 3);
    step.victim = victim == 0   ? "global"
                  : victim <= 2 ? absl::StrCat("rack-", victim - 1)
                                : absl::StrCat("c", victim - 3);
    step.after_ms = below(300);
    step.stop = below(3) == 0;
    const bool longer = step.stop && seed >= kFirstFull && below(2) == 0;
    step.for_ms = below(!step.stop ? 200 : longer ? 4000 : 400);
  }
  return steps;
}

TEST(Schedules, OfTheFullTestsKillAndStopTheGlobalRacksAndClients) {
  std::map<std::string, int> kinds;
  for (int seed = kFirstFull; seed < kFirstFull + kFull; ++seed) {
    for (const Step& step : ScheduleOf(seed)) {
      ++kinds[absl::StrCat(step.stop ? "stop " : "kill ",
                           step.victim[0] == 'c' ? "c" : step.victim)];
    }
  }
  EXPECT_EQ(kinds.size(), 8u);
  for (const auto& [kind, count] : kinds) EXPECT_GE(count, 10) << kind;
}

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
  void Disturb(const Step& step) {
    const std::string& name = step.victim;
    absl::SleepFor(absl::Milliseconds(step.after_ms));
    if (!run_["global"].Running()) return;  // the run is over
    if (step.stop) {
      story_ += absl::StrCat(" ", name, "(stopped ", step.for_ms, " ms)");
      run_[name].Signal(SIGSTOP);
      absl::SleepFor(absl::Milliseconds(step.for_ms));
      run_[name].Signal(SIGCONT);
      return;
    }
    story_ += absl::StrCat(" ", name);
    run_.Kill(name);
    absl::SleepFor(absl::Milliseconds(step.for_ms));
    if (name[0] == 'c') {
      StartClient(name[1] - '0');
    } else {
      run_.Serve(name);
    }
  }
  Cluster run_;
  int root_ = 0;
  std::vector<int> racks_;
  std::string story_;
};

TEST_P(Chaos, EveryCommittedModelIsTheSumOfTheContributorsThatItNames) {
  Start();
  ASSERT_TRUE(run_.AwaitRounds(1)) << run_.Log("global");
  for (const Step& step : ScheduleOf(GetParam())) Disturb(step);
  EXPECT_NE(story_, "") << "the run was over before anything happened to it";
  EXPECT_EQ(run_.ExitCode("global"), 0) << "seed " << GetParam() << ", disturbed:" << story_ << "\n"
                                        << run_.Log("global");
  SCOPED_TRACE(absl::StrCat("seed ", GetParam(), ", disturbed:", story_));
  CheckModels(run_);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Chaos, ::testing::Range(1, kFirstFull));
// The same fifty times; only `./run test --full`.
INSTANTIATE_TEST_SUITE_P(Full, Chaos, ::testing::Range(kFirstFull, kFirstFull + kFull));

}  // namespace
}  // namespace tributary
