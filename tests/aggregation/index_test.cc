// Elements beyond 2^31 and 2^32: sparse updates of huge tensors, whose zeros take address space and
// no memory. Only the full suite runs the two large sizes: the tensor is read several times.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "aggregation/update.h"
#include "base/philox.h"
#include "compression/policy.h"
#include "compression/segment.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using compression::kTileElements;
using compression::SegmentHeader;

// n floats, zero but for those given.
class SparseDeltas final : public DeltaSource {
 public:
  explicit SparseDeltas(uint64_t n)
      : n_(n),
        memory_(mmap(nullptr, n * sizeof(float), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(memory_, MAP_FAILED);
    madvise(memory_, n * sizeof(float), MADV_HUGEPAGE);
  }
  ~SparseDeltas() override { munmap(memory_, n_ * sizeof(float)); }
  float& operator[](uint64_t i) { return static_cast<float*>(memory_)[i]; }
  absl::StatusOr<std::span<const float>> Floats(uint32_t) override {
    return std::span<const float>(static_cast<const float*>(memory_), n_);
  }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t) override {
    return std::span<const int64_t>();
  }

 private:
  const uint64_t n_;
  void* const memory_;
};

constexpr char kTopK[] = "topk";
constexpr char kZeros[] = "fp32 | zeros";

constexpr uint64_t kBoundaries[] = {1 << 16, uint64_t{1} << 31, uint64_t{1} << 32};

// Elements on both sides of each boundary, in tiles of every kind that places are written in: the
// tile that ends there is seven tenths full (a bitmap), the one that begins there has runs far
// apart (StreamVByte), and others have single elements (Golomb-Rice).
std::map<uint64_t, float> Elements(uint64_t n) {
  std::map<uint64_t, float> elements;
  const auto add = [&](uint64_t i) {
    if (i < n) elements[i] = 0.5f + static_cast<float>(i % 1009);
  };
  for (const uint64_t boundary : kBoundaries) {
    for (uint64_t i = 0; i < kTileElements; ++i) {
      if ((i + 3) % 10 < 7 || i + 1 == kTileElements) add(boundary - kTileElements + i);
    }
    for (uint64_t run = boundary; run < boundary + kTileElements; run += 1500) {
      for (uint64_t i = run; i < run + 40; ++i) add(i);
    }
  }
  for (const uint64_t i : {uint64_t{0}, uint64_t{17}, n - 1}) add(i);
  return elements;
}

// How the places of a top-k payload with float32 values are written: the tags that occur, 16 being
// StreamVByte (docs/wire-format.md).
void AddTags(std::span<const uint8_t> payload, uint64_t tiles, std::set<uint32_t>* tags) {
  for (; tiles > 0; --tiles) {
    uint32_t word;
    std::memcpy(&word, payload.data(), sizeof word);
    uint32_t bytes = word >> 15 & 0x1FFF, tag = word >> 28;
    if (tag == 0 && bytes > 4096) {
      bytes -= 4096;
      tag = 16;
    }
    if (word != 0) tags->insert(tag);
    payload = payload.subspan(word == 0 ? 4 : 4 + bytes + 4 * ((word & 0x7FFF) + 1));
  }
}

