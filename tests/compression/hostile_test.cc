// Payloads as a hostile sender writes them: scales, codes and values that are no numbers, steps
// beyond the bound, bits where nothing is, and stages that hold something else than they say.
#include <zstd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "codec_testing.h"
#include "compression/internal/scalar.h"
#include "compression/internal/stage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kBound = 4096;

absl::Status Verdict(const Codec& codec, const std::vector<uint8_t>& payload, uint64_t n,
                     double bound = kBound) {
  const absl::Status whole = codec.Validate(PiecedBytes(ByteSpan(payload)), n, bound);
  EXPECT_EQ(codec.Validate(CutBytes(payload, n, 9).bytes(), n, bound), whole) << "in pieces";
  return whole;
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& what) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

// Of every codec that puts a float32 in front of a block: `largest` is what it is multiplied by.
struct Scaled {
  const char* spec;
  uint64_t block;
  size_t head;
  double largest;
};

TEST(Hostile, ScalesOfEveryBlockFormatMustBeFiniteNotNegativeAndWithinTheBound) {
  const Scaled rows[] = {{"int8(block=64)", 64, 0, 128},
                         {"int4(block=64)", 64, 0, 8},
                         {"int2(block=64)", 64, 0, 2},
                         {"sign(block=64)", 64, 0, 1},
                         {"fp8(block=64)", 64, 0, 448},
                         {"fp8(format=e5m2, block=64)", 64, 0, 57344},
                         // Of a block of zero codes: all levels are the smallest, and one element
                         // of the rotated block is their sum.
                         {"eden(bits=1, block=64)", 64, 8, 64},
                         {"eden(bits=2, block=64)", 64, 8, 64 * 38},
                         {"eden(bits=3, block=64)", 64, 8, 64 * 14},
                         {"eden(bits=4, block=64)", 64, 8, 64 * 6}};
  constexpr uint64_t kElements = 5 * 64 + 3;
  for (const Scaled& row : rows) {
    const auto codec = Make(row.spec);
    const std::vector<uint8_t> good(codec->EncodedBytes(kElements));
    ASSERT_EQ(Verdict(*codec, good, kElements), absl::OkStatus()) << row.spec;
    const size_t width = codec->EncodedBytes(2 * row.block) - codec->EncodedBytes(row.block);
    for (const size_t block : {0, 3, 4}) {
      const auto with = [&](float scale) {
        std::vector<uint8_t> payload = good;
        StoreLe(scale, payload.data() + row.head + block * width);
        return Verdict(*codec, payload, kElements);
      };
      SCOPED_TRACE(std::string(row.spec) + ", block " + std::to_string(block));
      const std::string name = "block " + std::to_string(block);
      for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        ExpectRefused(with(bad), absl::StatusCode::kDataLoss, name);
      }
      for (const float bad : {-0.0f, -1e-45f, -1.0f}) {
        ExpectRefused(with(bad), absl::StatusCode::kInvalidArgument, name);
      }
      const auto most = static_cast<float>(kBound / row.largest);
      const float fits = most * row.largest <= kBound ? most : std::nextafter(most, 0.0f);
      EXPECT_EQ(with(fits), absl::OkStatus());
      for (const float bad : {std::nextafter(fits, kInfinity), 0x1.fffffep127f}) {
        ExpectRefused(with(bad), absl::StatusCode::kOutOfRange, name);
      }
    }
  }
}

TEST(Hostile, ExponentsOfMxBlocksMustBeNumbersAndWithinTheBound) {
  // The largest e with 2^(e - 127) times the largest code within 4,096.
  const std::pair<const char*, int> rows[] = {{"mxfp8", 127 + 3},  // 448 * 8 = 3584
                                              {"mxfp8(format=e5m2)", 127 - 4},
                                              {"mxfp4", 127 + 9},
                                              {"mxint8", 127 + 11}};
  for (const auto& [spec, most] : rows) {
    const auto codec = Make(spec);
    std::vector<uint8_t> payload(codec->EncodedBytes(70));
    const size_t at = codec->EncodedBytes(32);
    const auto with = [&, &spec = spec](int e) {
      SCOPED_TRACE(spec);
      payload[at] = static_cast<uint8_t>(e);
      return Verdict(*codec, payload, 70);
    };
    EXPECT_EQ(with(0), absl::OkStatus());
    EXPECT_EQ(with(most), absl::OkStatus()) << spec;
    ExpectRefused(with(most + 1), absl::StatusCode::kOutOfRange, "block 1");
    ExpectRefused(with(254), absl::StatusCode::kOutOfRange, "block 1");
    ExpectRefused(with(255), absl::StatusCode::kDataLoss, "block 1");
  }
}

