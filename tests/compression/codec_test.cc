// Every codec at every size and pattern: decoding is within the stated error and equals the wire
// text.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

class EveryCodec : public testing::TestWithParam<CodecCase> {};

INSTANTIATE_TEST_SUITE_P(Codec, EveryCodec, testing::ValuesIn(AllCases()), [](const auto& info) {
  std::string name;
  for (const char c : info.param.spec) {
    if (std::isalnum(static_cast<unsigned char>(c))) name += c;
  }
  return name;
});

// Largest |x| of each element's block.
std::vector<double> BlockMaxima(const std::vector<float>& x, uint64_t block) {
  std::vector<double> maxima(x.size());
  for (size_t i = 0; i < x.size(); i += block) {
    const size_t end = std::min<size_t>(x.size(), i + block);
    double max = 0;
    for (size_t j = i; j < end; ++j) max = std::max(max, std::abs(double{x[j]}));
    std::fill(maxima.begin() + i, maxima.begin() + end, max);
  }
  return maxima;
}

TEST_P(EveryCodec, DecodesWithinTheStatedErrorAtEverySizeAndPattern) {
  const auto codec = Make(GetParam().spec);
  for (const std::string& pattern : Patterns()) {
    for (const uint64_t n : Sizes(GetParam(), /*large=*/true)) {
      SCOPED_TRACE(pattern + ", " + std::to_string(n) + " elements");
      const std::vector<float> x = MakeInput(pattern, n);
      const std::vector<uint8_t> payload = Encode(*codec, x);
      if (codec->fixed_rate()) {
        ASSERT_EQ(payload.size(), codec->EncodedBytes(n));
      } else {
        ASSERT_LE(payload.size(), codec->EncodedBytes(n));
      }
      const PiecedBytes pieced{ByteSpan(payload)};
      ASSERT_EQ(codec->Validate(pieced, n, BoundOf(GetParam())), absl::OkStatus());

      std::vector<float> decoded(n);
      codec->Decode(pieced, decoded);
      const std::vector<double> values = ReferenceValues(GetParam(), payload, n);
      const std::vector<double> maxima = BlockMaxima(x, GetParam().block);
      for (uint64_t i = 0; i < n; ++i) {
        ASSERT_EQ(decoded[i], static_cast<float>(values[i])) << i;
        ASSERT_LE(std::abs(values[i] - x[i]), AllowedError(GetParam(), x[i], maxima[i]))
            << "element " << i << ": " << x[i] << " came back as " << values[i];
      }
    }
  }
}

TEST_P(EveryCodec, ResidualIsWhatDecodingLoses) {
  const auto codec = Make(GetParam().spec);
  for (const std::string& pattern : Patterns()) {
    for (const uint64_t n : Sizes(GetParam(), /*large=*/false)) {
      SCOPED_TRACE(pattern + ", " + std::to_string(n) + " elements");
      std::vector<float> x = MakeInput(pattern, n);
      std::vector<uint8_t> payload;
      std::vector<float> residual(n, 1e30f);
      ASSERT_EQ(codec->Encode(x, {.key = 42, .round = 3, .tensor = 5}, &payload, residual),
                absl::OkStatus());
      EXPECT_EQ(payload, Encode(*codec, x)) << "the residual must not change the encoding";
      std::vector<float> decoded(n);
      codec->Decode(PiecedBytes(ByteSpan(payload)), decoded);
      for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(residual[i], x[i] - decoded[i]) << i;

      // In place, as error feedback does it.
      std::vector<uint8_t> again;
      ASSERT_EQ(codec->Encode(x, {.key = 42, .round = 3, .tensor = 5}, &again, x),
                absl::OkStatus());
      EXPECT_EQ(again, payload);
      EXPECT_TRUE(n == 0 || std::memcmp(x.data(), residual.data(), 4 * n) == 0);
    }
  }
}

TEST_P(EveryCodec, AppendsToWhatIsThere) {
  const auto codec = Make(GetParam().spec);
  const std::vector<float> x = RandomFloats(3, 1000);
  std::vector<uint8_t> out = {1, 2, 3};
  ASSERT_EQ(codec->Encode(x, {.key = 42, .round = 3, .tensor = 5}, &out), absl::OkStatus());
  std::vector<uint8_t> expected = {1, 2, 3};
  const std::vector<uint8_t> alone = Encode(*codec, x);
  expected.insert(expected.end(), alone.begin(), alone.end());
  EXPECT_EQ(out, expected);
}

TEST_P(EveryCodec, CuttingATensorIntoSegmentsChangesNothing) {
  if (!GetParam().cuts) GTEST_SKIP() << "each payload has a head of its own";
  const auto codec = Make(GetParam().spec);
  const std::vector<float> x = RandomFloats(4, 2 * kTileElements + 1001);
  const std::vector<uint8_t> whole = Encode(*codec, x, {.key = 9, .round = 1, .tensor = 2});
  std::vector<uint8_t> parts;
  for (uint64_t first = 0; first < x.size(); first += kTileElements) {
    const auto part =
        std::span(x).subspan(first, std::min<uint64_t>(kTileElements, x.size() - first));
    ASSERT_EQ(codec->Encode(part, {.key = 9, .round = 1, .tensor = 2, .first = first}, &parts),
              absl::OkStatus());
  }
  EXPECT_EQ(parts, whole);
}

TEST_P(EveryCodec, EncodesTheSameBytesFromTheSameSeedAndOthersOnlyWhereItRounds) {
  const auto codec = Make(GetParam().spec);
  const std::vector<float> x = RandomFloats(5, 5000);
  const EncodeContext base{
      .key = 77, .round = 4, .tensor = 6, .first = 3 * kTileElements, .shared_key = 5};
  const std::vector<uint8_t> payload = Encode(*codec, x, base);
  EXPECT_EQ(Encode(*codec, x, base), payload);
  std::vector<EncodeContext> others(4, base);
  // randk's mask is all clients' own, and comes from the key that they share.
  if (GetParam().name() == "randk") {
    others[0].shared_key = 6;
  } else {
    others[0].key = 78;
  }
  others[1].round = 5;
  others[2].tensor = 7;
  others[3].first = 4 * kTileElements;
  for (const EncodeContext& other : others) {
    EXPECT_EQ(Encode(*codec, x, other) != payload, GetParam().stochastic);
  }
  EXPECT_EQ(codec->capabilities().deterministic, !GetParam().stochastic);
}

}  // namespace
}  // namespace tributary::compression
