// Every codec at every size and pattern: decoding is within the stated error and equals the wire
// text.
#include <algorithm>
#include <cctype>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

class EveryCodec : public testing::TestWithParam<CodecCase> {};

INSTANTIATE_TEST_SUITE_P(Codec, EveryCodec, testing::ValuesIn(AllDecodedCases()),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param.spec) {
                             if (std::isalnum(static_cast<unsigned char>(c))) name += c;
                           }
                           return name;
                         });

// One payload of x's: its size, its validity, what the wire text makes of it and how near that is.
void ExpectWithinTheStatedError(const CodecCase& c, const Codec& codec, std::span<const float> x,
                                std::span<const double> maxima, const std::vector<uint8_t>& payload,
                                const ErrorBound& allowed) {
  if (codec.fixed_rate()) {
    ASSERT_EQ(payload.size(), codec.EncodedBytes(x.size()));
  } else {
    ASSERT_LE(payload.size(), codec.EncodedBytes(x.size()));
  }
  const PiecedBytes pieced{ByteSpan(payload)};
  ASSERT_EQ(codec.Validate(pieced, x.size(), BoundOf(c)), absl::OkStatus());
  std::vector<float> decoded(x.size());
  codec.Decode(pieced, decoded);
  ExpectDecoded(x, maxima, decoded, ReferenceValues(c, payload, x.size()), allowed);
}

TEST_P(EveryCodec, DecodesWithinTheStatedErrorAtEverySizeAndPattern) {
  const auto codec = Make(GetParam().spec);
  const ErrorBound allowed = AllowedError(GetParam());
  for (const std::string& pattern : Patterns()) {
    for (const uint64_t n : Sizes(GetParam(), /*large=*/true)) {
      const std::vector<float>& x = MakeInput(pattern, n);
      const std::vector<double> maxima = BlockMaxima(x, GetParam().block);
      for (const Part& part : EncodeParts(*codec, x)) {
        SCOPED_TRACE(pattern + ", " + std::to_string(n) + " elements, from " +
                     std::to_string(part.first));
        ExpectWithinTheStatedError(GetParam(), *codec, std::span(x).subspan(part.first, part.count),
                                   std::span(maxima).subspan(part.first, part.count), part.payload,
                                   allowed);
        if (HasFatalFailure()) return;
      }
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
  // randk's mask and a sketch's places are all clients' own, and come from the key that they share.
  const bool sketch = GetParam().name() == "sketch";
  if (GetParam().name() == "randk" || sketch) {
    others[0].shared_key = 6;
  } else {
    others[0].key = 78;
  }
  others[1].round = 5;
  others[2].tensor = 7;
  others[3].first = 4 * kTileElements;
  if (sketch) {  // all rounds share them too
    EXPECT_EQ(Encode(*codec, x, others[1]), payload);
    others.erase(others.begin() + 1);
  }
  for (const EncodeContext& other : others) {
    EXPECT_EQ(Encode(*codec, x, other) != payload, GetParam().stochastic);
  }
  EXPECT_EQ(codec->capabilities().deterministic, !GetParam().stochastic);
}

}  // namespace
}  // namespace tributary::compression
