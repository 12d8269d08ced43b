// Updates of every codec through the assembler and the accumulator: variable lengths, stages,
// rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "aggregation/update.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

const char* const kSpecs[] = {"fp32",
                              "int8",
                              "int4",
                              "int2; small = int8",
                              "sign; small = sign",
                              "sign(mode=vote, step=2^-10)",
                              "topk(0.01)",
                              "topk(0.01, values=ternary); small = topk(0.1, values=int8)",
                              "topk(0.2, values=fp16) | zstd",
                              "fp8",
                              "mxfp8(format=e5m2)",
                              "mxfp4 | lz4",
                              "mxint8",
                              "randk(0.01)",
                              "eden(bits=1)",
                              "eden(bits=3); small = eden",
                              "hq",
                              "powersgd",
                              "powersgd(rank=6); small = powersgd(rank=1)",
                              "fp32 | zeros | zstd; small = int8 | zeros",
                              "int8 | ef | zstd; *bias = fp16"};

testing::LayoutPtr Layout() {
  return testing::MakeLayout({{"w", {700, 1000}, DType::kF32, Policy::kMean},
                              {"count", {5}, DType::kI64, Policy::kSum},
                              {"w2", {4097}, DType::kF16, Policy::kMean},
                              {"bias", {300}, DType::kF32, Policy::kMean},
                              {"one", {}, DType::kF32, Policy::kMean}});
}

testing::Recorded Encoded(const ModelLayout& layout, const std::string& spec, uint64_t seed) {
  const auto policy = compression::CodecPolicy::Parse(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  testing::GivenDeltas deltas = testing::RandomDeltas(layout, seed);
  testing::Recorded recorded;
  recorded.id = std::to_string(seed);
  recorded.weight = static_cast<int64_t>(seed) + 3;
  const absl::Status status =
      EncodeUpdate(layout, **policy, {seed, 9}, 1, deltas, [&](std::vector<uint8_t> segment) {
        recorded.segments.push_back(std::move(segment));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return recorded;
}

// Whole segments, folded at once into the place that the header says.
void FoldWhole(const ModelLayout& layout, const Grid& grid, const testing::Recorded& recorded,
               std::vector<int64_t>* sums) {
  for (const std::vector<uint8_t>& segment : recorded.segments) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    const auto header = *compression::ReadSegmentHeader(&cursor);
    const PiecedBytes payload{ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)};
    int64_t* to = sums->data() + layout.TensorElementOffset(header.tensor) + header.first;
    if (header.codec == 1) {
      compression::FoldRawInt64(payload, 0, header.count, 1, to);
      continue;
    }
    const auto codec = compression::CodecFromHeader(header.codec, header.parameter);
    ASSERT_TRUE(codec.ok()) << codec.status();
    (*codec)->Fold(payload, 0, header.count, {grid.fraction_bits, recorded.weight}, to);
  }
}

TEST(Codecs, EveryOneFoldsTileByTileFromAnySlicesAsItDoesWhole) {
  const auto layout = Layout();
  const Grid grid;
  for (const char* spec : kSpecs) {
    const auto sum = testing::MakeAccumulator(layout, grid);
    std::vector<int64_t> expected(layout->elements());
    std::vector<testing::UpdatePtr> updates;
    for (uint64_t client = 1; client <= 3; ++client) {
      const testing::Recorded recorded = Encoded(*layout, spec, client);
      EXPECT_LE(recorded.size(), MaxEncodedBytes(*layout)) << spec;
      updates.push_back(testing::Assemble(layout, grid, recorded, client == 2 ? 77 : 0));
      FoldWhole(*layout, grid, recorded, &expected);
    }
    testing::FoldAll(sum.get(), updates);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sum->sums().begin())) << spec;
    // And taken out again, nothing is left; by ranges that begin and end within segments.
    for (const auto& update : updates) {
      for (const ElementRange range : sum->Split(3)) {
        ASSERT_TRUE(sum->Subtract(*update, range).ok());
      }
    }
    EXPECT_TRUE(std::all_of(sum->sums().begin(), sum->sums().end(), [](int64_t s) {
      return s == 0;
    })) << spec;
    std::vector<const EncodedUpdate*> all;
    all.reserve(updates.size());
    for (const auto& update : updates) all.push_back(update.get());
    for (const ElementRange range : sum->Split(5)) sum->Fold(all, range);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sum->sums().begin())) << spec;
    // And by ranges that begin and end within tiles: a tile is folded where it begins.
    sum->Reset();
    for (uint64_t begin = 0; begin < expected.size(); begin += 100'003) {
      sum->Fold(all, {begin, std::min<uint64_t>(begin + 100'003, expected.size())});
    }
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sum->sums().begin())) << spec;
  }
}

