// What must be refused, by Encode and by Validate, and that the message names it.
#include <cmath>
#include <cstring>
#include <limits>

#include "codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

void ExpectRefused(const absl::Status& status, const std::string& what) {
  // Validate's three kinds: what is not finite, what passes the bound, and what is malformed.
  const std::string message(status.message());
  const auto says = [&](const char* text) { return message.find(text) != std::string::npos; };
  const absl::StatusCode expected = says("beyond the bound") ? absl::StatusCode::kOutOfRange
                                    : says("infinite or not a number") || says(", not finite")
                                        ? absl::StatusCode::kDataLoss
                                        : absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(status.code(), expected) << status;
  EXPECT_THAT(message, HasSubstr(what));
}

TEST(Encode, RefusesWhatIsNotFiniteNamesTheElementAndAppendsNothing) {
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (const size_t at : {size_t{0}, size_t{77}, size_t{4096}, size_t{5002}}) {
        std::vector<float> x = RandomFloats(1, 5003);
        x[at] = bad;
        std::vector<uint8_t> out = {7};
        ForEachTarget([&](const std::string&) {
          ExpectRefused(codec->Encode(x, {}, &out), "element " + std::to_string(at) + " ");
          EXPECT_EQ(out, std::vector<uint8_t>{7});
        });
      }
    }
  }
}

TEST(Encode, RefusesWhatTheFormatCannotHoldAndTakesTheLargestThatItCan) {
  struct Row {
    const char* spec;
    float fits;
    float does_not;  // the next float
  };
  const Row rows[] = {{"fp16", 65519.996f, 65520.0f},
                      {"bf16", 0x1.fefffep127f, 0x1.ffp127f},
                      {"int8", 0x1p127f, 0x1.000002p127f},
                      {"int4", 0x1p127f, 0x1.000002p127f},
                      {"int2", 0x1p127f, 0x1.000002p127f},
                      {"sign", 0x1p127f, 0x1.000002p127f},
                      {"fp8", 0x1p127f, 0x1.000002p127f},
                      {"fp8(format=e5m2)", 0x1p127f, 0x1.000002p127f},
                      {"mxfp8", 0x1p127f, 0x1.000002p127f},
                      {"mxfp4", 0x1p127f, 0x1.000002p127f},
                      {"mxint8", 0x1p127f, 0x1.000002p127f},
                      {"hq", 0x1p127f, 0x1.000002p127f},
                      {"topk(0.1)", 0x1p127f, 0x1.000002p127f},
                      {"topk(0.1, values=fp16)", 65519.996f, 65520.0f},
                      {"topk(0.1, values=int8)", 0x1p127f, 0x1.000002p127f},
                      {"randk(0.01)", 0x1p112f, 0x1.000002p112f},
                      {"eden", 0x1p100f, 0x1.000002p100f},
                      {"powersgd", 0x1p100f, 0x1.000002p100f},
                      {"sketch(0.5)", 0x1p100f, 0x1.000002p100f},
                      {"fp16 | zeros", 65519.996f, 65520.0f},
                      {"fp32", kMax, kInfinity}};
  for (const Row& row : rows) {
    ASSERT_EQ(std::nextafter(row.fits, kInfinity), row.does_not);
    const auto codec = Make(row.spec);
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> x(100, 1.0f);
      x[61] = sign * row.does_not;
      std::vector<uint8_t> out;
      ForEachTarget(
          [&](const std::string&) { ExpectRefused(codec->Encode(x, {}, &out), "element 61 "); });
      EXPECT_TRUE(out.empty());
      x[61] = sign * row.fits;
      ASSERT_EQ(codec->Encode(x, {}, &out), absl::OkStatus());
      std::vector<float> decoded(x.size());
      codec->Decode(PiecedBytes(ByteSpan(out)), decoded);
      for (const float v : decoded) EXPECT_TRUE(std::isfinite(v)) << row.spec;
    }
  }
}

// Puts the bits of a number that is not finite into a good payload.
TEST(Validate, RefusesWhatIsNotFiniteAndNamesTheElement) {
  struct Row {
    const char* spec;
    std::vector<uint8_t> bad;
  };
  const Row rows[] = {{"fp32", {0, 0, 0xC0, 0x7F}}, {"fp32", {0, 0, 0x80, 0xFF}},
                      {"fp32", {1, 0, 0x80, 0x7F}}, {"fp16", {0, 0x7C}},
                      {"fp16", {1, 0xFC}},          {"bf16", {0x80, 0x7F}},
                      {"bf16", {0xC0, 0xFF}}};
  for (const Row& row : rows) {
    const auto codec = Make(row.spec);
    const std::vector<float> x = RandomFloats(2, 1003);
    const std::vector<uint8_t> good = Encode(*codec, x);
    for (const size_t at : {size_t{0}, size_t{1}, size_t{31}, size_t{500}, size_t{1002}}) {
      std::vector<uint8_t> payload = good;
      std::copy(row.bad.begin(), row.bad.end(), payload.begin() + at * row.bad.size());
      ForEachTarget([&](const std::string&) {
        const std::string name = "element " + std::to_string(at) + " ";
        // A bound of infinity would still not let it by.
        for (const double bound : {4096.0, 1e300, double{kInfinity}}) {
          ExpectRefused(codec->Validate(PiecedBytes(ByteSpan(payload)), x.size(), bound), name);
          ExpectRefused(codec->Validate(CutBytes(payload, at, 11).bytes(), x.size(), bound), name);
        }
      });
    }
  }
}

