// Promises of the exact accumulator: sums by hand, undoing to the bit, merges of the packed form.
#include "aggregation/accumulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kUnit = int64_t{1} << 30;

// One update of a layout whose tensors are given as values, all through fp32 or raw int64.
testing::UpdatePtr Update(const testing::LayoutPtr& layout, const std::string& id, int64_t weight,
                          const std::vector<std::vector<double>>& values) {
  testing::GivenDeltas deltas(*layout);
  for (size_t t = 0; t < values.size(); ++t) {
    deltas.floats[t].assign(values[t].begin(), values[t].end());
    deltas.ints[t].assign(values[t].begin(), values[t].end());
  }
  return testing::Assemble(layout, Grid(), testing::Record(*layout, {"fp32"}, id, weight, deltas));
}

testing::LayoutPtr FivePolicies() {
  return testing::MakeLayout({{"mean", {2}, DType::kF32, Policy::kMean},
                              {"sum", {2}, DType::kF32, Policy::kSum},
                              {"max", {2}, DType::kF32, Policy::kMax},
                              {"first", {2}, DType::kF32, Policy::kFirst},
                              {"skip", {2}, DType::kF32, Policy::kSkip},
                              {"imean", {1}, DType::kI64, Policy::kMean},
                              {"imax", {1}, DType::kI32, Policy::kMax}});
}

TEST(AccumulatorTest, CombinesEachPolicyAsByHand) {
  const auto layout = FivePolicies();
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(
      sum.get(), {Update(layout, "b", 3, {{1, -2}, {0.5, 0}, {-5, 1}, {7, 7}, {}, {4}, {-9}}),
                  Update(layout, "a", 2, {{0.25, 8}, {0.25, 1}, {-6, 2}, {9, 8}, {}, {-1}, {-10}}),
                  Update(layout, "c", 1, {{0, 0}, {1, 1}, {-7, 0}, {1, 1}, {}, {100}, {-11}})});
  EXPECT_THAT(sum->sums(),
              ElementsAre(3.5 * kUnit, 10 * kUnit,  // 3*1 + 2*0.25; 3*-2 + 2*8
                          1.75 * kUnit, 2 * kUnit,  // weights do not count
                          -5 * kUnit, 2 * kUnit,    // all below zero: the largest is kept
                          9 * kUnit, 8 * kUnit,     // of "a"
                          3 * 4 - 2 + 100, -9));
}

TEST(AccumulatorTest, RoundsHalfAUnitToEven) {
  const auto layout = testing::MakeLayout({{"w", {6}, DType::kF32, Policy::kMean}});
  auto sum = testing::MakeAccumulator(layout, Grid());
  const double half = 0x1p-31;
  testing::FoldAll(sum.get(), {Update(layout, "a", 1,
                                      {{half, -half, 3 * half, -3 * half, 5 * half, 0x1p-126}})});
  EXPECT_THAT(sum->sums(), ElementsAre(0, 0, 2, -2, 2, 0));
}

TEST(AccumulatorTest, HoldsTheLargestSumsThatTheProofAllows) {
  const auto layout = testing::MakeLayout(
      {{"w", {2}, DType::kF32, Policy::kMean}, {"n", {1}, DType::kI64, Policy::kMean}});
  const Grid grid;
  auto sum = testing::MakeAccumulator(layout, grid);
  // Two updates that together weigh W_max = 2^20, at the bounds: 2^20 * 4096 * 2^30 = 2^62.
  const auto bound = static_cast<double>(grid.IntegerBound());
  testing::FoldAll(sum.get(), {Update(layout, "a", 1 << 19, {{4096, -4096}, {bound}}),
                               Update(layout, "b", 1 << 19, {{4096, -4096}, {bound}})});
  EXPECT_THAT(sum->sums(),
              ElementsAre(int64_t{1} << 62, -(int64_t{1} << 62), grid.IntegerBound() << 20));
  const auto packed = testing::PackAll(*sum, "a");  // and the packed form takes them
  auto copy = testing::MakeAccumulator(layout, grid);
  copy->MergeChunk(0, packed->chunks[0], "a", testing::Everything(*copy));
  EXPECT_EQ(testing::DigestOf(*copy), testing::DigestOf(*sum));
}

