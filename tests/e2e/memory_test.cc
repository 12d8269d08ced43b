// An aggregator's memory is bounded by its config, not by how many clients wait to send to it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/process.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

double FigureOf(const nlohmann::json& report, const std::string& name) {
  for (const auto& figure : report["figures"]) {
    if (figure["name"] == name) return figure["value"];
  }
  ADD_FAILURE() << "no figure " << name;
  return 0;
}

// 100 clients with 8 MB each, a budget of 16 MiB: were what waits taken in, it would be 800 MB.
TEST(Memory, OfAnAggregatorHoldsWhileAHundredUploadsWait) {
  const fs::path dir = fs::temp_directory_path() / ("tributary-memory-" + std::to_string(getpid()));
  fs::create_directories(dir);
  const std::string out = (dir / "figures.json").string();
  auto bench =
      Process::Start({SelfDirectory() + "/tributary", "bench", "round", "--clients", "100",
                      "--model", "synthetic:2000000", "--codec", "fp32", "--inflight-mb", "16",
                      "--repetitions", "1", "--no-memory", "--out", dir.string(), "--json", out},
                     {.log_file = (dir / "log").string()});
  ASSERT_TRUE(bench.ok()) << bench.status();
  const auto code = bench->Wait(absl::Seconds(120));
  ASSERT_TRUE(code.ok() && *code == 0) << "see " << dir;
  const auto report = nlohmann::json::parse(std::ifstream(out));
  // 8 B x parameters x 2 + the budget + 150 MB.
  EXPECT_LT(FigureOf(report, "round.memory.aggregator_rss_mb"), 32 + 16.8 + 150);
  EXPECT_EQ(FigureOf(report, "round.memory.limit_mb"), 32 + 16 * 1.048576 + 150);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace tributary
