// The golden files of tests/golden/codecs, which tests/reference/codecs.py made: encoded, decoded,
// folded.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "codec_testing.h"
#include "compression/segment.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

// As in codecs.py.
constexpr EncodeContext kContext{.key = 0x0123456789ABCDEF,
                                 .round = 11,
                                 .tensor = 7,
                                 .first = 3 * kTileElements + (uint64_t{1} << 37),
                                 .shared_key = 0xFEDCBA9876543210};
constexpr int64_t kWeight = 1000003;

std::vector<uint8_t> ReadFile(const std::string& name) {
  std::ifstream in(std::string(TRIBUTARY_SOURCE_DIR) + "/tests/golden/codecs/" + name + ".bin",
                   std::ios::binary);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

template <class T>
std::vector<T> As(const std::vector<uint8_t>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

void ExpectGolden(const std::vector<float>& x,
                  std::span<const std::pair<const char*, const char*>> files) {
  for (const auto& [file, spec] : files) {
    const auto codec = Make(spec);
    const std::vector<uint8_t> golden = ReadFile(file);
    const auto expected = ReadFile(std::string(file) + ".decoded");
    const auto sums = As<int64_t>(ReadFile(std::string(file) + ".fold"));
    ASSERT_EQ(sums.size(), x.size());
    ForEachTarget([&](const std::string&) {
      SCOPED_TRACE(spec);
      EXPECT_EQ(Encode(*codec, x, kContext), golden);
      const PiecedBytes pieced{ByteSpan(golden)};
      EXPECT_EQ(codec->Validate(pieced, x.size(), 1 << 16), absl::OkStatus());
      std::vector<float> decoded(x.size());
      codec->Decode(pieced, decoded);
      // As numbers: the reference's fractions know no negative zero.
      EXPECT_EQ(decoded, As<float>(expected));
      std::vector<int64_t> acc(x.size());
      codec->Fold(pieced, 0, x.size(), {.fraction_bits = 30, .weight = kWeight}, acc.data());
      EXPECT_EQ(acc, sums);
    });
  }
}

TEST(Golden, EveryTargetEncodesDecodesAndFoldsWhatTheReferenceWrote) {
  const std::vector<float> x = As<float>(ReadFile("input.f32"));
  ASSERT_EQ(x.size(), 600u);
  const std::pair<const char*, const char*> files[] = {
      {"fp32", "fp32"},
      {"fp16", "fp16"},
      {"bf16", "bf16"},
      {"int8_stochastic_128", "int8"},
      {"int8_nearest_16", "int8(block=16,rounding=nearest)"},
      {"int4_stochastic_128", "int4"},
      {"int4_nearest_16", "int4(block=16, rounding=nearest)"},
      {"int2_stochastic_64", "int2(block=64)"},
      {"sign_128", "sign(block=128)"},
      {"sign_vote_6", "sign(mode=vote, step=2^-6)"},
      {"fp8_e4m3_128", "fp8"},
      {"fp8_e5m2_64", "fp8(format=e5m2, block=64)"},
      {"mxfp8_e4m3", "mxfp8"},
      {"mxfp8_e5m2", "mxfp8(format=e5m2)"},
      {"mxfp4", "mxfp4"},
      {"mxint8", "mxint8"},
      {"hq_8_12", "hq"},
      {"hq_4_8_nearest", "hq(bits=4, step=2^-8, rounding=nearest)"},
      {"topk_fp32", "topk(0.1)"},
      {"topk_fp16", "topk(0.5, values=fp16)"},
      {"topk_int8", "topk(0.01, values=int8)"},
      {"topk_ternary", "topk(0.05, values=ternary)"},
      {"randk_fp32_10", "randk(0.1)"},
      {"randk_fp16_50_unscaled", "randk(0.02, values=fp16, scaled=no)"},
      {"eden_1", "eden(bits=1)"},
      {"eden_2_64", "eden(bits=2, block=64)"},
      {"eden_3", "eden(bits=3, block=256)"},
      {"eden_4", "eden"},
      {"powersgd_2", "powersgd"},
      {"powersgd_5", "powersgd(rank=5)"}};
  ExpectGolden(x, files);
}

// Inputs of several thousand elements: runs of neighbours, zeros between, cells of sketches.
TEST(Golden, LongerOnesToo) {
  std::vector<float> x = As<float>(ReadFile("long_input.f32"));
  ASSERT_EQ(x.size(), 4200u);
  const std::pair<const char*, const char*> files[] = {
      {"long_topk_stream_vbyte", "topk(0.0286, values=ternary)"},  // 120 of them
      {"long_sketch_5", "sketch(0.2)"},
      {"long_sketch_1", "sketch(0.25, rows=1)"},
      {"long_zeros_int4", "int4(block=64, rounding=nearest) | zeros"}};
  ExpectGolden(x, files);
  // Too few for cells, and more than a whole tile of this form has.
  const std::pair<const char*, const char*> short_files[] = {
      {"short_sketch_3", "sketch(0.02, rows=3)"}};
  x.resize(1000);
  ExpectGolden(x, short_files);
}

// Compressed bytes are the writer's choice: those of a writer of plain blocks and those of a
// library are read alike on every target, and ours have the same head and hold the same.
TEST(Golden, CompressedPayloadsOfOtherWritersAreReadAndOursHoldTheSame) {
  const std::vector<float> x = As<float>(ReadFile("long_input.f32"));
  const std::pair<const char*, const char*> files[] = {
      {"long_zstd_int4", "int4(block=64, rounding=nearest) | zstd"},
      {"long_lz4_fp16", "fp16 | lz4"},
      {"long_zeros_lz4_int4", "int4(block=64, rounding=nearest) | zeros | lz4"},
      {"library_zstd_int4", "int4(block=64, rounding=nearest) | zstd"},
      {"library_zstd19_fp32", "fp32 | zstd(level=19)"},
      {"library_lz4_fp16", "fp16 | lz4"}};
  for (const auto& [file, spec] : files) {
    const auto codec = Make(spec);
    const std::vector<uint8_t> golden = ReadFile(file);
    const auto expected = As<float>(ReadFile(std::string(file) + ".decoded"));
    const auto sums = As<int64_t>(ReadFile(std::string(file) + ".fold"));
    ASSERT_EQ(sums.size(), x.size());
    ForEachTarget([&](const std::string&) {
      SCOPED_TRACE(file);
      const std::vector<uint8_t> ours = Encode(*codec, x, kContext);
      constexpr size_t kHeadBytes = 12;
      ASSERT_GT(std::min(ours.size(), golden.size()), kHeadBytes);
      EXPECT_EQ(std::memcmp(ours.data(), golden.data(), kHeadBytes), 0);
      for (const std::vector<uint8_t>& payload : {golden, ours}) {
        const PiecedBytes pieced{ByteSpan(payload)};
        EXPECT_EQ(codec->Validate(pieced, x.size(), 1 << 16), absl::OkStatus());
        std::vector<float> decoded(x.size());
        codec->Decode(pieced, decoded);
        EXPECT_EQ(decoded, expected);
        std::vector<int64_t> acc(x.size());
        codec->Fold(pieced, 0, x.size(), {.fraction_bits = 30, .weight = kWeight}, acc.data());
        EXPECT_EQ(acc, sums);
      }
    });
  }
}

TEST(Golden, RawInt64EncodesAndFolds) {
  const std::vector<uint8_t> golden = ReadFile("int64");
  const std::vector<int64_t> x = As<int64_t>(golden);
  std::vector<uint8_t> encoded;
  EncodeRawInt64(x, &encoded);
  EXPECT_EQ(encoded, golden);
  std::vector<int64_t> acc(x.size());
  FoldRawInt64(PiecedBytes(ByteSpan(golden)), 0, x.size(), kWeight, acc.data());
  EXPECT_EQ(acc, As<int64_t>(ReadFile("int64.fold")));
}

TEST(Golden, SegmentHeaderIsWrittenAndRead) {
  const std::vector<uint8_t> golden = ReadFile("segment_header");
  const SegmentHeader header{.tensor = kContext.tensor,
                             .codec = static_cast<uint16_t>(CodecId::kInt8),
                             .version = 1,
                             .parameter = 128,
                             .payload_bytes = 620,
                             .first = kContext.first,
                             .count = 600};
  std::vector<uint8_t> written(SegmentHeader::kBytes);
  WriteSegmentHeader(header, written.data());
  EXPECT_EQ(written, golden);
  const PiecedBytes pieced{ByteSpan(golden)};
  ByteCursor cursor(pieced);
  const auto read = ReadSegmentHeader(&cursor);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->first, kContext.first);
  EXPECT_EQ(read->count, 600u);
}

}  // namespace
}  // namespace tributary::compression