std::vector<testing::UpdatePtr> SomeUpdates(const testing::LayoutPtr& layout, int count) {
  const std::vector<std::vector<std::string>> codecs = {{"fp32"}, {"int8"}, {"bf16", "fp16"}};
  std::vector<testing::UpdatePtr> updates;
  for (int i = 0; i < count; ++i) {
    auto deltas = testing::RandomDeltas(*layout, 100 + i);
    updates.push_back(testing::Assemble(
        layout, Grid(),
        testing::Record(*layout, codecs[i % 3], absl::StrCat("c", i), 1 + 37 * i, deltas)));
  }
  return updates;
}

TEST(AccumulatorTest, SubtractUndoesFoldExactly) {
  const auto layout = testing::AdditiveLayout();
  const auto updates = SomeUpdates(layout, 4);
  auto expected = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(expected.get(), {updates[0], updates[2]});
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(sum.get(), updates);
  for (const int i : {3, 1}) {
    for (const ElementRange range : sum->Split(3))
      ASSERT_TRUE(sum->Subtract(*updates[i], range).ok());
  }
  EXPECT_EQ(testing::DigestOf(*sum), testing::DigestOf(*expected));
}

TEST(AccumulatorTest, SubtractChunkUndoesMergeChunkExactly) {
  const auto layout = testing::AdditiveLayout();
  const auto updates = SomeUpdates(layout, 3);
  auto child = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(child.get(), {updates[1], updates[2]});
  const auto packed = testing::PackAll(*child, "c1");
  ASSERT_GT(packed->chunks.size(), 1u);
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(sum.get(), {updates[0]});
  const std::string before = testing::DigestOf(*sum);
  // Half-way: only the first chunk came before the child died.
  for (const ElementRange range : sum->Split(4)) sum->MergeChunk(0, packed->chunks[0], "c1", range);
  EXPECT_NE(testing::DigestOf(*sum), before);
  for (const ElementRange range : sum->Split(3))
    ASSERT_TRUE(sum->SubtractChunk(0, packed->chunks[0], range).ok());
  EXPECT_EQ(testing::DigestOf(*sum), before);
}

