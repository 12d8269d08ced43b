// Helpers of the codec tests.
#include "codec_testing.h"

#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace tributary::compression {
namespace {

// What one case frees, megabytes of it, stays for the next: or each would be given new pages, a
// quarter of the tests' time.
[[maybe_unused]] const bool kMemoryStays =
    mallopt(M_MMAP_THRESHOLD, 32 << 20) != 0 && mallopt(M_TRIM_THRESHOLD, 1 << 30) != 0;

}  // namespace

const std::vector<CodecCase>& AllCases() {
  static const auto* cases = new std::vector<CodecCase>{
      {"fp32", 1},
      {"fp16", 1},
      {"bf16", 1},
      {"int8", 128, true},
      {"int8(rounding=nearest)", 128},
      {"int8(block=16)", 16, true},
      {"int8(block=4096)", 4096, true},
      {"int4", 128, true},
      {"int4(block=16, rounding=nearest)", 16},
      {"int2", 128, true},
      {"int2(block=4096, rounding=nearest)", 4096},
      {"sign", 1024},
      {"sign(block=16)", 16},
      {"sign(mode=vote, step=2^-10)", 4096},
      {"fp8", 128},
      {"fp8(format=e5m2, block=64)", 64},
      {"mxfp8", 32},
      {"mxfp8(format=e5m2)", 32},
      {"mxfp4", 32},
      {"mxint8", 32},
      {"hq", 4096, true},
      {"hq(bits=4, step=2^-8, rounding=nearest)", 4096},
      {"topk(0.01)", kTileElements, false, false},
      {"topk(0.3, values=fp16)", kTileElements, false, false},
      {"topk(0.001, values=int8)", kTileElements, false, false},
      {"topk(0.02, values=ternary)", kTileElements, false, false},
      {"topk(1, values=ternary)", kTileElements, false, false},
      {"randk(0.5)", kTileElements, true, false},
      {"randk(0.01, values=fp16, scaled=no)", kTileElements, true, false},
      {"eden(bits=1)", 1024, true, false},
      {"eden(bits=2, block=64)", 64, true, false},
      {"eden(bits=3, block=4096)", 4096, true, false},
      {"eden", 1024, true, false},
      {"powersgd", kTileElements, true, false},
      {"powersgd(rank=5)", kTileElements, true, false},
      {"fp32 | zeros", 256, false, false},
      {"int8 | zeros | lz4", 128, true, false},
      {"int2 | zeros", 128, true, false},
      {"fp16 | zstd", 1, false, false},
      {"int8 | lz4", 128, true, false},
      {"topk(0.01, values=ternary) | zstd(level=3)", kTileElements, false, false}};
  return *cases;
}

const std::vector<CodecCase>& SketchCases() {
  static const auto* cases =
      new std::vector<CodecCase>{{"sketch(0.2)", kTileElements, true, false},
                                 {"sketch(0.02, rows=3)", kTileElements, true, false},
                                 {"sketch(0.25, rows=1)", kTileElements, true, false}};
  return *cases;
}

std::vector<CodecCase> AllDecodedCases() {
  std::vector<CodecCase> cases = AllCases();
  cases.insert(cases.end(), SketchCases().begin(), SketchCases().end());
  return cases;
}

std::vector<uint64_t> Sizes(const CodecCase& c, bool large) {
  std::set<uint64_t> sizes = {0, 1, 2, 15, 31, 33, 4095, 4096, 4097};
  sizes.insert({c.block - 1, c.block, c.block + 1});
  if (large) sizes.insert((uint64_t{1} << 20) + 7);
  return {sizes.begin(), sizes.end()};
}

