// Checkpoints survive damage, full disks and kill -9; what was reported as saved is found again.
#include "server/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

// A small model whose every byte tells the round (and the attempt) that wrote it.
std::vector<uint8_t> ModelOf(const aggregation::ModelLayout& layout, uint64_t round,
                             uint64_t attempt = 0) {
  std::vector<uint8_t> bytes(layout.model_bytes());
  PhiloxStream random(round, attempt);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next32());
  return bytes;
}

std::shared_ptr<const aggregation::ModelLayout> Layout() {
  auto layout = aggregation::ModelLayout::Create(
      {{"fc.weight", {3, 5}, aggregation::DType::kF32, aggregation::Policy::kMean},
       {"count", {}, aggregation::DType::kI64, aggregation::Policy::kSum}});
  return *layout;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : root_(absl::StrCat(testing::TempDir(), "/checkpoint-", getpid(), "-",
                           testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    // Some tests lower their rights in a child, which must still reach the directory.
    fs::permissions(root_, fs::perms::all);
  }
  ~CheckpointTest() override { fs::remove_all(root_); }

  CheckpointStore::Options Where(int keep = 3) const {
    return {.directory = root_ + "/checkpoints", .run = "run-1", .keep = keep};
  }
  std::unique_ptr<CheckpointStore> Open(int keep = 3) const {
    auto store = CheckpointStore::Open(Where(keep));
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  absl::Status Save(CheckpointStore& store, uint64_t round, uint64_t attempt = 0) const {
    const std::vector<uint8_t> model = ModelOf(*layout_, round, attempt);
    v1::CheckpointState state;
    state.set_run("run-1");
    state.set_round(round);
    state.set_version(round);
    state.set_seed(42);
    *state.mutable_layout() = layout_->ToProto();
    state.set_model_sha256(Sha256Of(model));
    state.add_children("rack-1");
    state.add_contributors(absl::StrCat("client-", attempt));
    (*state.mutable_optimizer())["momentum"] = std::string("\0\xFF\x01", 3);
    return store.Save(state, *layout_, model);
  }
  // The round that Load finds, whole and as it was saved; -1 and a failure where there is none.
  int64_t LoadRound(CheckpointStore& store, uint64_t attempt = 0) {
    warnings_.clear();
    const auto checkpoint = store.Load(&warnings_);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return -1;
    EXPECT_EQ(checkpoint->model.bytes, ModelOf(*layout_, checkpoint->state.round(), attempt));
    EXPECT_EQ(checkpoint->model.layout->hash(), layout_->hash()) << "policies come back too";
    return static_cast<int64_t>(checkpoint->state.round());
  }
  std::string RunPath(const std::string& name = "") const {
    return root_ + "/checkpoints/run-1" + (name.empty() ? "" : "/" + name);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(RunPath())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void FlipByte(const std::string& path, int64_t at) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }
  // Runs `work` in a forked process; its exit code, or -signal.
  template <typename Work>
  int InChild(const Work& work) const {
    const pid_t pid = fork();
    if (pid == 0) _exit(work());
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const std::string root_;
  const std::shared_ptr<const aggregation::ModelLayout> layout_ = Layout();
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointTest, WhatWasSavedIsLoadedByTheNextProcessWithItsState) {
  {
    const auto store = Open();
    EXPECT_EQ(store->path(), RunPath());
    ASSERT_TRUE(Save(*store, 1).ok());
    ASSERT_TRUE(Save(*store, 2).ok());
  }
  const auto store = Open();
  const auto checkpoint = store->Load(&warnings_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(checkpoint->state.round(), 2u);
  EXPECT_EQ(checkpoint->state.seed(), 42u);
  EXPECT_THAT(checkpoint->state.children(), ElementsAre("rack-1"));
  EXPECT_EQ(checkpoint->state.optimizer().at("momentum"), std::string("\0\xFF\x01", 3));
  EXPECT_EQ(LoadRound(*store), 2);
}

TEST_F(CheckpointTest, AnEmptyDirectoryIsANewRun) {
  const auto store = Open();
  EXPECT_EQ(store->Load(&warnings_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointTest, TheInitialModelOfRoundZeroIsACheckpointToo) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 0).ok());
  EXPECT_EQ(LoadRound(*store), 0);
}

TEST_F(CheckpointTest, OnlyTheNewestAreKept) {
  const auto store = Open(2);
  for (uint64_t round = 1; round <= 5; ++round) ASSERT_TRUE(Save(*store, round).ok());
  EXPECT_THAT(Names(), ElementsAre("00000004", "00000005", "LOCK", "MANIFEST"));
  EXPECT_EQ(LoadRound(*store), 5);
}

TEST_F(CheckpointTest, KeepOneAlwaysHasOne) {
  const auto store = Open(1);
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(Save(*store, round).ok());
    EXPECT_EQ(LoadRound(*store), static_cast<int64_t>(round));
  }
  EXPECT_THAT(Names(), ElementsAre("00000003", "LOCK", "MANIFEST"));
}

TEST_F(CheckpointTest, RoundsBeyondEightDigitsAreNewerThanThoseBefore) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 99'999'999).ok());
  ASSERT_TRUE(Save(*store, 100'000'000).ok());
  EXPECT_EQ(LoadRound(*store), 100'000'000);
  fs::remove(RunPath("MANIFEST"));
  EXPECT_EQ(LoadRound(*store), 100'000'000);
}

