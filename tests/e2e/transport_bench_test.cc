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
#include "bench/transport_perftest.h"

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
  for (const std::string kind : {"tcp", "shm"}) {
    const auto value = [&](const std::string& name) {
      const auto it = figures.find("transport." + kind + "." + name);
      EXPECT_NE(it, figures.end()) << kind << " " << name;
      return it == figures.end() ? 0.0 : it->second["value"].get<double>();
    };
    for (const std::string ping : {"rtt_64_us", "rtt_1M_us"}) {
      EXPECT_GE(value(ping + ".p95"), value(ping)) << kind;
      EXPECT_GE(value(ping + ".p99"), value(ping + ".p95")) << kind;
    }
    // Cold, apart from the warm stream.
    for (const std::string size : {"", ".64"}) {
      for (const std::string cold : {"connect_ms", "first_chunk_ms"}) {
        EXPECT_GT(value(cold + size), 0) << kind;
        EXPECT_LT(value(cold + size), 60e3) << kind;
      }
      for (const std::string side : {"sender", "receiver"}) {
        EXPECT_GT(value(side + "_cpu_s_per_gb" + size), 0) << kind;
      }
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

// As perftest 4.5 prints its tables, and the next major version, with another heading.
TEST(TransportBench, PerftestsTablesAreRead) {
  const std::string bandwidth =
      " Link type       : Ethernet\n GID index       : 1\n"
      " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
      " 1048576    64               48.10              47.70              0.000048\n";
  const auto rate = bench::ParseWriteBandwidth(bandwidth, 1 << 20);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_DOUBLE_EQ(*rate, 47.7 * (1 << 20));
  EXPECT_THAT(std::string(bench::ParseWriteBandwidth(bandwidth, 64).status().message()),
              testing::HasSubstr("no row for 64 bytes"));
  const std::string latency =
      " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
      "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n"
      " 64      1000          1.10           9.50         1.25               1.30           0.10"
      "            2.00                    9.50\n";
  const auto ping = bench::ParseSendLatency(latency, 64);
  ASSERT_TRUE(ping.ok()) << ping.status();
  EXPECT_DOUBLE_EQ(ping->p50_us, 2.5);  // there and back
  EXPECT_DOUBLE_EQ(ping->p99_us, 4);
  EXPECT_FALSE(bench::ParseSendLatency("", 64).ok());
}

}  // namespace
}  // namespace tributary
