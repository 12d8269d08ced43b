// Promises of updates that are right: encoded whole, taken from any slices, folded as the layout
// says.
#include "aggregation/update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/checksum.h"
#include "compression/segment.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;

compression::SegmentHeader HeaderOf(const std::vector<uint8_t>& segment) {
  const PiecedBytes bytes{ByteSpan(segment)};
  ByteCursor cursor(bytes);
  return *compression::ReadSegmentHeader(&cursor);
}

TEST(EncodeUpdateTest, CutsSegmentsAtTilesWithinOneMebibyte) {
  const auto layout = testing::MakeLayout({{"w", {600'000}, DType::kF32, Policy::kMean},
                                           {"none", {0}, DType::kF32, Policy::kMean},
                                           {"frozen", {9}, DType::kF32, Policy::kSkip},
                                           {"counts", {140'000}, DType::kI64, Policy::kSum},
                                           {"b", {}, DType::kF32, Policy::kMean}});
  auto deltas = testing::RandomDeltas(*layout, 1);
  const auto recorded = testing::Record(*layout, {"fp32"}, "c", 1, deltas);
  // w: 262,144 + 262,144 + 75,712 floats; counts: 131,072 + 8,928 integers; b: 1.
  const std::vector<std::array<uint64_t, 4>> expected = {
      {0, 0, 262144, 1048576}, {0, 262144, 262144, 1048576}, {0, 524288, 75712, 302848},
      {3, 0, 131072, 1048576}, {3, 131072, 8928, 71424},     {4, 0, 1, 4}};
  ASSERT_EQ(recorded.segments.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto header = HeaderOf(recorded.segments[i]);
    EXPECT_EQ(
        (std::array<uint64_t, 4>{header.tensor, header.first, header.count, header.payload_bytes}),
        expected[i]);
    EXPECT_EQ(recorded.segments[i].size(), 32 + header.payload_bytes);
  }
  EXPECT_LE(recorded.size(), MaxEncodedBytes(*layout));
}

TEST(EncodeUpdateTest, NamesTheTensorThatCannotBeEncoded) {
  const auto layout = testing::MakeLayout({{"good", {4}}, {"bad", {4}}});
  const auto codec = compression::MakeCodec("fp32");
  ASSERT_TRUE(codec.ok());
  int emitted = 0;
  const auto encode = [&](testing::GivenDeltas& deltas) {
    return EncodeUpdate(*layout, **codec, 1, 1, deltas, [&](std::vector<uint8_t>) {
      ++emitted;
      return absl::OkStatus();
    });
  };
  auto deltas = testing::RandomDeltas(*layout, 1);
  deltas.floats[1][2] = std::nanf("");
  const absl::Status nan = encode(deltas);
  EXPECT_EQ(nan.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(nan.message(), HasSubstr("\"bad\""));
  EXPECT_EQ(emitted, 1);

  deltas.floats[1].resize(3);
  EXPECT_THAT(encode(deltas).message(),
              HasSubstr("tensor \"bad\": its delta has 3 elements, the layout says 4"));
}

TEST(EncodeUpdateTest, PassesOnWhatEmitAndTheSourceSay) {
  const auto layout = testing::MakeLayout({{"w", {4}}});
  const auto codec = compression::MakeCodec("fp32");
  ASSERT_TRUE(codec.ok());
  auto deltas = testing::RandomDeltas(*layout, 1);
  const absl::Status status =
      EncodeUpdate(*layout, **codec, 1, 1, deltas,
                   [](std::vector<uint8_t>) { return absl::CancelledError("enough"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(UpdateAssemblerTest, HowTheBytesAreSlicedChangesNothing) {
  const auto layout = testing::MixedLayout();
  const Grid grid;
  auto deltas = testing::RandomDeltas(*layout, 3);
  const auto recorded =
      testing::Record(*layout, {"int8(block=64)", "fp32", "fp16"}, "c", 17, deltas);
  std::string digest;
  for (const uint64_t slice_seed : {0, 1, 2, 3}) {
    const auto update = testing::Assemble(layout, grid, recorded, slice_seed);
    ASSERT_NE(update, nullptr);
    EXPECT_EQ(update->encoded_bytes(), recorded.size());
    EXPECT_EQ(update->weight(), 17);
    EXPECT_EQ(update->id(), "c");
    auto sum = testing::MakeAccumulator(layout, grid);
    testing::FoldAll(sum.get(), {update});
    if (digest.empty()) digest = testing::DigestOf(*sum);
    EXPECT_EQ(testing::DigestOf(*sum), digest);
  }
}

TEST(UpdateAssemblerTest, TakesManySegmentsInOneAdd) {
  const auto layout = testing::MixedLayout();
  auto deltas = testing::RandomDeltas(*layout, 3);
  const auto recorded = testing::Record(*layout, {"bf16"}, "c", 1, deltas);
  const auto all = std::make_shared<const std::vector<uint8_t>>(recorded.Bytes());
  UpdateAssembler assembler(layout, Grid(), "c", 1, all->size());
  ASSERT_TRUE(assembler.Add(PiecedBytes(ByteSpan(*all)), all)) << assembler.refusal().message;
  const auto update = assembler.Finish(all->size(), recorded.crc());
  ASSERT_NE(update, nullptr) << assembler.refusal().message;
  EXPECT_EQ(update->segments().size(), recorded.segments.size());
}

TEST(UpdateAssemblerTest, KeepsTheBytesAliveAsLongAsTheUpdate) {
  const auto layout = testing::MakeLayout({{"w", {100}}});
  auto deltas = testing::RandomDeltas(*layout, 3);
  const auto recorded = testing::Record(*layout, {"fp32"}, "c", 1, deltas);
  auto owned = std::make_shared<const std::vector<uint8_t>>(recorded.Bytes());
  const std::weak_ptr<const std::vector<uint8_t>> alive = owned;
  UpdateAssembler assembler(layout, Grid(), "c", 1, owned->size());
  ASSERT_TRUE(assembler.Add(PiecedBytes(ByteSpan(*owned)), owned));
  owned.reset();
  auto update = assembler.Finish(recorded.size(), recorded.crc());
  EXPECT_FALSE(alive.expired());
  update.reset();
  EXPECT_TRUE(alive.expired());
}

// A message with the end of one tensor and all of the next goes when both are folded.
TEST(EncodedUpdateTest, ReleasesWhatLiesWhollyWithinWhatIsFolded) {
  constexpr uint64_t kTile = compression::kTileElements;
  const auto layout = testing::MakeLayout({{"w", {3 * kTile}}, {"b", {10}}});
  auto deltas = testing::RandomDeltas(*layout, 3);
  const auto recorded = testing::Record(*layout, {"fp32"}, "c", 1, deltas);
  ASSERT_EQ(recorded.segments.size(), 2u);
  // The first tensor in two segments: of a tile, and of two.
  const std::vector<uint8_t>& w = recorded.segments[0];
  const auto part = [&](uint64_t first, uint64_t count) {
    std::vector<uint8_t> out(compression::SegmentHeader::kBytes);
    compression::WriteSegmentHeader({.codec = static_cast<uint16_t>(compression::CodecId::kFp32),
                                     .payload_bytes = static_cast<uint32_t>(4 * count),
                                     .first = first,
                                     .count = count},
                                    out.data());
    const auto begin = w.begin() + static_cast<ptrdiff_t>(out.size() + 4 * first);
    out.insert(out.end(), begin, begin + static_cast<ptrdiff_t>(4 * count));
    return out;
  };
  std::vector<std::vector<uint8_t>> messages = {part(0, kTile), part(kTile, 2 * kTile)};
  messages[1].insert(messages[1].end(), recorded.segments[1].begin(), recorded.segments[1].end());
  uint64_t size = 0;
  uint32_t crc = 0;
  for (const auto& message : messages) {
    size += message.size();
    crc = ExtendCrc32c(crc, message);
  }
  UpdateAssembler assembler(layout, Grid(), "c", 1, size);
  std::vector<std::weak_ptr<const std::vector<uint8_t>>> alive;
  for (const auto& message : messages) {
    const auto owned = std::make_shared<const std::vector<uint8_t>>(message);
    alive.push_back(owned);
    ASSERT_TRUE(assembler.Add(PiecedBytes(*owned), owned)) << assembler.refusal().message;
  }
  const auto update = assembler.Finish(size, crc);
  ASSERT_NE(update, nullptr) << assembler.refusal().message;

  EXPECT_EQ(update->Release({0, kTile - 1}), 0u);
  EXPECT_EQ(update->Release({1, kTile}), 0u);
  EXPECT_FALSE(alive[0].expired());
  EXPECT_EQ(update->Release({0, 3 * kTile}), messages[0].size());
  EXPECT_TRUE(alive[0].expired());
  EXPECT_FALSE(alive[1].expired()) << "the second tensor's elements are in it";
  EXPECT_EQ(update->Release({kTile, 3 * kTile + 10}), messages[1].size());
  EXPECT_TRUE(alive[1].expired());
  EXPECT_EQ(update->Release({0, 3 * kTile + 10}), 0u) << "once each";
}

TEST(UpdateAssemblerTest, AnUpdateOfNothingIsWhole) {
  const auto layout =
      testing::MakeLayout({{"none", {0}}, {"frozen", {8}, DType::kF32, Policy::kSkip}});
  UpdateAssembler assembler(layout, Grid(), "c", 1, 0);
  EXPECT_NE(assembler.Finish(0, 0), nullptr) << assembler.refusal().message;
}

}  // namespace
}  // namespace tributary::aggregation
