// A child whose partial sum goes wrong after good chunks: it is refused with the reason, and
// nothing of it is in the round.
#include "tests/server/partial_fixture.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kChunks = 5;
constexpr uint64_t kGood = 2;  // chunks before the lie

class PartialLies : public ::testing::Test {
 protected:
  PartialLies() {
    LimitsConfig limits;
    limits.fold_workers = 2;
    parent_ = std::make_unique<ParentNode>(layout_, grid_, &fabrics_, limits);
    parent_->Join("rack", 1);
    parent_->Join("other", 1);
    parent_->Begin();
    Connect();
  }
  void Connect() {
    end_ = std::make_unique<ChildEnd>(&fabrics_, parent_->address(), "rack", 1, std::nullopt,
                                      [this](v1::PartialSumAnswer answer) {
                                        std::lock_guard lock(mu_);
                                        answers_.push_back(std::move(answer));
                                        heard_.notify_all();
                                      });
  }
  v1::PartialSumHeader Header() const {
    v1::PartialSumHeader header;
    header.set_run("run");
    header.set_round(1);
    header.set_id("rack");
    header.set_epoch(1);
    header.set_layout_hash(layout_->hash());
    header.set_weight(sum_.weight);
    for (const std::string& id : sum_.contributors) header.add_contributors(id);
    header.set_chunks(kChunks);
    header.set_packed_bytes(sum_.sum->PackedBytes());
    header.set_attempt(7);
    return header;
  }
  void Offer(const v1::PartialSumHeader& header) {
    const auto shape = SendStreamHeader(*end_->link(), PartialStreamId(header.round()),
                                        header.SerializeAsString(), kChunks + 1, pace_);
    ASSERT_TRUE(shape.ok()) << shape.status();
  }
  // The n-th answer, from 0.
  v1::PartialSumAnswer Answer(size_t n) {
    std::unique_lock lock(mu_);
    const bool there =
        heard_.wait_for(lock, absl::ToChronoSeconds(kLimit), [&] { return answers_.size() > n; });
    EXPECT_TRUE(there) << "no answer " << n;
    return there ? answers_[n] : v1::PartialSumAnswer();
  }
  std::vector<uint8_t> Packed(const RackSum& of, uint64_t chunk) const {
    std::vector<uint8_t> bytes(aggregation::kMaxPackedChunkBytes);
    bytes.resize(of.sum->PackChunk(chunk, bytes.data()));
    return bytes;
  }
  // A data chunk that says to be number `index` of stream `stream`.
  void Send(uint64_t index, const std::vector<uint8_t>& bytes,
            uint64_t stream = PartialStreamId(1)) {
    auto chunk = end_->link()->Borrow(Deadline::After(kLimit));
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    chunk->tag() = {.stream = stream, .index = 1 + index, .a = 1, .b = 1 + kChunks + 1};
    std::copy(bytes.begin(), bytes.end(), chunk->data());
    chunk->set_size(bytes.size());
    ASSERT_TRUE(end_->link()->Send(*std::move(chunk)).ok());
  }
  // Offers, and sends the first chunks as they are; they are in the sum by then.
  void SendGood() {
    Offer(Header());
    EXPECT_EQ(Answer(0).refused(), "");
    EXPECT_EQ(Answer(0).attempt(), 7u);
    for (uint64_t i = 0; i < kGood; ++i) Send(i, Packed(sum_, i));
    ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == kGood; }));
    ASSERT_NE(parent_->Sums(), std::vector<int64_t>(layout_->elements(), 0));
  }
  // Nothing of it is there, and the round goes on without it.
  void ExpectUndone() {
    ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == 0; }));
    EXPECT_EQ(parent_->Sums(), std::vector<int64_t>(layout_->elements(), 0));
    ChildLife other(&fabrics_, parent_.get(), "other", 1);
    other.Connect();
    other.Forward(other_sum_);
    const absl::Status sent = other.Forwarded();
    EXPECT_TRUE(sent.ok()) << sent;
    const CollectedRound round = parent_->Closed();  // the liar is not waited for
    EXPECT_THAT(round.result.contributors, ElementsAre("c"));
    EXPECT_EQ(parent_->Sums(), PlainSum(*layout_, grid_.fraction_bits, other_clients_));
    EXPECT_EQ(round.result.rejected.count("malformed"), 1u);
  }

  const aggregation::testing::LayoutPtr layout_ =
      aggregation::testing::MakeLayout({{"w",
                                         {kChunks * aggregation::kChunkElements},
                                         aggregation::DType::kF32,
                                         aggregation::Policy::kMean}});
  const aggregation::Grid grid_ = *aggregation::ProveGrid({});
  const std::vector<Contribution> other_clients_ = {{*layout_, "c", 11, 3}};
  const RackSum sum_{layout_, grid_, {{*layout_, "a", 30, 1}}};
  const RackSum other_sum_{layout_, grid_, other_clients_};
  const StreamPace pace_{kLimit, [] { return false; }};
  FabricPair fabrics_{"tcp"};
  std::mutex mu_;
  std::condition_variable heard_;
  std::vector<v1::PartialSumAnswer> answers_;  // guarded by mu_
  std::unique_ptr<ParentNode> parent_;
  std::unique_ptr<ChildEnd> end_;
};

