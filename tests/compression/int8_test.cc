// int8's own promises: unbiased, nothing clamped, whole numbers kept, random numbers as documented.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/philox.h"
#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

TEST(Int8, MeanOfManyEncodingsIsWithinFourSigmaOfTheInput) {
  const auto codec = Make("int8");
  const std::vector<float> x = RandomFloats(21, 1000);
  constexpr int kEncodings = 4000;
  std::vector<double> sums(x.size()), scales(x.size());
  for (int k = 0; k < kEncodings; ++k) {
    const std::vector<uint8_t> payload =
        Encode(*codec, x, {.key = 5, .round = static_cast<uint32_t>(k), .tensor = 1});
    const std::vector<double> values = ReferenceValues({"int8", 128, true}, payload, x.size());
    for (size_t i = 0; i < x.size(); ++i) sums[i] += values[i];
  }
  double chi = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double max = 0;
    for (size_t j = i / 128 * 128; j < std::min(x.size(), i / 128 * 128 + 128); ++j) {
      max = std::max(max, std::abs(double{x[j]}));
    }
    const double scale = max / 127;
    const double position = std::abs(x[i]) / scale;
    const double fraction = position - std::floor(position);
    // A Bernoulli trial each; the last term is the resolution of 16 random bits.
    const double sigma =
        scale * std::sqrt(fraction * (1 - fraction) / kEncodings) + scale * 0x1p-16;
    const double error = sums[i] / kEncodings - x[i];
    EXPECT_LE(std::abs(error), 4 * sigma) << "element " << i << ": " << x[i];
    chi += error * error / (sigma * sigma);
  }
  // And together: the squared errors add up to what independent rounding gives.
  EXPECT_NEAR(chi / x.size(), 1.0, 4 * std::sqrt(2.0 / x.size()) + 0.05);
}

TEST(Int8, KeepsWholeMultiplesOfTheScaleWhateverTheSeed) {
  // 127 in each block makes the scale 1.
  std::vector<float> x(1280);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 31 % 255) - 127);
  for (size_t i = 0; i < x.size(); i += 128) x[i] = 127;
  for (const char* spec : {"int8", "int8(rounding=nearest)"}) {
    const auto codec = Make(spec);
    for (uint32_t round = 0; round < 50; ++round) {
      const std::vector<uint8_t> payload = Encode(*codec, x, {.key = 1, .round = round});
      std::vector<float> decoded(x.size());
      codec->Decode(PiecedBytes(ByteSpan(payload)), decoded);
      ASSERT_EQ(decoded, x);
    }
  }
}

// What the reader of compression/README.md would do, with base/philox.h (tested against published
// vectors).
TEST(Int8, TakesItsRandomNumbersAsDocumented) {
  const auto codec = Make("int8");
  std::vector<float> x(kTileElements, 0.5f);
  for (size_t i = 0; i < x.size(); i += 128) x[i] = 127;  // scale 1: q = floor(0.5 + r / 65536)
  // Counters are i / 8: the last below 2^32, and the first above it.
  for (const uint64_t from :
       {uint64_t{0}, (uint64_t{1} << 35) - kTileElements, uint64_t{1} << 35}) {
    const EncodeContext context{
        .key = 0xFEDCBA9876543210, .round = 0x80000001, .tensor = 0xFFFFFFFF, .first = from};
    const std::vector<uint8_t> payload = Encode(*codec, x, context);
    for (uint64_t j = 0; j < x.size(); ++j) {
      if (j % 128 == 0) continue;
      const uint64_t i = from + j;
      const PhiloxBlock words =
          Philox4x32(context.key, {static_cast<uint32_t>(i / 8), static_cast<uint32_t>(i / 8 >> 32),
                                   context.tensor, context.round});
      const uint32_t r = words[i % 8 / 2] >> (16 * (i % 2)) & 0xFFFF;
      ASSERT_EQ(payload[j / 128 * 132 + 4 + j % 128], (32768 + r) / 65536) << j;
    }
  }
}

TEST(Int8, HasTheSmallestScaleThatClampsNothing) {
  const auto codec = Make("int8(rounding=nearest)");
  std::vector<float> maxima = {
      std::numeric_limits<float>::denorm_min(), 0x1p-126f, 1.0f, 127.0f, 0x1.fffffep10f, 0x1p127f};
  for (const float v : RandomFloats(30, 2000, 3.0)) {
    if (v != 0) maxima.push_back(std::abs(v));
  }
  for (const float max : maxima) {
    const std::vector<uint8_t> payload = Encode(*codec, std::vector<float>{-max});
    ASSERT_EQ(payload.size(), 5u);
    float scale;
    std::memcpy(&scale, payload.data(), 4);
    EXPECT_GE(127.0 * scale, max);
    EXPECT_LT(127.0 * std::nextafter(std::nextafter(scale, 0.0f), 0.0f), max);
    EXPECT_GE(static_cast<int8_t>(payload[4]), -127);
    EXPECT_TRUE(std::isfinite(127.0f * scale));
  }
}

TEST(Int8, EncodesABlockOfZerosWithScaleZero) {
  const std::vector<uint8_t> payload = Encode(*Make("int8"), std::vector<float>(100, -0.0f));
  EXPECT_EQ(payload, std::vector<uint8_t>(104, 0));
}

TEST(Int8, FoldsTheByteMinus128ThatOnlyOthersEncode) {
  const auto codec = Make("int8(block=16)");
  for (const float scale : {0.01f, 4.0f}) {  // a narrow and a wide product
    std::vector<uint8_t> payload(4 + 16, 0x80);
    std::memcpy(payload.data(), &scale, 4);
    const PiecedBytes pieced{ByteSpan(payload)};
    ASSERT_EQ(codec->Validate(pieced, 16, 4096), absl::OkStatus());
    ForEachTarget([&](const std::string&) {
      std::vector<int64_t> acc(16);
      codec->Fold(pieced, 0, 16, {.fraction_bits = 30, .weight = 3}, acc.data());
      const double exact = static_cast<double>(scale) * -128;
      for (const int64_t sum : acc)
        EXPECT_EQ(sum, ReferenceTerm(exact, {.fraction_bits = 30, .weight = 3}));
    });
  }
}

TEST(Int8, RefusesAFirstElementOffTheTileGrid) {
  std::vector<uint8_t> out;
  const absl::Status status = Make("int8")->Encode(std::vector<float>(8), {.first = 100}, &out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace tributary::compression