// Every element that the segments give, by place; only tiles with something in them are folded.
void ExpectPlaces(uint64_t n, std::string spec) {
  const auto layout = testing::MakeLayout({{"w", {n, 1}, DType::kF32, Policy::kMean}});
  SparseDeltas deltas(n);
  const std::map<uint64_t, float> expected = Elements(n);
  std::set<uint32_t> tags;
  for (const auto& [i, v] : expected) deltas[i] = v;
  if (spec == kTopK) {
    // Just those: with more asked for than there are, every zero is looked at closely.
    spec = absl::StrFormat("topk(%.17g)",
                           (static_cast<double>(expected.size()) + 0.2) / static_cast<double>(n));
  }
  const auto policy = compression::CodecPolicy::Parse(spec);
  ASSERT_TRUE(policy.ok()) << policy.status();
  std::map<uint64_t, float> found;
  uint64_t next = 0;
  std::vector<int64_t> sums(kTileElements);
  const absl::Status status =
      EncodeUpdate(*layout, **policy, {1, 2}, 1, deltas, [&](const std::vector<uint8_t>& segment) {
        const PiecedBytes bytes{ByteSpan(segment)};
        ByteCursor cursor(bytes);
        const auto header = *compression::ReadSegmentHeader(&cursor);
        EXPECT_EQ(header.first, next);
        next += header.count;
        const auto codec = *compression::CodecFromHeader(header.codec, header.parameter);
        const PiecedBytes payload{ByteSpan(segment).subspan(SegmentHeader::kBytes)};
        EXPECT_TRUE(codec->Validate(payload, header.count, 4096).ok());
        if (header.codec == static_cast<uint16_t>(compression::CodecId::kTopK)) {
          AddTags(ByteSpan(segment).subspan(SegmentHeader::kBytes),
                  (header.count + kTileElements - 1) / kTileElements, &tags);
        }
        if (expected.lower_bound(header.first) == expected.lower_bound(next)) {
          EXPECT_LE(payload.size(), 8 + 4 * (header.count / kTileElements + 1) + 12 + 128) << next;
          return absl::OkStatus();  // no element of it
        }
        for (uint64_t at = 0; at < header.count; at += kTileElements) {
          const uint64_t count = std::min(kTileElements, header.count - at);
          std::fill(sums.begin(), sums.end(), 0);
          codec->Fold(payload, at, count, {.fraction_bits = 30, .weight = 1}, sums.data());
          for (uint64_t i = 0; i < count; ++i) {
            if (sums[i] == 0) continue;
            found[header.first + at + i] = static_cast<float>(GridMean(sums[i], 1, 30));
          }
        }
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(next, n);
  EXPECT_TRUE(found == expected) << n << " elements, " << spec << ": " << found.size()
                                 << " found of " << expected.size();
  if (spec == kZeros) return;
  EXPECT_TRUE(tags.contains(15)) << "a bitmap";
  if (n >= (1 << 16) + kTileElements) {
    EXPECT_TRUE(tags.contains(16)) << "StreamVByte";
  }
  EXPECT_TRUE(std::any_of(tags.begin(), tags.end(), [](uint32_t t) { return t < 15; })) << "Rice";
}

constexpr uint64_t kStride = 10'000;  // the last stratum of a tile reaches beyond its end
constexpr uint64_t kSharedKey = 2;

// What a tile of a randk segment should fold to: by docs/wire-format.md, from the key and the
// tile's number within the segment. x(i) is the tile's element i.
template <class X>
std::vector<int64_t> MaskedTile(uint64_t key, uint64_t tile, uint64_t length, X x) {
  std::vector<int64_t> sums(length);
  const PhiloxBlock words = Philox4x32(key, {0, static_cast<uint32_t>(tile), 0, 0});
  for (uint64_t j = 0; j * kStride < length; ++j) {
    const uint64_t place = j * kStride + (words[j] * kStride >> 32);
    if (place < length) sums[place] = std::llrint(std::ldexp(kStride * double{x(place)}, 30));
  }
  return sums;
}

// The elements that a shared mask keeps are those that the document says, whatever the indices.
void ExpectMaskedPlaces(uint64_t n) {
  const auto layout = testing::MakeLayout({{"w", {n, 1}, DType::kF32, Policy::kMean}});
  SparseDeltas deltas(n);
  std::set<uint64_t> tiles = {0, (n - 1) / kTileElements};
  for (const uint64_t boundary : kBoundaries) {
    for (const uint64_t i : {boundary - 1, boundary}) {
      if (i < n) tiles.insert(i / kTileElements);
    }
  }
  for (const uint64_t tile : tiles) {
    for (uint64_t i = tile * kTileElements; i < std::min(n, (tile + 1) * kTileElements); ++i) {
      deltas[i] = static_cast<float>(1 + i % 4093) / 4096;
    }
  }
  const auto policy = compression::CodecPolicy::Parse("randk(0.0001)");
  ASSERT_TRUE(policy.ok()) << policy.status();
  uint64_t next = 0;
  size_t seen = 0;
  const absl::Status status = EncodeUpdate(
      *layout, **policy, {1, kSharedKey}, /*round=*/1, deltas,
      [&](const std::vector<uint8_t>& segment) {
        const PiecedBytes bytes{ByteSpan(segment)};
        ByteCursor cursor(bytes);
        const auto header = *compression::ReadSegmentHeader(&cursor);
        EXPECT_EQ(header.first, next);
        next += header.count;
        const auto codec = *compression::CodecFromHeader(header.codec, header.parameter);
        const PiecedBytes payload{ByteSpan(segment).subspan(SegmentHeader::kBytes)};
        EXPECT_TRUE(codec->Validate(payload, header.count, 1 << 20).ok());
        const uint64_t first_tile = header.first / kTileElements;
        const PhiloxBlock words =
            Philox4x32(kSharedKey, {static_cast<uint32_t>(first_tile), 0, /*tensor=*/0, 1});
        uint64_t key;
        std::memcpy(&key, segment.data() + SegmentHeader::kBytes, sizeof key);
        EXPECT_EQ(key, words[0] | uint64_t{words[1]} << 32) << header.first;
        for (const uint64_t tile : tiles) {
          const uint64_t at = tile * kTileElements;
          if (at < header.first || at >= next) continue;
          std::vector<int64_t> sums(std::min(kTileElements, n - at));
          codec->Fold(payload, at - header.first, sums.size(), {.fraction_bits = 30}, sums.data());
          EXPECT_EQ(sums, MaskedTile(key, tile - first_tile, sums.size(),
                                     [&](uint64_t i) { return deltas[at + i]; }))
              << "tile " << tile;
          ++seen;
        }
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(next, n);
  EXPECT_EQ(seen, tiles.size());
}

void ExpectAll(uint64_t n) {
  for (const char* spec : {kTopK, kZeros}) ExpectPlaces(n, spec);
  ExpectMaskedPlaces(n);
}

TEST(Index, OfSixteenBitsAndOneMore) {
  ExpectAll(uint64_t{1} << 16);
  ExpectAll((uint64_t{1} << 16) + 1);
}

TEST(Index, OfThirtyOneBits) { ExpectAll(uint64_t{1} << 31); }

TEST(Index, OfThirtyTwoBitsAndOneMore) { ExpectAll((uint64_t{1} << 32) + 1); }

}  // namespace
}  // namespace tributary::aggregation