TEST(AccumulatorTest, RefusesToSubtractWhereMaxOrFirstTensorsAre) {
  const auto layout = testing::MixedLayout();
  const auto updates = SomeUpdates(layout, 1);
  auto sum = testing::MakeAccumulator(layout, Grid());
  EXPECT_EQ(sum->Subtract(*updates[0], testing::Everything(*sum)).code(),
            absl::StatusCode::kFailedPrecondition);
  const auto packed = testing::PackAll(*sum, "a");
  EXPECT_EQ(sum->SubtractChunk(0, packed->chunks[0], testing::Everything(*sum)).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(AccumulatorTest, ChunksWithoutMaxAndFirstTensorsCanBeSubtractedBesideSuchThatHaveThem) {
  // 131,072 elements a chunk: "peak" begins chunk 1 and ends in chunk 2.
  const auto layout = testing::MakeLayout({{"w", {131'072}, DType::kF32, Policy::kMean},
                                           {"peak", {131'073}, DType::kF32, Policy::kMax},
                                           {"v", {131'071 + 131'072}, DType::kF32, Policy::kSum},
                                           {"label", {1}, DType::kI64, Policy::kFirst}});
  auto sum = testing::MakeAccumulator(layout, Grid());
  ASSERT_EQ(sum->chunk_count(), 5u);
  std::vector<bool> can;
  for (uint64_t chunk = 0; chunk < 5; ++chunk) can.push_back(sum->CanSubtractChunk(chunk));
  EXPECT_EQ(can, (std::vector<bool>{true, false, false, true, false}));
  const std::string before = testing::DigestOf(*sum);
  auto child = testing::MakeAccumulator(layout, Grid());
  auto deltas = testing::RandomDeltas(*layout, 8);
  testing::FoldAll(
      child.get(),
      {testing::Assemble(layout, Grid(), testing::Record(*layout, {"fp32"}, "c", 3, deltas))});
  const auto packed = testing::PackAll(*child, "c");
  const ElementRange all = testing::Everything(*sum);
  for (const uint64_t chunk : {0, 3}) {
    sum->MergeChunk(chunk, packed->chunks[chunk], "c", all);
    EXPECT_NE(testing::DigestOf(*sum), before);
    EXPECT_TRUE(sum->SubtractChunk(chunk, packed->chunks[chunk], all).ok());
    EXPECT_EQ(testing::DigestOf(*sum), before);
  }
  EXPECT_EQ(sum->SubtractChunk(2, packed->chunks[2], all).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(AccumulatorTest, FirstIsTheSmallestIdInWhateverPartsAndOrderItComes) {
  // Its tile lies across chunks 0 and 1.
  const auto layout = testing::MakeLayout({{"w", {120'000}, DType::kF32, Policy::kMean},
                                           {"first", {32'768}, DType::kF32, Policy::kFirst}});
  const auto updates = SomeUpdates(layout, 3);  // c0, c1, c2
  auto child = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(child.get(), {updates[0]});
  const auto packed = testing::PackAll(*child, "c0");
  ASSERT_EQ(packed->chunks.size(), 2u);
  const auto expected = child->sums().subspan(120'000);

  // The child's parts come first and last, others between.
  auto sum = testing::MakeAccumulator(layout, Grid());
  const ElementRange all = testing::Everything(*sum);
  testing::FoldAll(sum.get(), {updates[2]});
  sum->MergeChunk(1, packed->chunks[1], "c0", all);
  testing::FoldAll(sum.get(), {updates[1]});
  sum->MergeChunk(0, packed->chunks[0], "c0", all);
  EXPECT_TRUE(std::ranges::equal(sum->sums().subspan(120'000), expected));
}

TEST(AccumulatorTest, MaxOfNothingGivesWayToAnythingAndResetForgets) {
  const auto layout = FivePolicies();
  auto sum = testing::MakeAccumulator(layout, Grid());
  EXPECT_EQ(sum->sums()[4], kNothing);
  // An aggregator with nothing folded sends this up; it must count for nothing.
  const auto empty = testing::PackAll(*sum, "x");
  testing::FoldAll(sum.get(),
                   {Update(layout, "a", 2, {{1, 1}, {1, 1}, {-3, -4}, {1, 1}, {}, {1}, {-100}})});
  sum->MergeChunk(0, empty->chunks[0], "x", testing::Everything(*sum));
  EXPECT_THAT(sum->sums().subspan(4, 2), ElementsAre(-3 * kUnit, -4 * kUnit));
  EXPECT_EQ(sum->sums()[9], -100);

  sum->Reset();
  auto fresh = testing::MakeAccumulator(layout, Grid());
  EXPECT_EQ(testing::DigestOf(*sum), testing::DigestOf(*fresh));
  testing::FoldAll(sum.get(),
                   {Update(layout, "z", 1, {{1, 1}, {1, 1}, {-3, -4}, {5, 6}, {}, {1}, {1}})});
  EXPECT_EQ(sum->sums()[6], 5 * kUnit) << "the FIRST tensor still belonged to \"a\"";
}

TEST(AccumulatorTest, SplitCutsAtTilesAndCoversEverythingOnce) {
  const auto layout = testing::MixedLayout();
  const auto sum = testing::MakeAccumulator(layout, Grid());
  for (const int parts : {1, 2, 3, 4, 7, 64, 256}) {
    const auto ranges = sum->Split(parts);
    ASSERT_FALSE(ranges.empty());
    EXPECT_LE(ranges.size(), static_cast<size_t>(parts));
    uint64_t at = 0;
    for (const ElementRange range : ranges) {
      EXPECT_EQ(range.begin, at);
      EXPECT_GT(range.end, range.begin);
      EXPECT_TRUE(std::ranges::any_of(layout->tiles(),
                                      [&](const Tile& t) { return t.offset == range.begin; }));
      at = range.end;
    }
    EXPECT_EQ(at, layout->elements());
  }
}

TEST(AccumulatorTest, ALayoutWithoutElementsHasNoChunksAndOneEmptyRange) {
  const auto layout =
      testing::MakeLayout({{"none", {0}}, {"frozen", {8}, DType::kF32, Policy::kSkip}});
  auto sum = testing::MakeAccumulator(layout, Grid());
  EXPECT_EQ(sum->chunk_count(), 0u);
  ASSERT_EQ(sum->Split(4).size(), 1u);
  EXPECT_EQ(sum->Split(4)[0].end, 0u);
  sum->Reset();
  EXPECT_TRUE(sum->sums().empty());
}

TEST(AccumulatorTest, SaysSoWhereTheMemoryCannotBeHad) {
  const auto layout = testing::MakeLayout({{"w", {uint64_t{1} << 37}}});  // 1 TiB of sums
  const auto sum = ExactAccumulator::Create(layout, Grid());
  if (sum.ok()) GTEST_SKIP() << "this machine grants 1 TiB of address space, so nothing is refused";
  EXPECT_EQ(sum.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(sum.status().message(), HasSubstr("137438953472 elements"));
}

// The widths alone must give the very bytes that packing writes, short last blocks too.
TEST(AccumulatorTest, PackedBytesAreThoseThatPackingWrites) {
  for (const auto& layout :
       {testing::MixedLayout(), testing::AdditiveLayout(), testing::MakeLayout({{"w", {3}}}),
        testing::MakeLayout({{"w", {kChunkElements + 513}}}),
        testing::MakeLayout({{"empty", {0}}})}) {
    auto sum = testing::MakeAccumulator(layout, Grid());
    for (const int folds : {0, 1}) {
      if (folds == 1) {
        auto deltas = testing::RandomDeltas(*layout, 5);
        testing::FoldAll(sum.get(),
                         {testing::Assemble(layout, Grid(),
                                            testing::Record(*layout, {"fp32"}, "a", 900, deltas))});
      }
      const auto packed = testing::PackAll(*sum, "a");
      uint64_t written = 0;
      for (const auto& chunk : packed->chunks) written += chunk.size();
      EXPECT_EQ(sum->PackedBytes(), written) << layout->elements() << " elements";
    }
  }
}

TEST(ValidateChunkTest, RefusesLengthsAndWidthsThatCannotBe) {
  const auto layout = testing::MakeLayout(
      {{"w", {1000}, DType::kF32, Policy::kMean}, {"n", {1000}, DType::kI64, Policy::kMean}});
  auto sum = testing::MakeAccumulator(layout, Grid());  // C 2^f W = 2^62: 64 bits
  testing::FoldAll(
      sum.get(),
      {Update(layout, "a", 1, {std::vector<double>(1000, 1), std::vector<double>(1000, 1)})});
  const auto packed = testing::PackAll(*sum, "a")->chunks[0];
  const auto refusal = [&](std::vector<uint8_t> bytes, uint64_t chunk = 0) {
    return std::string(sum->ValidateChunk(chunk, bytes).message());
  };
  EXPECT_EQ(refusal(packed), "");
  EXPECT_THAT(refusal(packed, 1), HasSubstr("chunk 1 of a partial sum that has 1"));
  EXPECT_THAT(refusal({32, 32}), HasSubstr("fewer than its 4 blocks' widths"));
  std::vector<uint8_t> bad = packed;
  bad.pop_back();
  EXPECT_THAT(refusal(bad), HasSubstr("its widths say"));
  bad = packed;
  bad.push_back(0);
  EXPECT_THAT(refusal(bad), HasSubstr("its widths say"));
  bad = packed;
  bad[2] = 65;
  EXPECT_THAT(refusal(bad), HasSubstr("block 2 is 65 bits wide"));
}

TEST(ValidateChunkTest, RefusesFloatSumsBeyondTheGrid) {
  const auto layout = testing::MakeLayout(
      {{"w", {1024}, DType::kF32, Policy::kMean}, {"n", {1000}, DType::kI64, Policy::kMean}});
  const Grid small{30, 16, 1000, 0};  // 16 * 2^30 * 1000 = 1.7e13 < 2^44: 45 bits
  const auto sum = testing::MakeAccumulator(layout, small);
  std::vector<uint8_t> widths = {45, 46, 64, 64};
  std::vector<uint8_t> packed = widths;
  packed.resize(4 + 64 * (45 + 46 + 64 + 64));
  EXPECT_THAT(std::string(sum->ValidateChunk(0, packed).message()),
              HasSubstr("block 1 is 46 bits wide, the grid allows 45"));
  packed[1] = 45;
  packed.resize(packed.size() - 64);
  EXPECT_TRUE(sum->ValidateChunk(0, packed).ok());
}

TEST(GridMeanTest, DividesOnceInDouble) {
  EXPECT_EQ(GridMean(3 * kUnit, 2, 30), 1.5);
  EXPECT_EQ(GridMean(-kUnit, 4, 30), -0.25);
  EXPECT_EQ(GridMean(kUnit, 3, 30),
            1.0 / 3);  // the division is correctly rounded, the scaling exact
}

}  // namespace
}  // namespace tributary::aggregation
