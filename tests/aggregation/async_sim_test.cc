// Seeded scenarios of asynchronous runs in virtual time, under faults: crashes, restarts, pauses,
// partitions, sessions cut, uploads that are lost, double, late and out of order, clock steps, full
// disks. What
// holds after every event: sim/async_scenario.cc. A failure prints its seed, and
//   async_sim_test --seed=N [--trace]
// repeats it exactly.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/aggregation/sim/async_scenario.h"

namespace tributary::sim {

int64_t only_seed = -1;

namespace {

constexpr uint64_t kScenarios = 1000;

class AsyncSimulation : public ::testing::TestWithParam<uint64_t> {};

TEST_P(AsyncSimulation, CountsEachUpdateOnceAndNeverStopsWhateverFails) {
  if (only_seed >= 0) GTEST_SKIP() << "--seed asks for one scenario only";
  std::map<std::string, int> seen;
  for (uint64_t seed = GetParam(); seed < kScenarios; seed += 4) {
    AsyncScenario(seed, &seen).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ": repeat it with --seed=" << seed;
  }
  // A simulation in which these never happen would promise nothing.
  for (const char* what : {"admitted",
                           "duplicate",
                           "stale",
                           "session",
                           "declined",
                           "broke off",
                           "message doubled",
                           "message lost",
                           "message late",
                           "message overtaken",
                           "clock stepped",
                           "restarted",
                           "root crashed",
                           "aggregator crashed",
                           "client crashed",
                           "session lost",
                           "paused",
                           "partition",
                           "disk full",
                           "committed",
                           "told included",
                           "starved",
                           "waits for the next buffer",
                           "dropped when whole",
                           "sum broke off",
                           "sum left out",
                           "buffer goes on",
                           "collected before it began"}) {
    EXPECT_GT(seen[what], 0) << what;
  }
  for (const auto& [what, count] : seen) {
    if (!what.empty()) RecordProperty(what, count);
  }
}

INSTANTIATE_TEST_SUITE_P(Part, AsyncSimulation, ::testing::Range<uint64_t>(0, 4));

TEST(AsyncReplay, LeavesTheSameTraceForTheSameSeed) {
  if (only_seed >= 0) GTEST_SKIP() << "--seed asks for one scenario only";
  std::map<std::string, int> seen;
  std::set<uint64_t> traces;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const uint64_t trace = AsyncScenario(seed, &seen).Run();
    EXPECT_EQ(AsyncScenario(seed, &seen).Run(), trace) << "seed " << seed;
    traces.insert(trace);
  }
  EXPECT_EQ(traces.size(), 40u);
}

TEST(AsyncReplay, RunsTheSeedThatIsAskedFor) {
  if (only_seed < 0) GTEST_SKIP() << "no --seed=N was given";
  std::map<std::string, int> seen;
  AsyncScenario scenario(static_cast<uint64_t>(only_seed), &seen);
  const uint64_t trace = scenario.Run();
  std::printf("seed %lld: %llu events, trace %016llx\n", static_cast<long long>(only_seed),
              static_cast<unsigned long long>(scenario.events()),
              static_cast<unsigned long long>(trace));
  for (const auto& [what, count] : seen) std::printf("  %-28s %d\n", what.c_str(), count);
}

}  // namespace
}  // namespace tributary::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0)
      tributary::sim::only_seed = std::atoll(argv[i] + 7);
    if (std::strcmp(argv[i], "--trace") == 0) tributary::sim::World::print_trace = true;
  }
  return RUN_ALL_TESTS();
}