TEST(Hostile, CodesOfEightBitFloatsMustBeNumbers) {
  struct Row {
    const char* spec;
    uint8_t largest;  // code
    size_t head;      // bytes before the codes
  };
  for (const Row& row : {Row{"fp8", 0x7E, 4}, Row{"fp8(format=e5m2)", 0x7B, 4},
                         Row{"mxfp8", 0x7E, 1}, Row{"mxfp8(format=e5m2)", 0x7B, 1}}) {
    const auto codec = Make(row.spec);
    for (const size_t at : {size_t{0}, size_t{17}, size_t{29}}) {
      std::vector<uint8_t> payload(codec->EncodedBytes(30));
      for (int code = 0; code < 256; ++code) {
        payload[row.head + at] = static_cast<uint8_t>(code);
        const absl::Status verdict = Verdict(*codec, payload, 30);
        if ((code & 0x7F) <= row.largest) {
          EXPECT_EQ(verdict, absl::OkStatus()) << row.spec << " " << code;
        } else {
          ExpectRefused(verdict, absl::StatusCode::kDataLoss, "not a number");
        }
      }
    }
  }
}

TEST(Hostile, StepsThatARunSharesMustBeWithinTheBound) {
  // A step of 1, and what its largest code stands for.
  const std::pair<const char*, double> rows[] = {{"hq(bits=8, step=2^-0)", 128},
                                                 {"hq(bits=4, step=2^-0)", 8},
                                                 {"sign(mode=vote, step=2^-0)", 1}};
  for (const auto& [spec, largest] : rows) {
    const auto codec = Make(spec);
    const std::vector<uint8_t> payload(codec->EncodedBytes(100));
    EXPECT_EQ(Verdict(*codec, payload, 100, largest), absl::OkStatus()) << spec;
    ExpectRefused(Verdict(*codec, payload, 100, largest / 2), absl::StatusCode::kOutOfRange,
                  "beyond the bound");
  }
}

TEST(Hostile, BitsAfterTheLastCodeMustBeZero) {
  for (const char* spec :
       {"int4(block=64)", "int2(block=64)", "sign(block=64)", "sign(mode=vote, step=2^-10)",
        "hq(bits=4, step=2^-8)", "mxfp4", "topk(1, values=ternary)"}) {
    const auto codec = Make(spec);
    const std::vector<float> x(129, 0.25f);
    const std::vector<uint8_t> good = Encode(*codec, x);
    ASSERT_EQ(Verdict(*codec, good, 129), absl::OkStatus()) << spec;
    std::vector<uint8_t> payload = good;
    payload.back() |= 0x80;
    ExpectRefused(Verdict(*codec, payload, 129), absl::StatusCode::kInvalidArgument,
                  "after the last");
  }
}

TEST(Hostile, ValuesOfRandomKMustBeNumbersAndWithinTheBoundOnceScaled) {
  struct Row {
    const char* spec;
    double factor;
  };
  for (const Row& row : {Row{"randk(0.25)", 4}, Row{"randk(0.25, scaled=no)", 1}}) {
    const auto codec = Make(row.spec);
    const std::vector<uint8_t> good(codec->EncodedBytes(103));
    for (const size_t j : {size_t{0}, size_t{12}, size_t{25}}) {
      const auto with = [&](float value) {
        std::vector<uint8_t> payload = good;
        StoreLe(value, payload.data() + 8 + 4 * j);
        return Verdict(*codec, payload, 103);
      };
      const std::string name = "value " + std::to_string(j) + " ";
      const auto most = static_cast<float>(kBound / row.factor);
      for (const float sign : {1.0f, -1.0f}) {
        EXPECT_EQ(with(sign * most), absl::OkStatus());
        ExpectRefused(with(sign * std::nextafter(most, kInfinity)), absl::StatusCode::kOutOfRange,
                      name);
        ExpectRefused(with(sign * kInfinity), absl::StatusCode::kDataLoss, name);
        ExpectRefused(with(sign * kNan), absl::StatusCode::kDataLoss, name);
      }
    }
  }
  const auto half = Make("randk(0.25, values=fp16)");
  std::vector<uint8_t> payload(half->EncodedBytes(103));
  for (const uint16_t bits : {0x7C00, 0xFC00, 0x7E00, 0x7C01}) {
    StoreLe(bits, payload.data() + 8 + 2 * 25);
    ExpectRefused(Verdict(*half, payload, 103), absl::StatusCode::kDataLoss, "value 25 ");
  }
}

// ---- Stages

std::vector<uint8_t> Staged(CodecId inner, uint32_t parameter, size_t plain,
                            const std::vector<uint8_t>& body) {
  std::vector<uint8_t> payload(kStageHeadBytes);
  StoreLe(static_cast<uint16_t>(inner), payload.data());
  StoreLe(parameter, payload.data() + 4);
  StoreLe(static_cast<uint32_t>(plain), payload.data() + 8);
  payload.insert(payload.end(), body.begin(), body.end());
  return payload;
}

std::vector<uint8_t> Frame(ByteSpan plain) {
  std::vector<uint8_t> frame(ZSTD_compressBound(plain.size()));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), plain.data(), plain.size(), 1));
  return frame;
}

