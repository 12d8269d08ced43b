// What the checkpoint tests share: a store in a folder of its own, saves and damage.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint.h"

namespace tributary::server {

// A small model whose every byte tells the round (and the attempt) that wrote it.
inline std::vector<uint8_t> ModelOf(const aggregation::ModelLayout& layout, uint64_t round,
                                    uint64_t attempt = 0) {
  std::vector<uint8_t> bytes(layout.model_bytes());
  PhiloxStream random(round, attempt);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next32());
  return bytes;
}

inline std::shared_ptr<const aggregation::ModelLayout> CheckpointLayout() {
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
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    // Some tests lower their rights in a child, which must still reach the directory.
    std::filesystem::permissions(root_, std::filesystem::perms::all);
  }
  ~CheckpointTest() override { std::filesystem::remove_all(root_); }

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
    for (const auto& entry : std::filesystem::directory_iterator(RunPath())) {
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
  const std::shared_ptr<const aggregation::ModelLayout> layout_ = CheckpointLayout();
  std::vector<std::string> warnings_;
};

}  // namespace tributary::server
