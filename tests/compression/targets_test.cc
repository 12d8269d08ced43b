// Every Highway target gives the same bits: the choice of a CPU is not in any result.
#include <cmath>
#include <cstring>
#include <limits>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

// Everything a codec computes over one input, as bytes.
struct Outcome {
  std::vector<uint8_t> payload;
  std::vector<float> decoded;
  std::vector<int64_t> narrow, wide;
  std::string refused;
};

// What `outcome` had before is gone; its memory is used again.
void Everything(const Codec& codec, const std::vector<float>& x, double bound, Outcome* outcome) {
  Outcome& o = *outcome;
  o.payload.clear();
  o.decoded.assign(x.size(), 0);
  o.narrow.assign(x.size(), 0);
  o.wide.assign(x.size(), 0);
  const absl::Status encoded = codec.Encode(x, {.key = 11, .round = 2, .tensor = 3}, &o.payload);
  EXPECT_TRUE(encoded.ok()) << encoded;
  const PiecedBytes pieced{ByteSpan(o.payload)};
  EXPECT_EQ(codec.Validate(pieced, x.size(), bound), absl::OkStatus());
  o.refused = std::string(codec.Validate(pieced, x.size(), 1e-3).message());
  codec.Decode(pieced, o.decoded);
  codec.Fold(pieced, 0, x.size(), {.fraction_bits = 30, .weight = 601}, o.narrow.data());
  codec.Fold(pieced, 0, x.size(), {.fraction_bits = 30, .weight = (int64_t{1} << 20) + 1},
             o.wide.data());
  codec.Fold(pieced, 0, x.size(), {.fraction_bits = 8, .weight = (int64_t{1} << 40) + 3},
             o.wide.data());
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

TEST(Targets, GiveTheSameBitsInEveryFunction) {
  Outcome best, other;
  for (const CodecCase& c : AllDecodedCases()) {
    const auto codec = Make(c.spec);
    std::vector<uint64_t> sizes = Sizes(c, /*large=*/false);
    for (uint64_t n = 3; n < 200; n += 13) sizes.push_back(n);
    sizes.push_back(100003);
    for (const std::string& pattern : Patterns()) {
      for (const uint64_t n : sizes) {
        const std::vector<float>& x = MakeInput(pattern, n);
        Everything(*codec, x, BoundOf(c), &best);
        ForEachTarget([&](const std::string&) {
          SCOPED_TRACE(c.spec + ", " + pattern + ", " + std::to_string(n) + " elements");
          Everything(*codec, x, BoundOf(c), &other);
          EXPECT_EQ(other.payload, best.payload);
          EXPECT_TRUE(SameBits(other.decoded, best.decoded));
          EXPECT_EQ(other.narrow, best.narrow);
          EXPECT_EQ(other.wide, best.wide);
          EXPECT_EQ(other.refused, best.refused);
        });
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

// All 2^16 patterns, as the payload of a decoder and through the fold.
TEST(Targets, DecodeEverySixteenBitNumberAlike) {
  for (const CodecCase& c : {CodecCase{"fp16", 1}, CodecCase{"bf16", 1}}) {
    const auto codec = Make(c.spec);
    const uint32_t infinity = c.spec == "fp16" ? 0x7C00 : 0x7F80;
    std::vector<uint8_t> payload;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      if ((bits & 0x7FFF) >= infinity) continue;
      payload.push_back(static_cast<uint8_t>(bits));
      payload.push_back(static_cast<uint8_t>(bits >> 8));
    }
    const uint64_t n = payload.size() / 2;
    const std::vector<double> values = ReferenceValues(c, payload, n);
    ForEachTarget([&](const std::string&) {
      std::vector<float> decoded(n);
      codec->Decode(PiecedBytes(ByteSpan(payload)), decoded);
      for (uint64_t i = 0; i < n; ++i) {
        ASSERT_EQ(decoded[i], values[i]) << c.spec << " " << i;
        ASSERT_EQ(std::signbit(decoded[i]), std::signbit(values[i])) << c.spec << " " << i;
      }
      // Decoded floats encode to the number they came from.
      std::vector<uint8_t> again;
      ASSERT_EQ(codec->Encode(decoded, {}, &again), absl::OkStatus());
      ASSERT_EQ(again, payload) << c.spec;
    });
  }
}

// Each fp16 and bf16, its neighbouring floats, and the points half-way: nearest, ties to even.
TEST(Targets, RoundToTheNearestSixteenBitNumberWithTiesToEven) {
  for (const CodecCase& c : {CodecCase{"fp16", 1}, CodecCase{"bf16", 1}}) {
    const auto codec = Make(c.spec);
    std::vector<float> x;
    std::vector<uint32_t> expected;
    const uint32_t infinity = c.spec == "fp16" ? 0x7C00 : 0x7F80;
    for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
      const std::vector<uint8_t> two = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8),
                                        static_cast<uint8_t>(bits + 1),
                                        static_cast<uint8_t>((bits + 1) >> 8)};
      const std::vector<double> v = ReferenceValues(c, two, 2);
      const auto middle = static_cast<float>((v[0] + v[1]) / 2);
      x.insert(x.end(), {middle, std::nextafter(middle, 0.0f),
                         std::nextafter(middle, std::numeric_limits<float>::infinity())});
      expected.insert(expected.end(), {bits + bits % 2, bits, bits + 1});
    }
    ForEachTarget([&](const std::string&) {
      const std::vector<uint8_t> payload = Encode(*codec, x);
      for (size_t i = 0; i < x.size(); ++i) {
        const uint32_t got = payload[2 * i] | payload[2 * i + 1] << 8;
        ASSERT_EQ(got, expected[i]) << c.spec << " of " << x[i];
      }
    });
  }
}

TEST(Targets, RefuseANameThatTheyDoNotKnow) {
  const absl::Status status = ForceTarget("AVX9");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("AVX9"), std::string::npos);
  EXPECT_FALSE(SupportedTargets().empty());
}

}  // namespace
}  // namespace tributary::compression
