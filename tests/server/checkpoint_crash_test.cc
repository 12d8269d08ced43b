// Checkpoints survive full disks, missing rights and kill -9 at any moment; one process at a time.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/server/checkpoint_fixture.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- Crashes

TEST_F(CheckpointTest, WhatACrashLeftUnfinishedIsRemovedAtOpen) {
  {
    const auto store = Open();
    ASSERT_TRUE(Save(*store, 1).ok());
  }
  fs::create_directories(RunPath("00000002.unfinished"));
  std::ofstream(RunPath("00000002.unfinished/model.safetensors")) << "half";
  std::ofstream(RunPath("MANIFEST.unfinished")) << "half";
  const auto store = Open();
  EXPECT_THAT(Names(), ElementsAre("00000001", "LOCK", "MANIFEST"));
  EXPECT_EQ(LoadRound(*store), 1);
}

// A crash between the rename of the directory and the manifest leaves it whole, but not named.
TEST_F(CheckpointTest, ADirectoryThatNoManifestNamesIsNeitherLoadedNorInTheWay) {
  {
    const auto store = Open();
    ASSERT_TRUE(Save(*store, 1).ok());
    fs::copy(RunPath("MANIFEST"), root_ + "/manifest");
    ASSERT_TRUE(Save(*store, 2).ok());
  }
  fs::rename(root_ + "/manifest", RunPath("MANIFEST"));
  const auto store = Open();
  EXPECT_EQ(LoadRound(*store), 1);
  ASSERT_TRUE(Save(*store, 2, 5).ok());
  EXPECT_EQ(LoadRound(*store, 5), 2);
  EXPECT_THAT(warnings_, IsEmpty());
}

// The child reports each round it has saved; whenever it is killed, that round or a later one is
// there. It saves each round twice, so that a good checkpoint is also killed while it is being
// replaced.
TEST_F(CheckpointTest, KillNineAtAnyMomentLosesNothingThatWasReported) {
  PhiloxStream random(2);
  int64_t reported = 0;
  int killed_between = 0;
  for (int life = 0; life < 60; ++life) {
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      auto store = CheckpointStore::Open(Where(2));
      std::vector<std::string> warnings;
      uint64_t round = static_cast<uint64_t>(reported) + 1;
      if (!store.ok()) _exit(3);
      if (auto last = (*store)->Load(&warnings); last.ok()) round = last->state.round() + 1;
      for (;; ++round) {
        for (int twice = 0; twice < 2; ++twice) {
          if (!Save(**store, round).ok()) _exit(4);
          if (write(pipe_fds[1], &round, sizeof(round)) != sizeof(round)) _exit(5);
        }
      }
    }
    close(pipe_fds[1]);
    // Some reports are awaited, then a random moment within about one more save.
    const uint64_t awaited = random.NextBelow(4);
    uint64_t round = 0, seen = 0;
    while (seen < awaited && read(pipe_fds[0], &round, sizeof(round)) == sizeof(round)) ++seen;
    ASSERT_EQ(seen, awaited) << "the child ended by itself";
    usleep(static_cast<useconds_t>(random.NextBelow(6000)));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "child's exit code " << WEXITSTATUS(status);
    while (read(pipe_fds[0], &round, sizeof(round)) == sizeof(round)) ++seen;
    close(pipe_fds[0]);
    if (seen > 0) reported = static_cast<int64_t>(round);

    for (const std::string& name : fs::exists(RunPath()) ? Names() : std::vector<std::string>()) {
      if (name.ends_with(".unfinished")) ++killed_between;
    }
    const auto store = Open(2);
    if (reported == 0 && !store->Load(&warnings_).ok()) continue;  // killed before its first save
    ASSERT_GE(LoadRound(*store), reported) << "life " << life;
    EXPECT_THAT(warnings_, IsEmpty()) << "life " << life;
    EXPECT_LE(Names().size(), 4u) << "directories pile up: " << testing::PrintToString(Names());
  }
  EXPECT_GT(reported, 0);
  RecordProperty("killed_while_writing", killed_between);
}

TEST_F(CheckpointTest, SavingARoundAgainReplacesItWithoutAMomentInWhichItIsNotThere) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 1).ok());
  ASSERT_TRUE(Save(*store, 1, 9).ok());
  EXPECT_EQ(LoadRound(*store, 9), 1);
  ASSERT_TRUE(Save(*store, 2).ok());
  // The manifest cannot be written: as if the process ended just before it.
  fs::create_directories(RunPath("MANIFEST.unfinished/in-the-way"));
  EXPECT_FALSE(Save(*store, 2, 3).ok());
  EXPECT_EQ(LoadRound(*store), 2) << "the first save of round 2 is still whole";
}

TEST_F(CheckpointTest, AnOlderRoundThanTheNewestGoodOneIsRefused) {
  const auto store = Open();
  for (uint64_t round = 1; round <= 3; ++round) ASSERT_TRUE(Save(*store, round).ok());
  const absl::Status status = Save(*store, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("round 3"));
  EXPECT_EQ(LoadRound(*store), 3);
}