const std::vector<std::string>& Patterns() {
  static const auto* patterns =
      new std::vector<std::string>{"zeros",   "negative zeros", "constant", "extremes", "subnormal",
                                   "outlier", "heavy tails",    "ties",     "deltas"};
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

namespace {

// Element i of n of a pattern; all take one number first, for their sign.
using Element = std::function<float(uint64_t i, float sign, PhiloxStream* random)>;

Element ElementOf(const std::string& pattern, uint64_t n) {
  if (pattern == "negative zeros") return [](uint64_t, float, PhiloxStream*) { return -0.0f; };
  if (pattern == "constant") return [](uint64_t, float, PhiloxStream*) { return -0.3f; };
  if (pattern == "extremes")
    return [](uint64_t, float sign, PhiloxStream*) { return sign * 4096.0f; };
  if (pattern == "subnormal") {
    return [](uint64_t, float sign, PhiloxStream* random) {
      return sign * std::ldexp(1.0f, -149) * (random->Next32() % 300);
    };
  }
  if (pattern == "outlier") {
    return
        [n](uint64_t i, float sign, PhiloxStream*) { return i == n / 2 ? -4000.0f : sign * 1e-4f; };
  }
  if (pattern == "heavy tails") {  // without a mean, as Cauchy's
    return [](uint64_t, float sign, PhiloxStream* random) {
      const double u = random->NextDouble(), v = random->NextDouble();
      return sign * static_cast<float>(std::min(0.01 * u / std::max(v, 1e-9), 4096.0));
    };
  }
  if (pattern == "ties") {
    return [](uint64_t i, float sign, PhiloxStream* random) {
      // Half-way for the grid at f = 30, for bf16, for fp16, and for int8 with scale 1.
      const float ties[] = {std::ldexp(2.0f * (i % 37) + 1, -31), 1 + std::ldexp(i % 8 + 0.5f, -7),
                            1 + std::ldexp(i % 64 + 0.5f, -10), i % 126 + 0.5f};
      return i % 16 == 0 ? 127.0f : sign * ties[random->Next32() % 4];
    };
  }
  EXPECT_EQ(pattern, "zeros");
  return [](uint64_t, float, PhiloxStream*) { return 0.0f; };
}

}  // namespace

const std::vector<float>& MakeInput(const std::string& pattern, uint64_t n) {
  static auto* kept = new std::map<std::pair<std::string, uint64_t>, std::vector<float>>;
  const auto [it, fresh] = kept->try_emplace({pattern, n});
  std::vector<float>& x = it->second;
  if (!fresh) return x;
  if (pattern == "deltas") return x = RandomFloats(1, n);
  const Element element = ElementOf(pattern, n);
  PhiloxStream random(7);
  x.resize(n);
  for (uint64_t i = 0; i < n; ++i) {
    const float sign = random.Next32() % 2 == 0 ? 1.0f : -1.0f;
    x[i] = element(i, sign, &random);
  }
  return x;
}

int64_t ReferenceTerm(double value, const GridFold& grid) {
  return ReferenceTerms(std::span(&value, 1), grid)[0];
}

std::vector<int64_t> ReferenceTerms(std::span<const double> values, const GridFold& grid) {
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  const double scale = std::ldexp(1.0, grid.fraction_bits);
  std::vector<int64_t> terms(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    // There are millions: no macro is called unless something is wrong.
    const double q = std::nearbyint(values[i] * scale);
    if (std::abs(q) < 0x1p63) {
      const __int128 term = __int128{static_cast<int64_t>(q)} * grid.weight;
      terms[i] = static_cast<int64_t>(term);
      if (terms[i] == term) continue;
    }
    ADD_FAILURE() << values[i] << " overflows at weight " << grid.weight;
  }
  return terms;
}

std::vector<double> BlockMaxima(std::span<const float> x, uint64_t block) {
  std::vector<double> maxima(x.size());
  for (size_t i = 0; i < x.size(); i += block) {
    const size_t end = std::min<size_t>(x.size(), i + block);
    double max = 0;
    for (size_t j = i; j < end; ++j) max = std::max(max, std::abs(double{x[j]}));
    std::fill(maxima.begin() + i, maxima.begin() + end, max);
  }
  return maxima;
}

void ExpectDecoded(std::span<const float> x, std::span<const double> maxima,
                   std::span<const float> decoded, std::span<const double> values,
                   const ErrorBound& allowed) {
  ASSERT_EQ(values.size(), x.size());
  ASSERT_EQ(decoded.size(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = std::abs(values[i] - double{x[i]});
    if (decoded[i] == static_cast<float>(values[i]) && error <= allowed(double{x[i]}, maxima[i])) {
      continue;
    }
    FAIL() << "element " << i << ": " << x[i] << " was decoded as " << decoded[i] << " from "
           << values[i] << "; allowed is an error of " << allowed(double{x[i]}, maxima[i]);
  }
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

std::vector<Part> EncodeParts(const Codec& codec, std::span<const float> x) {
  EncodeContext context{.key = 42, .round = 3, .tensor = 5};
  const uint64_t most = codec.MaxSegmentElements();
  TensorPlan plan;
  if (x.size() > most) {  // else the codec plans as it encodes
    absl::StatusOr<TensorPlan> made = codec.Plan(x, context);
    EXPECT_TRUE(made.ok()) << made.status();
    plan = *std::move(made);
    context.plan = &plan;
  }
  std::vector<Part> parts;
  do {
    const uint64_t count = std::min<uint64_t>(most, x.size() - context.first);
    parts.push_back(
        {context.first, count, Encode(codec, x.subspan(context.first, count), context)});
    context.first += count;
  } while (context.first < x.size());
  return parts;
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
