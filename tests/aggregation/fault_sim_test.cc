// Thousands of seeded scenarios of round machines in tiers, in virtual time, under faults: crashes,
// restarts, pauses, partitions, messages that are lost, double, late and out of order, clock steps,
// full disks. What holds after every event: sim/invariants.cc. A failure prints its seed, and
//   fault_sim_test --seed=N [--trace]
// repeats it exactly.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {

int64_t only_seed = -1;

namespace {

constexpr uint64_t kScenarios = 2400;

// Runs it; where something does not hold, what it was is followed by how to see it again.
void RunSeed(uint64_t seed, Scenario* scenario, const std::function<bool()>& failed) {
  scenario->Run();
  if (failed()) ADD_FAILURE() << "seed " << seed << ": repeat it with --seed=" << seed;
}

// In eight parts, so that parallel runs of the tests may share them.
class FaultSimulation : public ::testing::TestWithParam<uint64_t> {};

TEST_P(FaultSimulation, CountsEachUpdateOnceAndEndsInTimeWhateverFails) {
  if (only_seed >= 0) GTEST_SKIP() << "--seed asks for one scenario only";
  std::map<std::string, int> seen;
  uint64_t events = 0;
  for (uint64_t seed = GetParam(); seed < kScenarios; seed += 8) {
    Scenario scenario(seed, &seen);
    RunSeed(seed, &scenario, [] { return HasFailure(); });
    events += scenario.events();
    if (HasFailure()) return;
  }
  // A simulation in which these never happen would promise nothing.
  for (const char* what : {"duplicate",
                           "round",
                           "session",
                           "weight",
                           "full",
                           "duplicate_clients",
                           "replaced",
                           "declined",
                           "refused",
                           "broke off",
                           "broke off dead",
                           "aborted",
                           "aggregator crashed",
                           "root crashed",
                           "client crashed",
                           "client left for good",
                           "paused",
                           "partition",
                           "clock stepped",
                           "disk full",
                           "message lost",
                           "message doubled",
                           "message late",
                           "message overtaken",
                           "restarted",
                           "session lost",
                           "reply lost",
                           "older life refused",
                           "carried",
                           "held for the next round",
                           "claim granted",
                           "claim taken",
                           "fenced",
                           "held for a claim",
                           "hedged",
                           "second sum",
                           "second sum called for",
                           "second sum in",
                           "committed",
                           "root failed a round",
                           "told included",
                           "round given up for the next"}) {
    EXPECT_GT(seen[what], 0) << what;
  }
  RecordProperty("events", std::to_string(events));
  for (const auto& [what, count] : seen) {
    if (!what.empty()) RecordProperty(what, count);
  }
}

INSTANTIATE_TEST_SUITE_P(Part, FaultSimulation, ::testing::Range<uint64_t>(0, 8));

// ---- The invariants themselves

struct Mistake {
  Flaw flaw;
  const char* name;
  const char* says;
};

class FaultInvariants : public ::testing::TestWithParam<Mistake> {
 protected:
  // What is found wrong with this scenario, in order.
  static std::vector<std::string> Findings(uint64_t seed, Flaw flaw) {
    std::map<std::string, int> seen;
    ::testing::TestPartResultArray results;
    const auto failed = [&results] { return results.size() > 0; };
    {
      ::testing::ScopedFakeTestPartResultReporter reporter(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      Scenario scenario(seed, &seen, flaw, failed);
      RunSeed(seed, &scenario, failed);
    }
    std::vector<std::string> messages;
    for (int i = 0; i < results.size(); ++i) {
      messages.push_back(results.GetTestPartResult(i).message());
    }
    return messages;
  }
};

TEST_P(FaultInvariants, FindAMistakeAndPrintTheSeedThatRepeatsIt) {
  if (only_seed >= 0) GTEST_SKIP() << "--seed asks for one scenario only";
  int found = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::vector<std::string> findings = Findings(seed, GetParam().flaw);
    if (findings.empty()) continue;  // it never came to that
    ++found;
    EXPECT_THAT(findings, ::testing::Contains(::testing::HasSubstr(GetParam().says)));
    EXPECT_THAT(findings.back(), ::testing::HasSubstr(absl::StrCat("--seed=", seed)));
    EXPECT_EQ(Findings(seed, GetParam().flaw), findings) << "seed " << seed;
    EXPECT_THAT(Findings(seed, Flaw::kNone), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GE(found, 6);
}

INSTANTIATE_TEST_SUITE_P(
    Each, FaultInvariants,
    ::testing::Values(
        Mistake{Flaw::kAddsTwice, "AddsTwice", "the sum is not that of its contributors"},
        Mistake{Flaw::kDropsAName, "DropsAName", "the contributors' weights are not W"},
        Mistake{Flaw::kKeepsMemory, "KeepsMemory", "memory that nobody holds"},
        Mistake{Flaw::kSetsNoTimer, "SetsNoTimer", "a wait without a timer"},
        Mistake{Flaw::kCountsAgain, "CountsAgain", "is in a committed model twice"},
        Mistake{Flaw::kGoesBack, "GoesBack", "rounds go back"},
        Mistake{Flaw::kPublishesOther, "PublishesOther",
                "is not the sum over the contributors that it names"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FaultReplay, LeavesTheSameTraceForTheSameSeed) {
  if (only_seed >= 0) GTEST_SKIP() << "--seed asks for one scenario only";
  std::map<std::string, int> seen;
  std::set<uint64_t> traces;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const uint64_t trace = Scenario(seed, &seen).Run();
    EXPECT_EQ(Scenario(seed, &seen).Run(), trace) << "seed " << seed;
    traces.insert(trace);
  }
  EXPECT_EQ(traces.size(), 150u);  // and another for another
}

TEST(FaultReplay, RunsTheSeedThatIsAskedFor) {
  if (only_seed < 0) GTEST_SKIP() << "no --seed=N was given";
  std::map<std::string, int> seen;
  Scenario scenario(static_cast<uint64_t>(only_seed), &seen);
  const uint64_t trace = scenario.Run();
  std::printf("seed %lld: %llu events, trace %016llx\n", static_cast<long long>(only_seed),
              static_cast<unsigned long long>(scenario.events()),
              static_cast<unsigned long long>(trace));
  for (const auto& [what, count] : seen) {
    if (!what.empty()) std::printf("  %-28s %d\n", what.c_str(), count);
  }
}

}  // namespace
}  // namespace tributary::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      tributary::sim::only_seed = std::atoll(argv[i] + 7);
    }
    if (std::strcmp(argv[i], "--trace") == 0) tributary::sim::World::print_trace = true;
  }
  return RUN_ALL_TESTS();
}
