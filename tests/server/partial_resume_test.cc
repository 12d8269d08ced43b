// A partial sum that breaks off half-way: undone to the bit, or gone on with at the first missing
// chunk. Over every kind of link.
#include "tests/server/partial_fixture.h"

namespace tributary::server {
namespace {

using aggregation::DType;
using aggregation::Policy;
using ::testing::ElementsAre;

constexpr uint64_t kChunks = 10;
constexpr uint64_t kHalf = 4;           // chunks that are in when it breaks off
constexpr uint64_t kStall = 1 + kHalf;  // with the header before them
constexpr int kWorkers = 3;             // whose ranges end within chunks

aggregation::testing::LayoutPtr TenChunks() {
  return aggregation::testing::MakeLayout(
      {{"w", {kChunks * aggregation::kChunkElements - 100}, DType::kF32, Policy::kMean}});
}

// What two racks have summed up: made once, since making it takes longer than a test.
struct Racks {
  const aggregation::testing::LayoutPtr layout = TenChunks();
  const aggregation::Grid grid = *aggregation::ProveGrid({});
  const std::vector<Contribution> rack_clients = {{*layout, "a", 30, 1}, {*layout, "b", 7, 2}};
  const std::vector<Contribution> other_clients = {{*layout, "c", 11, 3}};
  const RackSum rack{layout, grid, rack_clients};
  const RackSum other{layout, grid, other_clients};

  std::vector<int64_t> Plain(const std::vector<Contribution>& clients) const {
    return PlainSum(*layout, grid.fraction_bits, clients);
  }
  const std::vector<int64_t> plain_other = Plain(other_clients);
  const std::vector<int64_t> plain_all =
      Plain({rack_clients[0], rack_clients[1], other_clients[0]});
};
const Racks& Made() {
  static const Racks racks;
  return racks;
}

class PartialResume : public ::testing::TestWithParam<std::string> {
 protected:
  explicit PartialResume(uint64_t inflight_bytes = uint64_t{1} << 30,
                         double progress_timeout_s = TransportConfig().progress_timeout_s) {
    LimitsConfig limits;
    limits.fold_workers = kWorkers;
    limits.inflight_bytes = inflight_bytes;
    parent_ = std::make_unique<ParentNode>(layout_, grid_, &fabrics_, limits, progress_timeout_s);
    parent_->Join("rack", 1);
    parent_->Join("other", 1);
    parent_->Begin();
  }
  // The rack's partial sum stalls when kHalf of its chunks are in the parent's sum.
  void SendHalf(ChildLife* rack, const RackSum& sum) {
    rack->Connect(kStall);
    rack->Forward(sum);
    ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == kHalf; }));
  }
  void SendOther() {
    ChildLife other(&fabrics_, parent_.get(), "other", 1);
    other.Connect();
    other.Forward(other_sum_);
    const absl::Status sent = other.Forwarded();
    ASSERT_TRUE(sent.ok()) << sent;
  }

  const aggregation::testing::LayoutPtr layout_ = Made().layout;
  const aggregation::Grid grid_ = Made().grid;
  const std::vector<Contribution>& rack_clients_ = Made().rack_clients;
  const std::vector<Contribution>& other_clients_ = Made().other_clients;
  const RackSum& rack_sum_ = Made().rack;
  const RackSum& other_sum_ = Made().other;
  FabricPair fabrics_{GetParam()};
  std::unique_ptr<ParentNode> parent_;
};

TEST_P(PartialResume, ChunksAreInTheSumAsTheyComeAndTheDeadChildsAreUndoneToTheBit) {
  const std::vector<int64_t>& others = Made().plain_other;
  SendOther();
  {
    ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
    SendHalf(&rack, rack_sum_);
    // What is in is folded: the first four chunks of both, the rest of the other's.
    std::vector<int64_t> half = Made().plain_all;
    const uint64_t in = kHalf * aggregation::kChunkElements;
    std::copy(others.begin() + in, others.end(), half.begin() + in);
    EXPECT_EQ(parent_->Sums(), half);
  }
  ASSERT_EQ(parent_->Uncounted("rack"), kHalf) << "kept for its return";
  parent_->CloseNow();
  const CollectedRound round = parent_->Closed();
  EXPECT_EQ(parent_->Sums(), others);
  EXPECT_THAT(round.result.contributors, ElementsAre("c"));
  EXPECT_EQ(round.result.weight, 11u);
  EXPECT_EQ(round.bytes.from_aggregators,
            other_sum_.PackedBytes(kChunks) + rack_sum_.PackedBytes(kHalf));
}

TEST_P(PartialResume, RoundThatClosesInTheMiddleOfAPartialSumDoesNotHaveItsHalf) {
  SendOther();
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  SendHalf(&rack, rack_sum_);
  parent_->CloseNow();
  EXPECT_THAT(parent_->Closed().result.contributors, ElementsAre("c"));
  EXPECT_EQ(parent_->Sums(), Made().plain_other);
}

