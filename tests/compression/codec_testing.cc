// Helpers of the codec tests.
#include "codec_testing.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace tributary::compression {

const std::vector<CodecCase>& AllCases() {
  static const auto* cases = new std::vector<CodecCase>{{"fp32", 1},
                                                        {"fp16", 1},
                                                        {"bf16", 1},
                                                        {"int8", 128, true},
                                                        {"int8(rounding=nearest)", 128},
                                                        {"int8(block=16)", 16, true},
                                                        {"int8(block=4096)", 4096, true}};
  return *cases;
}

std::vector<uint64_t> Sizes(const CodecCase& c, bool large) {
  std::set<uint64_t> sizes = {0, 1, 2, 15, 31, 33, 4095, 4096, 4097};
  sizes.insert({c.block - 1, c.block, c.block + 1});
  if (large) sizes.insert((uint64_t{1} << 20) + 7);
  return {sizes.begin(), sizes.end()};
}

const std::vector<std::string>& Patterns() {
  static const auto* patterns = new std::vector<std::string>{
      "zeros", "negative zeros", "constant", "extremes", "subnormal", "outlier", "ties", "deltas"};
  return *patterns;
}

std::vector<float> RandomFloats(uint64_t seed, uint64_t n, double deviation) {
  PhiloxStream random(seed, 99);
  std::vector<float> x(n);
  for (float& v : x) {
    double sum = -2;
    for (int k = 0; k < 4; ++k) sum += random.NextDouble();
    v = static_cast<float>(sum * deviation * 1.7320508);
  }
  return x;
}

std::vector<float> MakeInput(const std::string& pattern, uint64_t n) {
  if (pattern == "deltas") return RandomFloats(1, n);
  std::vector<float> x(n);
  PhiloxStream random(7);
  for (uint64_t i = 0; i < n; ++i) {
    const float sign = random.Next32() % 2 == 0 ? 1.0f : -1.0f;
    if (pattern == "negative zeros") x[i] = -0.0f;
    if (pattern == "constant") x[i] = -0.3f;
    if (pattern == "extremes") x[i] = sign * 4096.0f;
    if (pattern == "subnormal") x[i] = sign * std::ldexp(1.0f, -149) * (random.Next32() % 300);
    if (pattern == "outlier") x[i] = i == n / 2 ? -4000.0f : sign * 1e-4f;
    if (pattern == "ties") {
      // Half-way for the grid at f = 30, for bf16, for fp16, and for int8 with scale 1.
      const float ties[] = {std::ldexp(2.0f * (i % 37) + 1, -31), 1 + std::ldexp(i % 8 + 0.5f, -7),
                            1 + std::ldexp(i % 64 + 0.5f, -10), i % 126 + 0.5f};
      x[i] = i % 16 == 0 ? 127.0f : sign * ties[random.Next32() % 4];
    }
  }
  return x;
}

std::vector<double> ReferenceValues(const CodecCase& c, std::span<const uint8_t> payload,
                                    uint64_t n) {
  std::vector<double> values;
  values.reserve(n);
  size_t at = 0;
  const auto integer = [&](int bytes) {
    uint64_t value = 0;
    for (int b = 0; b < bytes; ++b) value |= uint64_t{payload[at + b]} << (8 * b);
    at += bytes;
    return value;
  };
  // A binary float of `m` mantissa and `e` exponent bits, by the definition.
  const auto number = [](uint64_t bits, int e, int m) {
    const int exponent = static_cast<int>(bits >> m) & ((1 << e) - 1);
    const auto mantissa = static_cast<double>(bits & ((uint64_t{1} << m) - 1));
    const int bias = (1 << (e - 1)) - 1;
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, 1 - bias - m)
                                 : std::ldexp(mantissa + std::ldexp(1.0, m), exponent - bias - m);
    return (bits >> (e + m)) != 0 ? -magnitude : magnitude;
  };
  double scale = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (c.spec == "fp32") {
      values.push_back(number(integer(4), 8, 23));
    } else if (c.spec == "fp16") {
      values.push_back(number(integer(2), 5, 10));
    } else if (c.spec == "bf16") {
      values.push_back(number(integer(2), 8, 7));
    } else {
      if (i % c.block == 0) scale = number(integer(4), 8, 23);
      const auto byte = static_cast<int>(integer(1));
      values.push_back(scale * (byte < 128 ? byte : byte - 256));
    }
  }
  EXPECT_EQ(at, payload.size());
  return values;
}

int64_t ReferenceTerm(double value, const GridFold& grid) {
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  const double q = std::nearbyint(std::ldexp(value, grid.fraction_bits));
  const __int128 term = static_cast<__int128>(q) * grid.weight;
  EXPECT_LE(term, std::numeric_limits<int64_t>::max()) << value;
  EXPECT_GE(term, std::numeric_limits<int64_t>::min()) << value;
  return static_cast<int64_t>(term);
}

double AllowedError(const CodecCase& c, double x, double block_max) {
  // Half a unit in the last place: relative where numbers are normal, absolute where subnormal.
  if (c.spec == "fp32") return 0;
  if (c.spec == "fp16") return std::max(std::abs(x) * 0x1p-11, 0x1p-25);
  if (c.spec == "bf16") return std::max(std::abs(x) * 0x1p-8, 0x1p-134);
  // The scale is max/127 or up to two roundings more; stochastic rounding moves by less than one
  // unit.
  const double scale = block_max / 127 * (1 + 0x1p-22) + 0x1p-149;
  return block_max == 0 ? 0 : scale * (c.stochastic ? 1 + 0x1p-16 : 0.5 + 0x1p-16);
}

std::shared_ptr<const Codec> Make(const std::string& spec) {
  auto codec = MakeCodec(spec);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return codec.value();
}

std::vector<uint8_t> Encode(const Codec& codec, std::span<const float> x,
                            const EncodeContext& context) {
  std::vector<uint8_t> out;
  const absl::Status status = codec.Encode(x, context, &out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

CutBytes::CutBytes(std::span<const uint8_t> bytes, uint64_t seed, size_t longest_piece) {
  PhiloxStream random(seed, 5);
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = std::min<size_t>(bytes.size() - at, 1 + random.NextBelow(longest_piece));
    // Memory of exactly that size, so that a sanitizer sees any byte read beside it; odd alignments
    // come from an offset at the front.
    const size_t shift = random.NextBelow(8);
    memory_.push_back(std::make_unique<uint8_t[]>(shift + n));
    std::memcpy(memory_.back().get() + shift, bytes.data() + at, n);
    pieced_.Append(ByteSpan(memory_.back().get() + shift, n));
    at += n;
  }
}

void ForEachTarget(const std::function<void(const std::string& target)>& body) {
  const std::vector<std::string> have = SupportedTargets();
  static bool told = false;
  for (int64_t rest = HWY_TARGETS; rest != 0 && !told; rest &= rest - 1) {
    const std::string name = hwy::TargetName(rest & -rest);
    if (std::find(have.begin(), have.end(), name) == have.end()) {
      std::printf("[ target  ] %s is built but not run: this CPU lacks it\n", name.c_str());
    }
  }
  told = true;
  for (const std::string& target : have) {
    SCOPED_TRACE(target);
    const absl::Status forced = ForceTarget(target);
    ASSERT_TRUE(forced.ok()) << forced;
    body(target);
  }
  const absl::Status restored = ForceTarget("");
  ASSERT_TRUE(restored.ok()) << restored;
}

}  // namespace tributary::compression
