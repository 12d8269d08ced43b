// How much memory RDMA has to lock, and what is said where that is not allowed.
#include "transport/rdma/memlock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/doctor/tree.h"

namespace tributary::transport::rdma {
namespace {

using doctor::RecordedTree;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

TEST(MemlockNeed, CountsTheArenaAndTheQueuesOfEachDevice) {
  EXPECT_EQ(MemlockNeedBytes({.arena_bytes = 256 * kMiB, .devices = 1}), 260 * kMiB);
  EXPECT_EQ(MemlockNeedBytes({.arena_bytes = 256 * kMiB, .devices = 2}), 520 * kMiB);
  EXPECT_EQ(MemlockNeedBytes({.arena_bytes = 256 * kMiB, .devices = 0}), 0);
}

TEST(MemlockNeed, SaturatesInsteadOfWrapping) {
  EXPECT_EQ(MemlockNeedBytes({.arena_bytes = UINT64_MAX - 1, .devices = 1}), UINT64_MAX);
  EXPECT_EQ(MemlockNeedBytes({.arena_bytes = uint64_t{1} << 62, .devices = 5}), UINT64_MAX);
}

// Each slot: the chunk, a page of header room, and up to a page to the next.
TEST(MemlockNeed, ALinkTakesItsSlotsBothWays) {
  EXPECT_EQ(LinkArenaBytes(8, kMiB), 16 * (kMiB + 8192));
  EXPECT_EQ(LinkArenaBytes(0, kMiB), 0);
}

struct Case {
  const char* name;
  MemlockLimit limit;
  uint64_t need;
  bool suffices;
};

class MemlockCases : public ::testing::TestWithParam<Case> {};

TEST_P(MemlockCases, AreJudged) {
  EXPECT_EQ(MemlockSuffices(GetParam().need, GetParam().limit), GetParam().suffices);
  EXPECT_EQ(CheckMemlock(GetParam().need, GetParam().limit).ok(), GetParam().suffices);
}

MemlockLimit Limit(uint64_t bytes, uint64_t pinned = 0, bool exempt = false) {
  return {.bytes = bytes, .hard_bytes = bytes, .pinned_bytes = pinned, .exempt = exempt};
}

INSTANTIATE_TEST_SUITE_P(
    Limits, MemlockCases,
    ::testing::Values(Case{"the_old_default", Limit(65536), 16 * kMiB, false},
                      Case{"exactly_enough", Limit(16 * kMiB), 16 * kMiB, true},
                      Case{"one_byte_short", Limit(16 * kMiB - 1), 16 * kMiB, false},
                      Case{"enough_but_taken", Limit(20 * kMiB, 8 * kMiB), 16 * kMiB, false},
                      Case{"more_taken_than_allowed", Limit(65536, kMiB), 1, false},
                      Case{"unlimited", Limit(UINT64_MAX), UINT64_MAX - 1, true},
                      Case{"capability", Limit(65536, 0, true), 16 * kMiB, true},
                      Case{"nothing_needed", Limit(0), 0, true}),
    [](const auto& info) { return info.param.name; });

TEST(CheckMemlock, TheRefusalHasBothNumbersAndALineForEachPlace) {
  const std::string said = Text(CheckMemlock(16 * kMiB + 1, Limit(65536)));
  EXPECT_THAT(said, HasSubstr("16777217 bytes"));
  EXPECT_THAT(said, HasSubstr("may lock 64 KiB"));
  EXPECT_THAT(said, HasSubstr("ulimit -l 16385"));  // KiB, rounded up
  EXPECT_THAT(said, HasSubstr("LimitMEMLOCK=infinity"));
  EXPECT_THAT(said, HasSubstr("--ulimit memlock=-1:-1"));
}

TEST(CheckMemlock, WhatIsPinnedAlreadyIsInTheLimitToSet) {
  const std::string said = Text(CheckMemlock(16 * kMiB, Limit(20 * kMiB, 8 * kMiB)));
  EXPECT_THAT(said, HasSubstr("of which 8 MiB are taken"));
  EXPECT_THAT(said, HasSubstr("ulimit -l 24576"));  // 16 and 8 MiB
}

TEST(ReadMemlockLimit, ACapabilityInAUserNamespaceOfItsOwnDoesNotCount) {
  // CapEff a80465fb has bit 14, CAP_IPC_LOCK; the map of the user namespace decides.
  RecordedTree tree("container");
  EXPECT_FALSE(ReadMemlockLimit(*tree.files())->exempt);
  tree.Write("/proc/self/status", "VmPin:\t    2048 kB\nCapEff:\t00000000a80465fb\n");
  EXPECT_EQ(ReadMemlockLimit(*tree.files())->pinned_bytes, 2 * kMiB);
  tree.Write("/proc/self/status", "VmPin:\t0 kB\nCapEff:\t0000000000004000\n");
  EXPECT_FALSE(ReadMemlockLimit(*tree.files())->exempt);
  tree.Write("/proc/self/uid_map", "         0          0 4294967295\n");
  EXPECT_TRUE(ReadMemlockLimit(*tree.files())->exempt);
}

TEST(ReadMemlockLimit, UnlimitedIsUnderstood) {
  const RecordedTree tree("plain");
  EXPECT_EQ(ReadMemlockLimit(*tree.files())->bytes, 8 * kMiB);
  tree.Write("/proc/self/limits",
             "Max locked memory         unlimited            unlimited            bytes\n");
  EXPECT_EQ(ReadMemlockLimit(*tree.files())->bytes, UINT64_MAX);
}

TEST(ReadMemlockLimit, AFileThatIsNotThereIsAnErrorWithItsPath) {
  const auto limit = ReadMemlockLimit(SysFiles("/nonexistent"));
  EXPECT_THAT(Text(limit.status()), HasSubstr("/proc/self/limits"));
}

// A child with 64 KiB, as old distributions give it, without the capability that lifts the limit.
TEST(RequireMemlock, With64KiBAProcessIsRefusedWithTheNumberAndTheMend) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit = {65536, 65536};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    syscall(SYS_capget, &header, data);
    data[0].effective &= ~(1U << CAP_IPC_LOCK);
    data[0].permitted &= ~(1U << CAP_IPC_LOCK);
    syscall(SYS_capset, &header, data);
    const std::string said = Text(RequireMemlock({.arena_bytes = 256 * kMiB, .devices = 1}));
    const ssize_t written = write(fds[1], said.data(), said.size());
    _exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(fds[1]);
  std::string said(4096, '\0');
  said.resize(static_cast<size_t>(std::max<ssize_t>(0, read(fds[0], said.data(), said.size()))));
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_THAT(said, HasSubstr("260 MiB (272629760 bytes)"));  // 256 + 4
  EXPECT_THAT(said, HasSubstr("this process may lock 64 KiB"));
  EXPECT_THAT(said, HasSubstr("ulimit -l 266240"));
}

}  // namespace
}  // namespace tributary::transport::rdma