TEST_P(PartialResume, CutChildGoesOnAtTheFirstMissingChunk) {
  SendOther();
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  SendHalf(&rack, rack_sum_);
  rack.Cut();
  rack.Connect();
  const absl::Status sent = rack.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
  const CollectedRound round = parent_->Closed();
  EXPECT_EQ(parent_->Sums(), Made().plain_all);
  EXPECT_THAT(round.result.contributors, ElementsAre("a", "b", "c"));
  // Header, chunks, trailer; of the rack a second header, and no chunk twice.
  EXPECT_EQ(parent_->stats().chunks_received, (1 + kChunks + 1) + (2 + kChunks + 1));
  EXPECT_EQ(round.bytes.from_aggregators,
            other_sum_.PackedBytes(kChunks) + rack_sum_.PackedBytes(kChunks));
}

TEST_P(PartialResume, ChildThatDiedGoesOnInItsNextLifeWhereItsSumIsTheSame) {
  SendOther();
  auto first_life = std::make_unique<ChildLife>(&fabrics_, parent_.get(), "rack", 1);
  SendHalf(first_life.get(), rack_sum_);
  first_life.reset();
  parent_->Leave("rack");
  parent_->Join("rack", 2);
  ChildLife again(&fabrics_, parent_.get(), "rack", 2);
  again.Connect();
  static const RackSum summed_anew(layout_, grid_, {rack_clients_[1], rack_clients_[0]});
  again.Forward(summed_anew);
  const absl::Status sent = again.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
  const CollectedRound round = parent_->Closed();
  EXPECT_EQ(parent_->Sums(), Made().plain_all);
  EXPECT_EQ(parent_->stats().chunks_received, (1 + kChunks + 1) + (2 + kChunks + 1));
  EXPECT_EQ(round.bytes.from_aggregators,
            other_sum_.PackedBytes(kChunks) + rack_sum_.PackedBytes(kChunks));
}

TEST_P(PartialResume, ChildThatDiedBeginsAnewWhereItsNextSumIsAnother) {
  SendOther();
  {
    ChildLife first(&fabrics_, parent_.get(), "rack", 1);
    SendHalf(&first, rack_sum_);
    // Its successor joins while the link of the dead one still seems to live.
    parent_->Join("rack", 2);
    ChildLife again(&fabrics_, parent_.get(), "rack", 2);
    again.Connect();
    static const RackSum only_a(layout_, grid_, {rack_clients_[0]});
    again.Forward(only_a);
    const absl::Status sent = again.Forwarded();
    EXPECT_TRUE(sent.ok()) << sent;
    const CollectedRound round = parent_->Closed();
    EXPECT_THAT(round.result.contributors, ElementsAre("a", "c"));
    EXPECT_EQ(round.bytes.from_aggregators, other_sum_.PackedBytes(kChunks) +
                                                rack_sum_.PackedBytes(kHalf) +
                                                only_a.PackedBytes(kChunks));
  }
  EXPECT_EQ(parent_->Sums(), Made().Plain({rack_clients_[0], other_clients_[0]}));
}

INSTANTIATE_TEST_SUITE_P(Fabrics, PartialResume, ::testing::Values("tcp", "shm", "sim", "roce"),
                         [](const auto& info) { return info.param; });

// ---- What does not depend on the kind of link

class PartialOverSim : public PartialResume {};
INSTANTIATE_TEST_SUITE_P(Sim, PartialOverSim, ::testing::Values("sim"));

TEST_P(PartialOverSim, HeadersThatAreTheSameDoNotMakeTheSumsTheSame) {
  SendOther();
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  SendHalf(&rack, rack_sum_);
  rack.Cut();
  std::vector<Contribution> turned;
  for (const Contribution& client : rack_clients_) turned.push_back(Turned(client));
  const RackSum turned_sum(layout_, grid_, turned);
  ASSERT_EQ(turned_sum.sum->PackedBytes(), rack_sum_.sum->PackedBytes())
      << "what the test is about";
  rack.Forward(turned_sum);
  rack.Connect();
  const absl::Status sent = rack.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
  parent_->Closed();
  turned.push_back(other_clients_[0]);
  EXPECT_EQ(parent_->Sums(), Made().Plain(turned));
}

TEST_P(PartialOverSim, ChildThatLostTheLastWordIsToldThatItsSumIsIn) {
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  rack.Connect();
  rack.Forward(rack_sum_);
  absl::Status sent = rack.Forwarded();
  ASSERT_TRUE(sent.ok()) << sent;
  ChildLife same(&fabrics_, parent_.get(), "rack", 1);  // as if it had not heard
  same.Connect();
  same.Forward(rack_sum_);
  sent = same.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
  SendOther();
  parent_->Closed();
  EXPECT_EQ(parent_->Sums(), Made().plain_all);
  EXPECT_EQ(parent_->stats().chunks_received, 2 * (1 + kChunks + 1) + 1);
}

