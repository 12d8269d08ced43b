// The two forms of a report, the exit code, and the files of /sys underneath.
#include "doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sys_files.h"
#include "doctor/environment.h"
#include "tests/doctor/tree.h"

namespace tributary::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Report Example() {
  Report report("machine");
  report.Ok("files", "enough");
  report.Skip("rdma", "none");
  report.Add({"ports.node", Verdict::kWarn, "odd \xff byte", "do this"});
  return report;
}

TEST(Report, OnlyAFailureFails) {
  Report report = Example();
  EXPECT_EQ(report.exit_code(), 0);
  report.Add({"x", Verdict::kFail, "broken", "mend it"});
  EXPECT_EQ(report.exit_code(), 1);
}

TEST(Report, TextAlignsAndPutsTheMendBelow) {
  EXPECT_EQ(Example().ToText(),
            "machine\n"
            "ok       files       enough\n"
            "skipped  rdma        none\n"
            "warn     ports.node  odd \xff byte\n"
            "                     mend: do this\n"
            "1 ok, 1 to look at, 0 failed, 1 skipped\n");
}

TEST(Report, JsonIsWholeAndValidWhateverTheMachineSaid) {
  const auto json = nlohmann::json::parse(Example().ToJson());
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_EQ(json["counts"]["warn"], 1);
  ASSERT_EQ(json["checks"].size(), 3);
  EXPECT_EQ(json["checks"][0]["verdict"], "ok");
  EXPECT_FALSE(json["checks"][0].contains("mend"));
  EXPECT_EQ(json["checks"][2]["mend"], "do this");
}

TEST(SysFiles, TheErrorOfAnUnreadableFileHasItsCodeAndPath) {
  const RecordedTree tree("container");
  const auto read = tree.files()->Read("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0");
  EXPECT_TRUE(absl::IsInvalidArgument(read.status()));
  EXPECT_TRUE(absl::IsNotFound(tree.files()->Read("/sys/nothing").status()));
}

TEST(SysFiles, ResolvesWithinThePrefixAndSortsNumbersAsNumbers) {
  const RecordedTree tree("dual_stack");
  EXPECT_EQ(*tree.files()->Resolve("/sys/class/infiniband/mlx5_0/device"),
            "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0");
  tree.Write("/x/10", "");
  tree.Write("/x/9", "");
  tree.Write("/x/1", "");
  EXPECT_THAT(tree.files()->List("/x"), ElementsAre("1", "9", "10"));
}

TEST(SysFiles, NumbersAreDecimalOrHexadecimalOrNothing) {
  const RecordedTree tree("plain");
  tree.Write("/n/a", "1500\n");
  tree.Write("/n/b", "0x15b3\n");
  tree.Write("/n/c", "max\n");
  EXPECT_EQ(tree.files()->ReadNumber("/n/a"), 1500);
  EXPECT_EQ(tree.files()->ReadNumber("/n/b"), 0x15b3);
  EXPECT_EQ(tree.files()->ReadNumber("/n/c"), std::nullopt);
  EXPECT_EQ(tree.files()->ReadNumber("/n/d"), std::nullopt);
}

TEST(BytesText, IsReadable) {
  EXPECT_EQ(BytesText(65536), "64 KiB");
  EXPECT_EQ(BytesText(17104896), "16.3 MiB");
  EXPECT_EQ(BytesText(UINT64_MAX), "unlimited");
  EXPECT_EQ(BytesText(0), "0 B");
}

// ---- This machine, through the real functions.

TEST(RealEnvironment, LoopbackIsThereAndAListeningPortIsInUse) {
  const Environment env = RealEnvironment();
  bool loopback = false;
  for (const InterfaceAddress& i : env.interfaces()) loopback |= i.address == "127.0.0.1";
  EXPECT_TRUE(loopback);
  EXPECT_TRUE(env.try_listen("127.0.0.1:0").ok());
  EXPECT_FALSE(env.try_listen("192.0.2.254:0").ok());  // not an address of this machine (RFC 5737)
  EXPECT_TRUE(env.try_memfd(1 << 20).ok());
  EXPECT_EQ(env.resolve("127.0.0.1")->front(), "127.0.0.1");
}

TEST(RealEnvironment, ADatagramToAClosedLoopbackPortIsRefusedAndTheRouteIsKnown) {
  const Environment env = RealEnvironment();
  const auto route = env.route("127.0.0.1");
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->source, "127.0.0.1");
  EXPECT_GE(route->mtu, 1500);
  const auto answer = env.udp("127.0.0.1", absl::Seconds(5));
  ASSERT_TRUE(answer.ok()) << answer.status();
  // Nobody listens on UDP 4791 of loopback, RDMA devices neither.
  EXPECT_EQ(*answer, UdpAnswer::kRefused);
}

}  // namespace
}  // namespace tributary::doctor
