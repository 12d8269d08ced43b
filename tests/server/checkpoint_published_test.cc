// Checkpoints of two models: the exact one and the published one come back together or not at all.
#include "tests/server/checkpoint_fixture.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointPublishedTest : public CheckpointTest {
 protected:
  absl::Status SaveBoth(CheckpointStore& store, uint64_t round) const {
    const std::vector<uint8_t> model = ModelOf(*layout_, round);
    const std::vector<uint8_t> published = ModelOf(*layout_, round, 77);
    v1::CheckpointState state;
    state.set_run("run-1");
    state.set_round(round);
    state.set_version(round);
    *state.mutable_layout() = layout_->ToProto();
    state.set_model_sha256(Sha256Of(model));
    state.set_published_sha256(Sha256Of(published));
    return store.Save(state, *layout_, model, published);
  }
};

TEST_F(CheckpointPublishedTest, BothModelsComeBack) {
  ASSERT_TRUE(SaveBoth(*Open(), 4).ok());
  const auto checkpoint = Open()->Load(&warnings_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->model.bytes, ModelOf(*layout_, 4));
  EXPECT_EQ(checkpoint->published, ModelOf(*layout_, 4, 77));
  EXPECT_THAT(warnings_, ElementsAre());
}

TEST_F(CheckpointPublishedTest, WhereTheModelWasPublishedAsItIsThereIsNoSecondFile) {
  auto store = Open();
  ASSERT_TRUE(Save(*store, 4).ok());
  const auto checkpoint = store->Load(&warnings_);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_TRUE(checkpoint->published.empty());
  EXPECT_FALSE(std::filesystem::exists(RunPath("00000004/published.safetensors")));
}

TEST_F(CheckpointPublishedTest, ADamagedPublishedModelPassesTheCheckpointOver) {
  auto store = Open();
  ASSERT_TRUE(SaveBoth(*store, 4).ok());
  ASSERT_TRUE(SaveBoth(*store, 5).ok());
  FlipByte(RunPath("00000005/published.safetensors"), -3);
  const auto checkpoint = store->Load(&warnings_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->state.round(), 4u);
  EXPECT_EQ(checkpoint->published, ModelOf(*layout_, 4, 77));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("published.safetensors is damaged")));
}

TEST_F(CheckpointPublishedTest, AMissingPublishedModelPassesItOverEvenWhereTheManifestIsLost) {
  auto store = Open();
  ASSERT_TRUE(SaveBoth(*store, 4).ok());
  ASSERT_TRUE(SaveBoth(*store, 5).ok());
  std::filesystem::remove(RunPath("MANIFEST"));
  std::filesystem::remove(RunPath("00000005/published.safetensors"));
  const auto checkpoint = store->Load(&warnings_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->state.round(), 4u);
}

TEST_F(CheckpointPublishedTest, OneOfAnotherRoundIsNotTaken) {
  auto store = Open();
  ASSERT_TRUE(SaveBoth(*store, 4).ok());
  ASSERT_TRUE(SaveBoth(*store, 5).ok());
  std::filesystem::remove(RunPath("MANIFEST"));  // so that only state.pb tells
  std::filesystem::copy_file(RunPath("00000004/published.safetensors"),
                             RunPath("00000005/published.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  const auto checkpoint = store->Load(&warnings_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->state.round(), 4u);
}

}  // namespace
}  // namespace tributary::server
