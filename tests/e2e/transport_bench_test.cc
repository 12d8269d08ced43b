// `tributary bench transport` gives the figures that it promises; how high they are is not a test's
// business.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/process.h"

namespace tributary {
namespace {

int RunBench(const std::vector<std::string>& more) {
  std::vector<std::string> argv = {SelfDirectory() + "/tributary", "bench", "transport"};
  argv.insert(argv.end(), more.begin(), more.end());
  auto process = Process::Start(argv, {.log_file = "/dev/null"});
  EXPECT_TRUE(process.ok()) << process.status();
  const auto code = process->Wait(absl::Seconds(120));
  EXPECT_TRUE(code.ok()) << code.status();
  return code.value_or(-1);
}

TEST(TransportBench, FiguresHaveValueCeilingAndTheirRatio) {
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("tributary-transport-bench-" + std::to_string(getpid()) + ".json"))
                               .string();
  ASSERT_EQ(RunBench({"--sizes", "64,1M", "--lanes", "2,1", "--bytes", "32M", "--repetitions", "1",
                      "--json", file}),
            0);
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  std::filesystem::remove(file);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_FALSE(json["environment"]["cpu"].get<std::string>().empty());
  std::map<std::string, nlohmann::json> figures;
  for (const auto& figure : json["figures"]) figures[figure["name"]] = figure;
  for (const std::string kind : {"tcp", "shm"}) {
    for (const std::string name : {"stream", "stream_fold", "rtt_64_us", "cpu_s_per_gb"}) {
      const auto it = figures.find("transport." + kind + "." + name);
      ASSERT_NE(it, figures.end()) << kind << " " << name;
      const auto& figure = it->second;
      EXPECT_GT(figure["value"].get<double>(), 0) << it->first;
      EXPECT_GT(figure["ceiling"].get<double>(), 0) << it->first;
      EXPECT_DOUBLE_EQ(figure["ratio"].get<double>(),
                       figure["value"].get<double>() / figure["ceiling"].get<double>());
    }
  }
  EXPECT_EQ(figures["transport.tcp.stream"]["unit"], "GB/s");
  EXPECT_EQ(figures["transport.tcp.rtt_64_us"]["unit"], "us");
  EXPECT_EQ(figures.count("transport.tcp.stream.lanes_1"), 1u);
  EXPECT_EQ(figures.count("transport.shm.stream.lanes_1"), 0u);  // shared memory has no lanes
  EXPECT_EQ(figures.count("transport.tcp.retransmits"), 1u);
}

TEST(TransportBench, SizesThatAreNoneAreBadUsage) {
  for (const std::string size : {"0", "1T", "x", "64K5", "512M"}) {
    EXPECT_EQ(RunBench({"--sizes", size, "--bytes", "1M"}), 2) << size;
  }
}

}  // namespace
}  // namespace tributary