// ---- Damage

// Each byte of both files, one at a time: the manifest's hashes leave no byte uncovered.
TEST_F(CheckpointTest, AnyFlippedByteOfTheNewestMeansThePreviousWithAWarning) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 1).ok());
  ASSERT_TRUE(Save(*store, 2).ok());
  for (const char* name : {"00000002/model.safetensors", "00000002/state.pb"}) {
    const int64_t size = static_cast<int64_t>(fs::file_size(RunPath(name)));
    for (int64_t at = 0; at < size; ++at) {
      FlipByte(RunPath(name), at);
      ASSERT_EQ(LoadRound(*store), 1) << name << " byte " << at;
      ASSERT_EQ(warnings_.size(), 1u);
      EXPECT_THAT(warnings_[0], HasSubstr(name));
      FlipByte(RunPath(name), at);
    }
  }
  EXPECT_EQ(LoadRound(*store), 2) << "all flipped back";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointTest, TruncatedOrMissingFilesMeanThePreviousWithAWarning) {
  const auto store = Open();
  for (uint64_t round = 1; round <= 3; ++round) ASSERT_TRUE(Save(*store, round).ok());
  fs::resize_file(RunPath("00000003/state.pb"), fs::file_size(RunPath("00000003/state.pb")) / 2);
  EXPECT_EQ(LoadRound(*store), 2);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("00000003/state.pb")));
  fs::remove(RunPath("00000002/model.safetensors"));
  EXPECT_EQ(LoadRound(*store), 1);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("round 3"), HasSubstr("round 2")));
}

TEST_F(CheckpointTest, WhereNoneIsGoodTheRunDoesNotSilentlyStartAfresh) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 1).ok());
  FlipByte(RunPath("00000001/model.safetensors"), -1);
  const auto checkpoint = store->Load(&warnings_);
  EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(checkpoint.status()), HasSubstr("start afresh"));
  EXPECT_THAT(Text(checkpoint.status()), HasSubstr(RunPath()));
}

TEST_F(CheckpointTest, AfterADamagedRoundItIsDoneAgainAndSavedAnew) {
  {
    const auto store = Open();
    for (uint64_t round = 1; round <= 3; ++round) ASSERT_TRUE(Save(*store, round).ok());
  }
  FlipByte(RunPath("00000003/model.safetensors"), -1);
  FlipByte(RunPath("00000002/state.pb"), 0);
  const auto store = Open();
  ASSERT_EQ(LoadRound(*store), 1);
  ASSERT_TRUE(Save(*store, 2, 7).ok());
  EXPECT_EQ(LoadRound(*store, 7), 2);
  EXPECT_THAT(warnings_, IsEmpty()) << "the abandoned round 3 is no longer offered";
  ASSERT_TRUE(Save(*store, 3, 7).ok());
  EXPECT_EQ(LoadRound(*store, 7), 3);
}

TEST_F(CheckpointTest, WithoutManifestTheDirectoriesOwnHashesDecide) {
  {
    const auto store = Open();
    for (uint64_t round = 1; round <= 3; ++round) ASSERT_TRUE(Save(*store, round).ok());
  }
  fs::remove(RunPath("MANIFEST"));
  FlipByte(RunPath("00000003/model.safetensors"), -1);
  const auto store = Open();
  EXPECT_EQ(LoadRound(*store), 2);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("MANIFEST"), HasSubstr("round 3")));
}

TEST_F(CheckpointTest, AfterALostManifestOldCheckpointsAreStillKeptAndCleared) {
  {
    const auto store = Open();
    for (uint64_t round = 1; round <= 3; ++round) ASSERT_TRUE(Save(*store, round).ok());
  }
  fs::remove(RunPath("MANIFEST"));
  const auto store = Open();
  ASSERT_EQ(LoadRound(*store), 3);
  ASSERT_TRUE(Save(*store, 4).ok());
  EXPECT_THAT(Names(), ElementsAre("00000002", "00000003", "00000004", "LOCK", "MANIFEST"));
  FlipByte(RunPath("00000004/model.safetensors"), -1);
  EXPECT_EQ(LoadRound(*store), 3) << "the older ones are in the new manifest";
}

TEST_F(CheckpointTest, ADamagedManifestIsLikeAMissingOne) {
  const auto store = Open();
  ASSERT_TRUE(Save(*store, 1).ok());
  for (const char* damage : {"", "\xFF\xFF\xFF\xFF", "not a manifest"}) {
    std::ofstream(RunPath("MANIFEST"), std::ios::binary | std::ios::trunc) << damage;
    EXPECT_EQ(LoadRound(*store), 1) << damage;
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("MANIFEST"))) << damage;
  }
}

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
    EXPECT_LE(Names().size(), 6u) << "directories pile up";
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