std::vector<uint8_t> operator+(std::vector<uint8_t> a, const std::vector<uint8_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Or two readers of the document would not agree on what is a payload: one decoder takes frames one
// after the other, another the first alone.
TEST(Hostile, ZstdIsOneFrameWithNothingBesideIt) {
  const auto codec = Make("fp32 | zstd");
  const std::vector<uint8_t> plain(4 * 500, 0);
  const std::vector<uint8_t> one = Frame(plain);
  const std::vector<uint8_t> empty = Frame({});
  const std::vector<uint8_t> skippable = {0x50, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 'h', 'i'};
  const auto half = ByteSpan(plain).first(1000);
  const auto verdict = [&](const std::vector<uint8_t>& body) {
    return Verdict(*codec, Staged(CodecId::kFp32, 0, plain.size(), body), 500);
  };
  EXPECT_EQ(verdict(one), absl::OkStatus());
  for (const auto& bad : {Frame(half) + Frame(half), one + empty, empty + one, one + skippable,
                          skippable + one, one + std::vector<uint8_t>{0}, skippable, empty}) {
    ExpectRefused(verdict(bad), absl::StatusCode::kInvalidArgument, "do not decompress");
  }
  // Magic numbers of the formats before 0.8, whose decoders the library may still have.
  for (uint8_t version = 0x22; version < 0x28; ++version) {
    std::vector<uint8_t> old = one;
    old[0] = version;
    old[1] = 0xB5;
    ExpectRefused(verdict(old), absl::StatusCode::kInvalidArgument, "do not decompress");
  }
}

TEST(Hostile, WhatAStageClaimsIsHeldAgainstItsElementsBeforeItIsDecompressed) {
  const std::vector<uint8_t> garbage(40, 7);
  struct Row {
    CodecId inner;
    uint32_t parameter;
    size_t plain;  // of a hundred elements
  };
  for (const char* spec : {"fp32 | zstd", "fp32 | lz4"}) {
    const auto codec = Make(spec);
    for (const Row& row :
         {Row{CodecId::kFp32, 0, 400}, Row{CodecId::kBf16, 0, 200}, Row{CodecId::kInt8, 64, 108},
          Row{CodecId::kInt4, 64, 58}, Row{CodecId::kRandK, 4, 8 + 4 * 25},
          Row{CodecId::kEden, 64 | 1 << 16, 8 + 2 * 12}, Row{CodecId::kHq, 8, 100}}) {
      const auto verdict = [&](size_t plain) {
        return Verdict(*codec, Staged(row.inner, row.parameter, plain, garbage), 100);
      };
      // The right length alone is looked into.
      ExpectRefused(verdict(row.plain), absl::StatusCode::kInvalidArgument, "do not decompress");
      for (const size_t plain : {size_t{0}, row.plain - 1, row.plain + 1, size_t{1} << 20}) {
        ExpectRefused(verdict(plain), absl::StatusCode::kInvalidArgument, "which take ");
      }
    }
  }
}

TEST(Hostile, AStageOfNoElementHasNoByte) {
  for (const char* spec : {"fp32 | zstd", "fp32 | lz4", "fp32 | zeros"}) {
    const auto codec = Make(spec);
    EXPECT_EQ(Verdict(*codec, {}, 0), absl::OkStatus());
    ExpectRefused(Verdict(*codec, {}, 1), absl::StatusCode::kInvalidArgument, "bytes do not hold");
    for (const auto& body : {Frame({}), std::vector<uint8_t>{0}}) {
      ExpectRefused(Verdict(*codec, Staged(CodecId::kFp32, 0, 0, body), 0),
                    absl::StatusCode::kInvalidArgument, "bytes do not hold");
    }
  }
}

// 1 to 32,768, and a mebibyte in all: what passes can be allocated.
TEST(Hostile, AStageGrowsByNoMoreThanItsLimits) {
  const std::vector<uint8_t> plain(1 << 20, 0);
  // Of a topk, whose length says nothing, tiles without anything in them: four bytes each.
  for (const char* spec : {"fp32 | zstd", "fp32 | lz4"}) {
    const auto codec = Make(spec);
    const auto verdict = [&](size_t claimed, size_t body) {
      return Verdict(*codec, Staged(CodecId::kTopK, 0, claimed, std::vector<uint8_t>(body)), 100);
    };
    ExpectRefused(verdict((1 << 20) + 1, 5000), absl::StatusCode::kInvalidArgument,
                  "over the limits");
    ExpectRefused(verdict(1 << 20, 19), absl::StatusCode::kInvalidArgument, "over the limits");
    ExpectRefused(verdict(1 << 20, 20), absl::StatusCode::kInvalidArgument, "do not decompress");
    ExpectRefused(verdict(13 * 32768, 0), absl::StatusCode::kInvalidArgument, "over the limits");
  }
  const std::vector<uint8_t> bomb = Frame(plain);
  ASSERT_LT(bomb.size(), 100u);
  ExpectRefused(Verdict(*Make("fp32 | zstd"), Staged(CodecId::kTopK, 0, plain.size(), bomb), 100),
                absl::StatusCode::kInvalidArgument, "left over");
}

}  // namespace
}  // namespace tributary::compression
