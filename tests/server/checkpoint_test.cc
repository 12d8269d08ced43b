// What was saved is found again, and damage is noticed; the newest good checkpoint is used.
#include <filesystem>
#include <fstream>

#include "tests/server/checkpoint_fixture.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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

}  // namespace
}  // namespace tributary::server
