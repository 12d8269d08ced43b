// Elements beyond 2^31 and 2^32: sparse updates of huge tensors, whose zeros take address space and
// no memory. Only the full suite runs the two large sizes: the tensor is read several times.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>
#include <string>

#include "absl/strings/str_format.h"
#include "aggregation/update.h"
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

// Every element that the segments give, by place; only tiles with something in them are folded.
void ExpectPlaces(uint64_t n, std::string spec) {
  const auto layout = testing::MakeLayout({{"w", {n, 1}, DType::kF32, Policy::kMean}});
  SparseDeltas deltas(n);
  std::map<uint64_t, float> expected;
  for (const uint64_t i : {uint64_t{0}, uint64_t{65535}, uint64_t{65536}, (uint64_t{1} << 31) - 1,
                           uint64_t{1} << 31, (uint64_t{1} << 32) - 1, uint64_t{1} << 32, n - 1}) {
    if (i < n) expected[i] = 0.5f + static_cast<float>(expected.size());
  }
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
  EXPECT_EQ(found, expected) << n << " elements, " << spec;
}

TEST(Index, OfSixteenBitsAndOneMore) {
  for (const char* spec : {kTopK, kZeros}) {
    ExpectPlaces(uint64_t{1} << 16, spec);
    ExpectPlaces((uint64_t{1} << 16) + 1, spec);
  }
}

TEST(Index, OfThirtyOneBits) {
  for (const char* spec : {kTopK, kZeros}) ExpectPlaces(uint64_t{1} << 31, spec);
}

TEST(Index, OfThirtyTwoBitsAndOneMore) {
  for (const char* spec : {kTopK, kZeros}) ExpectPlaces((uint64_t{1} << 32) + 1, spec);
}

}  // namespace
}  // namespace tributary::aggregation
