// Promises for models beyond 2 and 4 GiB: a 3 GB tensor folds whole, and indices beyond 2^32 are
// right. The updates' segments share one payload in memory, so that it is the sums that take the
// room.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checksum.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

constexpr uint64_t kSegmentElements = 8 * compression::kTileElements;  // 1 MiB of fp32
constexpr int64_t kUnit = int64_t{1} << 30;

// Element i of every segment is i / 2^18: exact in fp32 and on the grid.
std::vector<uint8_t> SharedPayload() {
  std::vector<uint8_t> payload(4 * kSegmentElements);
  for (uint64_t i = 0; i < kSegmentElements; ++i) {
    const float x = static_cast<float>(i) / kSegmentElements;
    std::memcpy(payload.data() + 4 * i, &x, 4);
  }
  return payload;
}
int64_t Expected(uint64_t element) {
  return static_cast<int64_t>(element % kSegmentElements) *
         (kUnit / static_cast<int64_t>(kSegmentElements));
}

// An fp32 update of the layout's only tensor.
testing::UpdatePtr SharedUpdate(const testing::LayoutPtr& layout, int64_t weight) {
  const auto payload = std::make_shared<const std::vector<uint8_t>>(SharedPayload());
  const uint64_t elements = layout->elements();
  const uint64_t segments = (elements + kSegmentElements - 1) / kSegmentElements;
  const uint64_t bytes = 4 * elements + segments * compression::SegmentHeader::kBytes;
  UpdateAssembler assembler(layout, Grid(), "c", weight, bytes);
  uint32_t crc = 0;
  for (uint64_t first = 0; first < elements; first += kSegmentElements) {
    compression::SegmentHeader header;
    header.codec = static_cast<uint16_t>(compression::CodecId::kFp32);
    header.first = first;
    header.count = std::min(kSegmentElements, elements - first);
    header.payload_bytes = static_cast<uint32_t>(4 * header.count);
    const auto head = std::make_shared<std::array<uint8_t, compression::SegmentHeader::kBytes>>();
    compression::WriteSegmentHeader(header, head->data());
    PiecedBytes segment{ByteSpan(*head)};
    segment.Append(ByteSpan(*payload).first(header.payload_bytes));
    for (const ByteSpan piece : segment.pieces()) crc = ExtendCrc32c(crc, piece);
    // Both must live: the pair owns them.
    const auto owner =
        std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
            head, payload);
    if (!assembler.Add(segment, owner)) break;
  }
  auto update = assembler.Finish(bytes, crc);
  EXPECT_NE(update, nullptr) << assembler.refusal().message;
  return update;
}

TEST(HugeTest, AThreeGigabyteTensorFoldsPacksAndMergesWhole) {
  const uint64_t elements = 805'306'368 + 12'345;  // 3 GiB of fp32 and an odd end
  const auto layout = testing::MakeLayout({{"w", {elements}}});
  auto sum = ExactAccumulator::Create(layout, Grid());
  if (!sum.ok()) GTEST_SKIP() << "this machine has no room for 6.5 GB of sums: " << sum.status();
  const auto update = SharedUpdate(layout, 3);
  ASSERT_NE(update, nullptr);
  EXPECT_GT(update->encoded_bytes(), uint64_t{3} << 30);
  FoldPool pool({2, 16});
  pool.Target(sum->get());
  pool.Fold(update, nullptr);
  pool.Wait();
  const auto sums = (*sum)->sums();
  for (uint64_t i = 0; i < elements; ++i) {
    if (sums[i] != 3 * Expected(i))
      FAIL() << "element " << i << " is " << sums[i] << ", not " << 3 * Expected(i);
  }
  // Each chunk packed and merged onto itself doubles it.
  std::vector<uint8_t> packed(kMaxPackedChunkBytes);
  ASSERT_EQ((*sum)->chunk_count(), 6145u);
  for (uint64_t chunk = 0; chunk < (*sum)->chunk_count(); ++chunk) {
    const ByteSpan bytes(packed.data(), (*sum)->PackChunk(chunk, packed.data()));
    ASSERT_TRUE((*sum)->ValidateChunk(chunk, bytes).ok());
    (*sum)->MergeChunk(chunk, bytes, "c", testing::Everything(**sum));
  }
  for (uint64_t i = 0; i < elements; ++i) {
    if (sums[i] != 6 * Expected(i))
      FAIL() << "element " << i << " is " << sums[i] << ", not " << 6 * Expected(i);
  }
}

TEST(HugeTest, ElementsBeyondTwoToTheThirtyTwoLieWhereTheyShould) {
  const uint64_t elements = (uint64_t{1} << 32) + 300'000;
  const auto layout = testing::MakeLayout({{"w", {elements}}});
  auto sum = ExactAccumulator::Create(layout, Grid());
  if (!sum.ok()) GTEST_SKIP() << "this machine grants no 34 GB of address space: " << sum.status();
  const auto update = SharedUpdate(layout, 1);
  ASSERT_NE(update, nullptr);
  // Only the last tiles are touched, so only they take memory.
  const EncodedUpdate* updates[] = {update.get()};
  const ElementRange end = {uint64_t{1} << 32, elements};
  (*sum)->Fold(updates, end);
  const auto sums = (*sum)->sums();
  EXPECT_EQ(sums[0], 0);
  for (uint64_t i = end.begin; i < end.end; ++i) ASSERT_EQ(sums[i], Expected(i)) << i;

  ASSERT_EQ((*sum)->chunk_count(), 32768u + 3);
  std::vector<uint8_t> packed(kMaxPackedChunkBytes);
  for (uint64_t chunk = 32768; chunk < 32771; ++chunk) {
    const ByteSpan bytes(packed.data(), (*sum)->PackChunk(chunk, packed.data()));
    ASSERT_TRUE((*sum)->ValidateChunk(chunk, bytes).ok());
    for (const ElementRange range : (*sum)->Split(2)) (*sum)->MergeChunk(chunk, bytes, "c", range);
  }
  for (uint64_t i = end.begin; i < end.end; ++i) ASSERT_EQ(sums[i], 2 * Expected(i)) << i;
  EXPECT_EQ(sums[300'000], 0);
}

}  // namespace
}  // namespace tributary::aggregation
