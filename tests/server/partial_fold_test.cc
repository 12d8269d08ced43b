// The parts of taking a partial sum in: the digest, the fold that can be undone.
#include "server/partial_fold.h"

#include <gtest/gtest.h>

#include <future>

#include "absl/strings/escaping.h"
#include "tests/aggregation/testing.h"

namespace tributary::server {
namespace {

ByteSpan Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// By Python: hashlib.sha256(struct.pack("<II", 9, 0xE3069283)), 0xE3069283 being CRC32C's check
// value for "123456789"; and with struct.pack("<II", 0, 0) after it.
TEST(PartialDigestTest, IsSha256OverLengthAndCrc32cOfEachChunk) {
  PartialDigest digest;
  digest.Add(Bytes("123456789"));
  EXPECT_EQ(absl::BytesToHexString(digest.Value()),
            "61dcc456becf6f26fc6d09a71dfbdc2b4c7fccc671344776d018a60c296285b9");
  digest.Add({});
  EXPECT_EQ(absl::BytesToHexString(digest.Value()),
            "c6b1b863bbe5b307091a0b788489930ce3006c05dc1882dbb7c46504470390e8");
  EXPECT_EQ(digest.chunks(), 2u);
}

class PartialFoldTest : public ::testing::Test {
 protected:
  PartialFoldTest() {
    pool_.Target(sum_.get());
    auto deltas = aggregation::testing::RandomDeltas(*layout_, 5);
    const auto child = aggregation::testing::MakeAccumulator(layout_, aggregation::Grid());
    aggregation::testing::FoldAll(
        child.get(), {aggregation::testing::Assemble(
                         layout_, aggregation::Grid(),
                         aggregation::testing::Record(*layout_, {"fp32"}, "c", 9, deltas))});
    packed_ = aggregation::testing::PackAll(*child, "c");
    expected_ = aggregation::testing::DigestOf(*child);
    header_.set_id("rack");
    header_.set_packed_bytes(child->PackedBytes());
    header_.set_chunks(child->chunk_count());
    fold_ = std::make_unique<PartialFold>(header_, sum_.get(), &pool_);
  }
  std::string Now() {
    pool_.Wait();
    return aggregation::testing::DigestOf(*sum_);
  }
  void TakeAll() {
    for (uint64_t i = fold_->chunks(); i < packed_->chunks.size(); ++i) {
      const absl::Status taken = fold_->Take(i, packed_->chunks[i]);
      ASSERT_TRUE(taken.ok()) << taken;
    }
  }
  void Undo() {
    std::promise<void> done;
    fold_->Undo([&] { done.set_value(); });
    done.get_future().wait();
  }

  const aggregation::testing::LayoutPtr layout_ = aggregation::testing::AdditiveLayout();
  const std::unique_ptr<aggregation::ExactAccumulator> sum_ =
      aggregation::testing::MakeAccumulator(layout_, aggregation::Grid());
  const std::string zero_ = aggregation::testing::DigestOf(*sum_);
  aggregation::FoldPool pool_{{2, 4}};
  v1::PartialSumHeader header_;
  std::shared_ptr<const aggregation::PackedPartial> packed_;
  std::string expected_;
  std::unique_ptr<PartialFold> fold_;
};

TEST_F(PartialFoldTest, FoldsEachChunkAsItIsTakenAndSettlesToTheWholeSum) {
  ASSERT_GT(packed_->chunks.size(), 1u);
  ASSERT_TRUE(fold_->Take(0, packed_->chunks[0]).ok());
  const std::string first = Now();
  EXPECT_NE(first, zero_);
  TakeAll();
  PartialDigest digest;
  for (const auto& chunk : packed_->chunks) digest.Add(chunk);
  EXPECT_TRUE(fold_->Finish(digest.Value()).ok());
  std::promise<void> done;
  fold_->Settle([&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_EQ(Now(), expected_);
}

TEST_F(PartialFoldTest, UndoLeavesWhatWasThereBefore) {
  TakeAll();
  Undo();
  EXPECT_EQ(Now(), zero_);
  EXPECT_EQ(fold_->chunks(), 0u);
}

TEST_F(PartialFoldTest, TakesNothingOutOfOrderNorTwice) {
  EXPECT_EQ(fold_->Take(1, packed_->chunks[1]).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(fold_->Take(0, packed_->chunks[0]).ok());
  const std::string once = Now();
  EXPECT_EQ(fold_->Take(0, packed_->chunks[0]).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Now(), once);
}

TEST_F(PartialFoldTest, TakesNothingWhileSealedAndGoesOnAfterwards) {
  ASSERT_TRUE(fold_->Take(0, packed_->chunks[0]).ok());
  fold_->Seal();
  EXPECT_EQ(fold_->Take(1, packed_->chunks[1]).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(fold_->Finish("").code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(fold_->chunks(), 1u);
  fold_->Resume();
  TakeAll();
  EXPECT_EQ(Now(), expected_);
}

TEST_F(PartialFoldTest, FinishesNeitherEarlyNorWithAnotherDigest) {
  ASSERT_TRUE(fold_->Take(0, packed_->chunks[0]).ok());
  EXPECT_EQ(fold_->Finish(fold_->digest()).code(), absl::StatusCode::kInvalidArgument);
  TakeAll();
  std::string digest = fold_->digest();
  digest[31] ^= 1;
  EXPECT_EQ(fold_->Finish(digest).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(fold_->Finish(fold_->digest()).ok());
}

TEST_F(PartialFoldTest, StartingOverForgetsWhatWasThere) {
  ASSERT_TRUE(fold_->Take(0, packed_->chunks[0]).ok());
  fold_->StartOver();
  EXPECT_EQ(Now(), zero_);
  TakeAll();
  EXPECT_EQ(Now(), expected_);
  EXPECT_EQ(fold_->taken_bytes(), header_.packed_bytes() + packed_->chunks[0].size());
}

TEST_F(PartialFoldTest, IsOfTheSameSumWhateverTheLifeOfTheChild) {
  v1::PartialSumHeader other = header_;
  other.set_epoch(99);
  other.set_attempt(4);
  other.add_metrics()->set_name("loss");
  EXPECT_TRUE(fold_->SameSum(other));
  other.set_weight(10);
  EXPECT_FALSE(fold_->SameSum(other));
  other = header_;
  other.add_contributors("c");
  EXPECT_FALSE(fold_->SameSum(other));
  other = header_;
  other.set_packed_bytes(header_.packed_bytes() + 1);
  EXPECT_FALSE(fold_->SameSum(other));
}

}  // namespace
}  // namespace tributary::server
