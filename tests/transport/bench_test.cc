// The transport bench gives the figures that it promises; how high they are is not a test's
// business.
#include <gtest/gtest.h>

#include "transport/tcp_bench.h"

namespace tributary::transport {
namespace {

TEST(TcpBench, RowHasValueCeilingAndTheirRatio) {
  TcpBenchOptions options;
  options.bytes = 64 << 20;
  options.repetitions = 1;
  auto rows = BenchTcpStream(options);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].name, "transport.tcp.stream");
  EXPECT_EQ((*rows)[0].unit, "B/s");
  EXPECT_EQ((*rows)[1].name, "transport.tcp.cpu_s_per_gb");
  EXPECT_EQ((*rows)[1].unit, "s/GB");
  for (const BenchRow& row : *rows) {
    EXPECT_GT(row.value, 0);
    EXPECT_GT(row.ceiling, 0);
    EXPECT_DOUBLE_EQ(row.ratio, row.value / row.ceiling);
  }
}

TEST(TcpBench, ImpossibleOptionsAreRefused) {
  TcpBenchOptions options;
  options.bytes = 1;
  EXPECT_EQ(BenchTcpStream(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::transport