TEST(Codecs, ATinyModelStillFitsWhatAnUpdateMayDeclare) {
  const auto layout = testing::MakeLayout({{"a", {1}}, {"b", {2}}, {"c", {17}}, {"d", {513}}});
  for (const char* spec :
       {"topk(1); small = topk(1)", "topk(1, values=int8); small=topk(1, values=int8)",
        "eden; small = eden", "randk(0.5); small = randk(0.5)", "fp32 | zstd; small = fp32 | zstd",
        "mxfp4; small = mxfp4"}) {
    const testing::Recorded recorded = Encoded(*layout, spec, 1);
    EXPECT_LE(recorded.size(), MaxEncodedBytes(*layout)) << spec;
    EXPECT_NE(testing::Assemble(layout, Grid(), recorded), nullptr);
  }
}

// A warm-up may begin with all elements: places must not make that more than the floats.
TEST(Codecs, TopKOfNearlyAllElementsStillFitsWhatAnUpdateMayDeclare) {
  const auto layout = testing::MakeLayout({{"w", {3, 70'000}}, {"b", {20}}});
  for (const char* spec :
       {"topk(1)", "topk(0.99) | zstd", "topk(0.97, across=model)", "topk(0.9, values=fp16)",
        "topk(0.01, warmup=4, from=1)", "topk(0.01, across=model, warmup=4, from=1)"}) {
    const testing::Recorded recorded = Encoded(*layout, spec, 1);
    EXPECT_LE(recorded.size(), MaxEncodedBytes(*layout)) << spec;
    EXPECT_NE(testing::Assemble(layout, Grid(), recorded), nullptr);
  }
}

TEST(Codecs, TopKKeepsTheWholeTensorsLargestAcrossSegments) {
  const auto layout = testing::MakeLayout({{"w", {2, 500'000}}});
  const testing::Recorded recorded = Encoded(*layout, "topk(0.001)", 5);
  ASSERT_GE(recorded.segments.size(), 2u);
  std::vector<int64_t> sums(layout->elements());
  FoldWhole(*layout, Grid(), recorded, &sums);
  testing::GivenDeltas deltas = testing::RandomDeltas(*layout, 5);
  std::vector<float> magnitudes;
  for (const float v : deltas.floats[0]) magnitudes.push_back(std::abs(v));
  std::nth_element(magnitudes.begin(), magnitudes.begin() + 999, magnitudes.end(),
                   std::greater<>());
  int kept = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    kept += sums[i] != 0 ? 1 : 0;
    const float magnitude = std::abs(deltas.floats[0][i]);
    if (magnitude != magnitudes[999]) {
      EXPECT_EQ(sums[i] != 0, magnitude > magnitudes[999]) << i;
    }
  }
  EXPECT_EQ(kept, 1000);
}

// Indices beyond 32 bits: a segment near the end of a huge tensor, whose sums are never allocated.
TEST(Codecs, PlacesInHugeTensorsAreCountedWithSixtyFourBits) {
  for (const uint64_t first : {uint64_t{1} << 16, uint64_t{1} << 31, uint64_t{1} << 32}) {
    for (const char* spec :
         {"topk(0.01)", "eden", "randk(0.01)", "int4", "powersgd", "int8 | zeros"}) {
      const auto codec = compression::MakeCodec(spec);
      std::vector<float> x(compression::kTileElements + 1), back(x.size());
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1000) / 4000;
      std::vector<uint8_t> here, there;
      ASSERT_TRUE((*codec)->Encode(x, {.key = 1, .first = first}, &here).ok());
      ASSERT_TRUE((*codec)->Encode(x, {.key = 1, .first = 0}, &there).ok());
      const bool random = !(*codec)->capabilities().deterministic;
      EXPECT_EQ(here != there, random) << spec << ": other numbers for other elements";
      ASSERT_TRUE((*codec)->Validate(PiecedBytes(ByteSpan(here)), x.size(), 4096).ok());
      (*codec)->Decode(PiecedBytes(ByteSpan(here)), back);
      EXPECT_TRUE(std::isfinite(back.back()));
    }
  }
}

}  // namespace
}  // namespace tributary::aggregation