// A budget of one partial sum: what a vanished child holds of it is freed for who is there.
class PartialInTightMemory : public PartialResume {
 protected:
  PartialInTightMemory() : PartialResume(uint64_t{9} << 20) {}
};
INSTANTIATE_TEST_SUITE_P(Sim, PartialInTightMemory, ::testing::Values("sim"));

TEST_P(PartialInTightMemory, HalfGivesWayToWhoWaitsForMemory) {
  ASSERT_LE(rack_sum_.sum->PackedBytes(), uint64_t{9} << 20);
  ASSERT_GT(rack_sum_.sum->PackedBytes() + other_sum_.sum->PackedBytes(), uint64_t{9} << 20);
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  SendHalf(&rack, rack_sum_);
  rack.Cut();
  SendOther();
  EXPECT_EQ(parent_->Uncounted("rack"), 0u);
  rack.Connect();
  const absl::Status sent = rack.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
  const CollectedRound round = parent_->Closed();
  EXPECT_EQ(parent_->Sums(), Made().plain_all);
  EXPECT_EQ(round.bytes.from_aggregators, other_sum_.PackedBytes(kChunks) +
                                              rack_sum_.PackedBytes(kHalf) +
                                              rack_sum_.PackedBytes(kChunks));
}

// MAX and FIRST tensors cannot be undone: their chunks are in the sum once all of it has come.
class PartialThatStops : public PartialResume {
 protected:
  PartialThatStops() : PartialResume(uint64_t{1} << 30, /*progress_timeout_s=*/2) {}
};

// A child that is alive and has stopped sending in the middle.
TEST_P(PartialThatStops, EndsItsLinkInWordsAndGoesOnOverTheNext) {
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  SendHalf(&rack, rack_sum_);
  EXPECT_THAT(rack.AwaitEnd(),
              testing::HasSubstr(absl::StrCat("stream 3 of \"rack\": data chunk ", kHalf + 1,
                                              " of 11 did not come within 2s")));
  rack.Cut();
  rack.Connect();
  const absl::Status sent = rack.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
}

INSTANTIATE_TEST_SUITE_P(Kinds, PartialThatStops, ::testing::Values("tcp"),
                         [](const auto& info) { return info.param; });

class PartialWithMaxTensors : public ::testing::Test {
 protected:
  PartialWithMaxTensors() {
    LimitsConfig limits;
    limits.fold_workers = kWorkers;
    parent_ = std::make_unique<ParentNode>(layout_, grid_, &fabrics_, limits);
    parent_->Join("rack", 1);
    parent_->Begin();
  }
  const aggregation::testing::LayoutPtr layout_ = aggregation::testing::MakeLayout(
      {{"w", {aggregation::kChunkElements + 9}, DType::kF32, Policy::kMean},
       {"peak", {40'000}, DType::kF32, Policy::kMax},
       {"reference", {5'000}, DType::kF32, Policy::kFirst},
       {"v", {2 * aggregation::kChunkElements}, DType::kF32, Policy::kMean}});
  const aggregation::Grid grid_ = *aggregation::ProveGrid({});
  const RackSum sum_{layout_, grid_, {{*layout_, "a", 30, 1}, {*layout_, "b", 7, 2}}};
  FabricPair fabrics_{"sim"};
  std::unique_ptr<ParentNode> parent_;
};

TEST_F(PartialWithMaxTensors, AreUndoneToTheBit) {
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  rack.Connect(1 + 3);
  rack.Forward(sum_);
  ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == 3; }));
  const std::vector<int64_t> half = parent_->Sums();
  EXPECT_NE(half.front(), 0) << "chunk 0 is folded";
  EXPECT_EQ(half[aggregation::kChunkElements + 9], aggregation::kNothing) << "chunk 1 is not";
  rack.Cut();
  parent_->CloseNow();
  parent_->Closed();
  const auto untouched = aggregation::testing::MakeAccumulator(layout_, grid_);
  const auto zero = untouched->sums();
  EXPECT_EQ(parent_->Sums(), std::vector<int64_t>(zero.begin(), zero.end()));
}

TEST_F(PartialWithMaxTensors, AreWholeInTheEnd) {
  ChildLife rack(&fabrics_, parent_.get(), "rack", 1);
  rack.Connect(1 + 2);
  rack.Forward(sum_);
  ASSERT_TRUE(AwaitTrue([&] { return parent_->Uncounted("rack") == 2; }));
  rack.Cut();
  rack.Connect();
  const absl::Status sent = rack.Forwarded();
  EXPECT_TRUE(sent.ok()) << sent;
  parent_->Closed();
  const auto expected = sum_.sum->sums();
  EXPECT_EQ(parent_->Sums(), std::vector<int64_t>(expected.begin(), expected.end()));
}

}  // namespace
}  // namespace tributary::server
