// The segment header: bit for bit, and what a reader refuses.
#include "compression/segment.h"

#include "codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

const SegmentHeader kHeader{.tensor = 0x01020304,
                            .codec = 5,
                            .version = 1,
                            .parameter = 128,
                            .payload_bytes = 0x000A0B0C,
                            .first = uint64_t{0x1122334455} << 15,
                            .count = 0x0102030405060708};

std::vector<uint8_t> Written(const SegmentHeader& header) {
  std::vector<uint8_t> bytes(SegmentHeader::kBytes);
  WriteSegmentHeader(header, bytes.data());
  return bytes;
}

absl::StatusOr<SegmentHeader> ReadBack(const std::vector<uint8_t>& bytes) {
  const PiecedBytes pieced{ByteSpan(bytes)};
  ByteCursor cursor(pieced);
  return ReadSegmentHeader(&cursor);
}

TEST(SegmentHeader, IsWrittenLittleEndianInTheDocumentedOrder) {
  // 0x1122334455 << 15 is 0x089119A22A8000, worked out by hand.
  const std::vector<uint8_t> expected = {
      4,    3,    2,    1,    5,    0,    1,    0,    128, 0, 0, 0, 0x0C, 0x0B, 0x0A, 0,
      0x00, 0x80, 0x2A, 0xA2, 0x19, 0x91, 0x08, 0x00, 8,   7, 6, 5, 4,    3,    2,    1};
  EXPECT_EQ(Written(kHeader), expected);
}

TEST(SegmentHeader, ComesBackFromAnySlicesAndLeavesTheCursorAtThePayload) {
  std::vector<uint8_t> bytes = Written(kHeader);
  bytes.insert(bytes.end(), {0xAB, 0xCD});
  for (const size_t longest : {size_t{1}, size_t{5}, size_t{31}, size_t{100}}) {
    const CutBytes cut(bytes, longest, longest);
    ByteCursor cursor(cut.bytes());
    const auto header = ReadSegmentHeader(&cursor);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(Written(*header), Written(kHeader));
    EXPECT_EQ(cursor.Remaining(), 2u);
    EXPECT_EQ(cursor.Contiguous()[0], 0xAB);
  }
}

TEST(SegmentHeader, RefusesWhatTheFormatForbidsAndSaysWhy) {
  struct Row {
    std::function<void(SegmentHeader*)> change;
    const char* why;
  };
  const Row rows[] = {
      {[](SegmentHeader* h) { h->version = 0; }, "version 0"},
      {[](SegmentHeader* h) { h->version = 2; }, "version 2"},
      {[](SegmentHeader* h) { h->payload_bytes = kMaxPayloadBytes + 1; }, "over the limit"},
      {[](SegmentHeader* h) { h->first += 1; }, "not a multiple"},
      {[](SegmentHeader* h) { h->count = 0; }, "count is 0"},
      {[](SegmentHeader* h) { h->count = ~uint64_t{0}; }, "beyond 64 bits"}};
  for (const Row& row : rows) {
    SegmentHeader header = kHeader;
    row.change(&header);
    const auto read = ReadBack(Written(header));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << row.why;
    EXPECT_THAT(std::string(read.status().message()), testing::HasSubstr(row.why));
  }
  for (size_t n = 0; n < SegmentHeader::kBytes; ++n) {
    std::vector<uint8_t> bytes = Written(kHeader);
    bytes.resize(n);
    EXPECT_EQ(ReadBack(bytes).status().code(), absl::StatusCode::kInvalidArgument) << n;
  }
}

TEST(SegmentHeader, TakesTheLimitsThemselves) {
  SegmentHeader header = kHeader;
  header.payload_bytes = kMaxPayloadBytes;
  header.first = 0;
  header.count = ~uint64_t{0};
  EXPECT_TRUE(ReadBack(Written(header)).ok());
}

}  // namespace
}  // namespace tributary::compression