TEST(Validate, TakesElementsUpToTheBoundAndRefusesTheNextOne) {
  for (const char* spec : {"fp32", "fp16", "bf16"}) {
    const auto codec = Make(spec);
    // The step is the coarsest format's at 4096.
    for (const double bound : {4096.0, 1.0, 0.25}) {
      for (const double sign : {1.0, -1.0}) {
        std::vector<float> x(300, 0.1f);
        x[222] = static_cast<float>(sign * bound);
        const std::vector<uint8_t> at_bound = Encode(*codec, x);
        x[222] = static_cast<float>(sign * bound * (1 + 0x1p-7));
        const std::vector<uint8_t> beyond = Encode(*codec, x);
        ForEachTarget([&](const std::string&) {
          EXPECT_EQ(codec->Validate(PiecedBytes(ByteSpan(at_bound)), x.size(), bound),
                    absl::OkStatus());
          ExpectRefused(codec->Validate(PiecedBytes(ByteSpan(beyond)), x.size(), bound),
                        "element 222 ");
          // Bounds that no number of the format equals.
          EXPECT_EQ(codec->Validate(PiecedBytes(ByteSpan(at_bound)), x.size(), bound * 1.0000001),
                    absl::OkStatus());
          ExpectRefused(
              codec->Validate(PiecedBytes(ByteSpan(at_bound)), x.size(), bound * 0.9999999),
              "element 222 ");
        });
      }
    }
    ExpectRefused(
        codec->Validate(PiecedBytes(ByteSpan(Encode(*codec, std::vector<float>(3)))), 3, -1),
        "element 0 ");
  }
}

TEST(Validate, RefusesScalesThatAreNegativeNotFiniteOrBeyondTheBound) {
  const auto codec = Make("int8(block=16)");
  const std::vector<uint8_t> good = Encode(*codec, RandomFloats(3, 1001));
  const auto with_scale = [&](size_t block, float scale) {
    std::vector<uint8_t> payload = good;
    std::memcpy(payload.data() + 20 * block, &scale, 4);
    return payload;
  };
  const double bound = 4096;
  for (const size_t block : {size_t{0}, size_t{1}, size_t{40}, size_t{62}}) {
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity, -1e-9f, -0.0f, -1.0f, kMax,
                            std::nextafter(32.0f, 64.0f)}) {
      const std::vector<uint8_t> payload = with_scale(block, bad);
      const std::string name = "block " + std::to_string(block) + " ";
      ExpectRefused(codec->Validate(PiecedBytes(ByteSpan(payload)), 1001, bound), name);
      ExpectRefused(codec->Validate(CutBytes(payload, block, 9).bytes(), 1001, bound), name);
    }
    for (const float fine : {0.0f, std::numeric_limits<float>::denorm_min(), 1.0f, 32.0f}) {
      EXPECT_EQ(codec->Validate(PiecedBytes(ByteSpan(with_scale(block, fine))), 1001, bound),
                absl::OkStatus());
    }
  }
}

TEST(Validate, RefusesPayloadsOfAnyOtherLengthThanTheClaimed) {
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    for (const uint64_t n : Sizes(c, /*large=*/false)) {
      std::vector<uint8_t> payload = Encode(*codec, RandomFloats(4, n));
      const auto validate = [&](uint64_t claimed) {
        return codec->Validate(PiecedBytes(ByteSpan(payload)), claimed, 4096);
      };
      EXPECT_EQ(validate(n), absl::OkStatus()) << c.spec << " " << n;
      for (const uint64_t claimed :
           {n + 1, n + 2, 2 * n + 1, uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}}) {
        // Some lengths have payloads of the same size; top-k's says nothing of zeros at the end.
        if (claimed <= 2 * n + 2 &&
            (!codec->fixed_rate() || codec->EncodedBytes(claimed) == payload.size())) {
          continue;
        }
        ExpectRefused(validate(claimed), "bytes do not hold");
      }
      if (n > 0 && codec->fixed_rate() && codec->EncodedBytes(n - 1) != payload.size()) {
        ExpectRefused(validate(n - 1), "bytes do not hold");
      }
      payload.push_back(0);
      ExpectRefused(validate(n), "bytes do not hold");
      payload.pop_back();
      while (!payload.empty()) {  // cut anywhere
        payload.resize(payload.size() - 1 - payload.size() / 3);
        if (n > 0) ExpectRefused(validate(n), "bytes do not hold");
      }
    }
  }
}

TEST(RawInt64, RefusesLengthsAndElementsBeyondTheBound) {
  std::vector<int64_t> x = {5, -5, 0, 5};
  std::vector<uint8_t> payload;
  EncodeRawInt64(x, &payload);
  const PiecedBytes pieced{ByteSpan(payload)};
  EXPECT_EQ(ValidateRawInt64(pieced, 4, 5), absl::OkStatus());
  ExpectRefused(ValidateRawInt64(pieced, 4, 4), "element 0 ");
  ExpectRefused(ValidateRawInt64(pieced, 3, 5), "32 bytes");
  ExpectRefused(ValidateRawInt64(pieced, uint64_t{1} << 61, 5), "32 bytes");
  ExpectRefused(ValidateRawInt64(PiecedBytes(ByteSpan(payload).first(31)), 3, 5), "31 bytes");
  x[2] = std::numeric_limits<int64_t>::min();
  payload.clear();
  EncodeRawInt64(x, &payload);
  ExpectRefused(
      ValidateRawInt64(PiecedBytes(ByteSpan(payload)), 4, std::numeric_limits<int64_t>::max()),
      "element 2 ");
}

}  // namespace
}  // namespace tributary::compression
