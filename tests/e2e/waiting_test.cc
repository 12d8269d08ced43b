// A run that never gets enough clients: it says who is awaited, and ends by itself.
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

// The times of the log's lines that hold `text`.
std::vector<absl::Time> TimesOf(const std::string& log, const std::string& text) {
  std::vector<absl::Time> times;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    absl::Time time;
    std::string error;
    if (line.find(text) == absl::string_view::npos) continue;
    EXPECT_TRUE(absl::ParseTime("%Y-%m-%d %H:%M:%E3S", line.substr(0, 23), &time, &error)) << error;
    times.push_back(time);
  }
  return times;
}

TEST(EndToEnd, TooFewClientsAreNamedEveryTenSecondsAndEndTheRunAtTheStartupLimit) {
  Cluster run;
  const int root = run.Port();
  run.Write("global", absl::StrFormat("[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n"
                                      "[run]\nname = \"e2e\"\nrounds = 1\nmodel = \"logreg\"\n"
                                      "startup_limit_s = 25\n[cohort]\nminimum = 3\n[checkpoint]\n"
                                      "directory = \"%s/checkpoints\"\n",
                                      root, run.dir()));
  run.Serve("global");
  run.Client("early", {root});
  EXPECT_EQ(run.ExitCode("global"), 1);
  const std::string log = run.Log("global");
  const auto times =
      TimesOf(log, "info  round 1 awaits clients: 1 of 3 are here (through early), 2 missing");
  ASSERT_EQ(times.size(), 2u) << log;  // after 10 s and after 20 s; then the limit
  EXPECT_NEAR(absl::ToDoubleSeconds(times[1] - times[0]), 10, 1);
  EXPECT_NE(log.find("given up after [run] startup_limit_s = 25"), std::string::npos) << log;
}

}  // namespace
}  // namespace tributary