TEST_F(PartialLies, ContributorsThatAreNoListOfIdsAreRefused) {
  const std::vector<std::vector<std::string>> lists = {
      {"b", "a"}, {"a", "a"}, {"", "a"}, {"a", std::string(257, 'x')}, {"a", "b\n"}};
  for (size_t n = 0; n < lists.size(); ++n) {
    v1::PartialSumHeader header = Header();
    header.mutable_contributors()->Assign(lists[n].begin(), lists[n].end());
    Offer(header);
    EXPECT_THAT(Answer(n).refused(), HasSubstr("contributors")) << n;
  }
}

TEST_F(PartialLies, ChunkOutOfOrderEndsTheLinkWithTheReason) {
  SendGood();
  Send(kGood + 1, Packed(sum_, kGood + 1));
  EXPECT_THAT(end_->AwaitEnd(), HasSubstr("chunk 4 of stream 3 came where chunk 3 of stream 3"));
  ExpectUndone();
}

TEST_F(PartialLies, ChunkSentTwiceEndsTheLinkWithTheReason) {
  SendGood();
  Send(kGood - 1, Packed(sum_, kGood - 1));
  EXPECT_THAT(end_->AwaitEnd(), HasSubstr("chunk 2 of stream 3 came where chunk 3 of stream 3"));
  ExpectUndone();
}

TEST_F(PartialLies, ChunkOfAnotherPartialSumEndsTheLinkWithTheReason) {
  SendGood();
  Send(kGood, Packed(sum_, kGood), PartialStreamId(2));
  EXPECT_THAT(end_->AwaitEnd(), HasSubstr("chunk 3 of stream 5 came where chunk 3 of stream 3"));
  ExpectUndone();
}

TEST_F(PartialLies, ChunkThatTheGridDoesNotAllowIsRefused) {
  SendGood();
  std::vector<uint8_t> wide = Packed(sum_, kGood);
  wide[17] = 65;
  Send(kGood, wide);
  EXPECT_THAT(Answer(1).refused(), HasSubstr("chunk 2, block 17 is 65 bits wide"));
  Send(kGood + 1, Packed(sum_, kGood + 1));  // what still comes is drained
  ExpectUndone();
}

TEST_F(PartialLies, ChunkCutShortIsRefused) {
  SendGood();
  std::vector<uint8_t> cut = Packed(sum_, kGood);
  cut.pop_back();
  Send(kGood, cut);
  EXPECT_THAT(Answer(1).refused(), HasSubstr("its widths say"));
  ExpectUndone();
}

TEST_F(PartialLies, MoreBytesThanTheHeaderSaysAreRefused) {
  v1::PartialSumHeader header = Header();
  header.set_packed_bytes(sum_.PackedBytes(kGood) + 1);
  Offer(header);
  for (uint64_t i = 0; i <= kGood; ++i) Send(i, Packed(sum_, i));
  EXPECT_THAT(Answer(1).refused(), HasSubstr("is longer than the"));
  ExpectUndone();
}

// Each chunk is a good one; together they are nobody's sum.
TEST_F(PartialLies, ChunksOfTwoSumsAreRefusedByTheirDigest) {
  SendGood();
  const RackSum turned(layout_, grid_, {Turned({*layout_, "a", 30, 1})});
  ASSERT_EQ(turned.sum->PackedBytes(), sum_.sum->PackedBytes()) << "else the length would tell";
  PartialDigest digest;
  for (uint64_t i = 0; i < kChunks; ++i) digest.Add(Packed(turned, i));
  for (uint64_t i = kGood; i < kChunks; ++i) Send(i, Packed(turned, i));
  v1::PartialSumTrailer trailer;
  trailer.set_digest(digest.Value());
  const std::string text = trailer.SerializeAsString();
  Send(kChunks, {text.begin(), text.end()});
  EXPECT_THAT(Answer(1).refused(), HasSubstr("its chunks are not all of one sum"));
  ExpectUndone();
}

TEST_F(PartialLies, HeaderInAnothersNameEndsTheLinkAndTheHalfIsUndone) {
  SendGood();
  end_->Cut();
  Connect();
  v1::PartialSumHeader header = Header();
  header.set_id("other");
  Offer(header);
  EXPECT_THAT(end_->AwaitEnd(), HasSubstr("is not a PartialSumHeader of this child"));
  ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == 0; }));
  parent_->CloseNow();
  EXPECT_TRUE(parent_->Closed().result.contributors.empty());
  EXPECT_EQ(parent_->Sums(), std::vector<int64_t>(layout_->elements(), 0));
}

TEST_F(PartialLies, RoundThatDoesNotRunIsRefusedAndTheHalfIsUndone) {
  SendGood();
  end_->Cut();
  Connect();
  v1::PartialSumHeader header = Header();
  header.set_round(2);
  Offer(header);
  EXPECT_THAT(Answer(1).refused(), HasSubstr("for round 2"));
  ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == 0; }));
  parent_->CloseNow();
  parent_->Closed();
  EXPECT_EQ(parent_->Sums(), std::vector<int64_t>(layout_->elements(), 0));
}

}  // namespace
}  // namespace tributary::server