// ---- Full disks and missing rights

TEST_F(CheckpointTest, AFullDiskIsAnErrorAndThePreviousStays) {
  const int code = InChild([&] {
    auto store = Open();
    if (!Save(*store, 1).ok()) return 2;
    // No file may grow beyond 100 bytes: writes fail half-way, as on a full disk.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {100, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    const absl::Status status = Save(*store, 2);
    if (status.ok()) return 3;
    if (Text(status).find("00000002") == std::string::npos) return 4;
    if (Text(status).find("File too large") == std::string::npos) return 5;
    const rlimit lifted = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &lifted);
    if (LoadRound(*store) != 1) return 6;
    if (fs::exists(RunPath("00000002.unfinished"))) return 7;  // it would hold the space
    if (!Save(*store, 2).ok() || LoadRound(*store) != 2) return 8;
    return HasFailure() ? 9 : 0;
  });
  EXPECT_EQ(code, 0);
}

// It would fill the disk further with each round that fails.
TEST_F(CheckpointTest, WhereTheManifestCannotBeWrittenNothingIsLeftOfTheRound) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 1).ok());
  fs::create_directory(RunPath("MANIFEST.unfinished"));  // in the way
  EXPECT_FALSE(Save(*store, 2).ok());
  EXPECT_FALSE(fs::exists(RunPath("00000002")));
  EXPECT_EQ(LoadRound(*store), 1);
  EXPECT_TRUE(Save(*store, 2).ok());
  EXPECT_EQ(LoadRound(*store), 2);
}

TEST_F(CheckpointTest, AReadOnlyDirectoryIsAnErrorThatNamesItAndThePreviousStays) {
  const int code = InChild([&] {
    // Root may write anywhere: as "nobody" where the test has root's rights.
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 2;
    auto store = Open();
    if (store == nullptr || !Save(*store, 1).ok()) return 3;
    chmod(RunPath().c_str(), 0555);
    const absl::Status status = Save(*store, 2);
    if (LoadRound(*store) != 1) return 4;
    chmod(RunPath().c_str(), 0755);
    if (status.ok()) return 5;
    if (Text(status).find(RunPath()) == std::string::npos) return 6;
    if (Text(status).find("Permission denied") == std::string::npos) return 7;
    return Save(*store, 2).ok() && LoadRound(*store) == 2 && !HasFailure() ? 0 : 8;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(CheckpointTest, ADirectoryThatCannotBeMadeIsAnErrorThatNamesIt) {
  std::ofstream(root_ + "/file") << "x";
  const auto store = CheckpointStore::Open({.directory = root_ + "/file", .run = "run-1"});
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(Text(store.status()), HasSubstr(root_ + "/file"));
}

TEST_F(CheckpointTest, ARunNameThatLeavesTheDirectoryIsRefused) {
  for (const char* run : {"", ".", "..", "a/b", "../x"}) {
    const auto store = CheckpointStore::Open({.directory = root_ + "/checkpoints", .run = run});
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << run;
  }
  EXPECT_FALSE(fs::exists(root_ + "/x"));
}

TEST_F(CheckpointTest, AStateOfAnotherModelIsRefusedBeforeAnythingIsWritten) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 1).ok());
  v1::CheckpointState state;
  state.set_run("run-1");
  state.set_round(2);
  EXPECT_EQ(store->Save(state, *layout_, ModelOf(*layout_, 2)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadRound(*store), 1);
  EXPECT_THAT(Names(), ElementsAre("00000001", "LOCK", "MANIFEST"));
}

// ---- One process at a time

TEST_F(CheckpointTest, ASecondProcessIsRefusedByThePidOfTheFirst) {
  const auto store = Open();
  const pid_t holder = getpid();
  const int code = InChild([&] {
    const auto second = CheckpointStore::Open(Where());
    if (second.ok()) return 2;
    if (second.status().code() != absl::StatusCode::kFailedPrecondition) return 3;
    return Text(second.status()).find(absl::StrCat(" ", holder, ";")) == std::string::npos ? 4 : 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(CheckpointStore::Open(Where()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointTest, TheLockEndsWithTheStoreAndWithAKilledProcess) {
  { const auto store = Open(); }
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    auto store = CheckpointStore::Open(Where());
    const char byte = store.ok() ? 'y' : 'n';
    if (write(pipe_fds[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(pipe_fds[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(CheckpointStore::Open(Where()).status().code(), absl::StatusCode::kFailedPrecondition);
  kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(CheckpointStore::Open(Where()).ok());
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST_F(CheckpointTest, AnotherRunInTheSameDirectoryIsNotLocked) {
  const auto store = Open();
  CheckpointStore::Options other = Where();
  other.run = "run-2";
  EXPECT_TRUE(CheckpointStore::Open(other).ok());
}

}  // namespace
}  // namespace tributary::server
