// Folding equals independent arithmetic, wherever the payload is cut and whichever part is asked
// for.
#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

// Starts from a sum that is not zero, so that a store in place of an add is seen.
std::vector<int64_t> Start(uint64_t n) {
  std::vector<int64_t> acc(n);
  for (uint64_t i = 0; i < n; ++i) acc[i] = static_cast<int64_t>(i * 1000003) - 77;
  return acc;
}

void ExpectFoldOfPart(const CodecCase& c, const Codec& codec, const Part& part,
                      const GridFold& grid) {
  const std::vector<double> values = ReferenceValues(c, part.payload, part.count);
  const std::vector<int64_t> terms = ReferenceTerms(values, grid);
  std::vector<int64_t> acc = Start(part.count), expected = acc;
  for (size_t i = 0; i < acc.size(); ++i) {
    expected[i] =
        static_cast<int64_t>(static_cast<uint64_t>(expected[i]) + static_cast<uint64_t>(terms[i]));
  }
  codec.Fold(PiecedBytes(ByteSpan(part.payload)), 0, part.count, grid, acc.data());
  if (acc == expected) return;
  for (size_t i = 0; i < acc.size(); ++i) {
    ASSERT_EQ(acc[i], expected[i])
        << c.spec << " element " << i << " of " << part.count << " from " << part.first << ": "
        << values[i] << ", weight " << grid.weight << ", f " << grid.fraction_bits;
  }
}

void ExpectFold(const CodecCase& c, const std::vector<float>& x, const GridFold& grid) {
  const auto codec = Make(c.spec);
  for (const Part& part : EncodeParts(*codec, x)) ExpectFoldOfPart(c, *codec, part, grid);
}

TEST(Fold, EqualsRoundingInDoubleAndIntegerArithmeticAtEverySizeAndPattern) {
  for (const CodecCase& c : AllCases()) {
    for (const std::string& pattern : Patterns()) {
      // A million elements where they differ from each other.
      const bool large = pattern == "deltas" || pattern == "ties" || pattern == "outlier";
      for (const uint64_t n : Sizes(c, large)) {
        SCOPED_TRACE(pattern);
        ExpectFold(c, MakeInput(pattern, n), {.fraction_bits = 30, .weight = 601});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Fold, IsRightForEveryExponentAndWeightThatTheGridAllows) {
  const int64_t weights[] = {1,
                             3,
                             (int64_t{1} << 31) - 1,
                             int64_t{1} << 31,
                             (int64_t{1} << 32) + 12345,
                             (int64_t{1} << 40) - 1,
                             int64_t{1} << 40,
                             -1,
                             -600,
                             -(int64_t{1} << 33)};
  for (const int f : {0, 1, 15, 29, 30, 31, 44, 50, 60}) {
    for (const int64_t weight : weights) {
      // The largest |x| with |x| 2^f <= 2^50 and |w| |x| 2^f < 2^62 (int8 may round up to 128/127
      // of it).
      const double limit = std::min(0x1p49, 0x1p62 / std::abs(static_cast<double>(weight)));
      std::vector<float> x = RandomFloats(f, 700, std::ldexp(limit / 8, -f));
      for (size_t i = 0; i < x.size(); i += 3) {
        // Small ones and half-way ones between the large.
        x[i] = static_cast<float>(std::ldexp(static_cast<double>(i % 7) + 0.5, -f));
      }
      for (const CodecCase& c : AllCases()) {
        if (c.has("fp16")) {
          for (float& v : x) v = std::clamp(v, -60000.0f, 60000.0f);
        }
        // Their steps are what they are, whatever x is.
        const bool shared = c.name() == "hq" || c.has("vote");
        const double largest = std::abs(std::ldexp(static_cast<double>(weight), f - 5));
        if (shared && (largest > 0x1p62 || f > 50)) continue;
        ExpectFold(c, x, {.fraction_bits = f, .weight = weight});
      }
    }
  }
}

// Elements on both sides of |q| = 2^31, where one product becomes three.
TEST(Fold, IsRightAcrossTheChangeFromNarrowToWideProducts) {
  std::vector<float> x;
  for (const float base : {2.0f, -2.0f}) {
    float below = base, above = base;
    for (int i = 0; i < 40; ++i) {
      below = std::nextafter(below, 0.0f);
      above = std::nextafter(above, base * 2);
      // Groups of every mixture: 32 below, 31 below and one not, ...
      x.insert(x.end(), 32, below);
      x.push_back(above);
      x.push_back(base);
      x.insert(x.end(), i, 1e-3f);
    }
  }
  for (const CodecCase& c : AllCases()) {
    // Codecs whose values may be a multiple of what was encoded.
    const bool larger =
        c.name() == "eden" || c.name() == "randk" || c.name() == "mxfp4" || c.name() == "powersgd";
    const int64_t part = larger ? 16 : 1;
    for (const int64_t weight :
         {int64_t{1}, ((int64_t{1} << 31) - 1) / part, (int64_t{1} << 31) / part}) {
      ExpectFold(c, x, {.fraction_bits = 30, .weight = weight});
      ExpectFold(c, x, {.fraction_bits = 30, .weight = -weight});
    }
  }
}

// Sixteen updates at once, of different weights, one of them in pieces: as one after the other.
TEST(Fold, OfManyUpdatesAtOnceEqualsOneAfterTheOther) {
  constexpr uint64_t kElements = 2 * kTileElements + 3001;
  std::vector<std::vector<float>> inputs;
  for (uint64_t u = 0; u < 16; ++u) {
    inputs.push_back(RandomFloats(u, kElements, u % 4 == 2 ? 1e-3 : 0.1));
  }
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    const int64_t weights[] = {1, 600, (int64_t{1} << 31) + 5, -7};
    std::vector<std::vector<uint8_t>> payloads;
    for (uint64_t u = 0; u < 16; ++u) {
      payloads.push_back(Encode(*codec, inputs[u], {.key = u, .round = 1}));
    }
    std::vector<PiecedBytes> whole;
    for (const auto& payload : payloads) whole.emplace_back(ByteSpan(payload));
    const CutBytes cut(payloads[14], 3, 777);
    whole[14] = cut.bytes();
    // Some are folded several abreast: as many as there are, and fewer.
    for (const size_t together : {1, 2, 3, 6, 16}) {
      std::vector<int64_t> one = Start(kElements), many = one;
      for (uint64_t begin = 0; begin < kElements; begin += kTileElements) {
        const uint64_t count = std::min(kTileElements, kElements - begin);
        std::vector<FoldPart> parts;
        for (size_t u = 16 - together; u < 16; ++u) {
          parts.push_back({&whole[u], begin, weights[u % 4]});
          codec->Fold(whole[u], begin, count, {30, weights[u % 4]}, one.data() + begin);
        }
        codec->FoldMany(parts, count, 30, many.data() + begin);
      }
      EXPECT_EQ(many, one) << c.spec << ", " << together;
    }
  }
}

// However many updates, whatever their scales (narrow and wide products side by side in one block),
// weights and length, on every target: as one after the other on the scalar target, which is
// checked against other arithmetic above.
TEST(Fold, OfManyUpdatesAtOnceIsTheSameOnEveryTarget) {
  // On both sides of 2^15 and of 2^19, where kernels for light updates end.
  constexpr int64_t kHeaviest[] = {600, 32767, 32768, (1 << 19) - 1, (1 << 19) + 3, INT32_MAX};
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    for (const size_t updates : {2, 3, 15, 16, 17, 35}) {
      for (const uint64_t n : {uint64_t{63}, uint64_t{64}, uint64_t{200}, uint64_t{1024 + 77}}) {
        std::vector<std::vector<uint8_t>> payloads;
        std::vector<PiecedBytes> pieces;
        for (size_t u = 0; u < updates; ++u) {
          // Elements up to 6 reach 2^31 at f = 30, so that products are wide.
          std::vector<float> x = RandomFloats(u, n, u % 5 == 4 ? 3.0 : 0.01);
          if (u == 1) x.assign(n, 0.0f);
          payloads.push_back(Encode(*codec, x, {.key = u, .round = 1}));
        }
        for (const auto& payload : payloads) pieces.emplace_back(ByteSpan(payload));
        for (const int64_t heaviest : kHeaviest) {
          std::vector<FoldPart> parts;
          for (size_t u = 0; u < updates; ++u) {
            parts.push_back({&pieces[u], 0, heaviest - static_cast<int64_t>(u)});
          }
          std::vector<int64_t> expected = Start(n);
          ASSERT_TRUE(ForceTarget(SupportedTargets().back()).ok());
          for (const FoldPart& part : parts) {
            codec->Fold(*part.payload, 0, n, {30, part.weight}, expected.data());
          }
          ASSERT_TRUE(ForceTarget("").ok());
          ForEachTarget([&](const std::string& target) {
            std::vector<int64_t> many = Start(n);
            codec->FoldMany(parts, n, 30, many.data());
            EXPECT_EQ(many, expected) << c.spec << " on " << target << ", " << updates
                                      << " updates of " << n << ", weights up to " << heaviest;
          });
          if (HasNonfatalFailure()) return;
        }
      }
    }
  }
}

// Blocks from denormal to the largest narrow scale, ties among their elements, at several exponents
// of the grid: equal to arithmetic in double and integers.
TEST(Fold, OfManyUpdatesIsRightForScalesOfEverySize) {
  for (const CodecCase& c :
       {CodecCase{"int8(rounding=nearest)", 128}, CodecCase{"int4(rounding=nearest)", 128},
        CodecCase{"mxint8", 32}, CodecCase{"mxfp4", 32}, CodecCase{"mxfp8", 32},
        CodecCase{"mxfp8(format=e5m2)", 32}, CodecCase{"fp8", 128},
        CodecCase{"fp8(format=e5m2)", 128}}) {
    const auto codec = Make(c.spec);
    constexpr uint64_t kElements = 128;
    for (const int f : {0, 15, 30, 44}) {
      for (int exponent = -149; exponent <= 31 - f; exponent += 3) {
        std::vector<std::vector<uint8_t>> payloads;
        for (uint64_t u = 0; u < 5; ++u) {
          // One update's block is all zeros, another's smaller than the others'.
          const double times = u == 3 ? 0 : u == 4 ? 0x1p-9 : 1;
          std::vector<float> x = RandomFloats(u + 5, kElements, times * std::ldexp(0.4, exponent));
          // Scales of few bits: ties.
          x[7] = static_cast<float>(times * std::ldexp(127.0 / 128, exponent));
          payloads.push_back(Encode(*codec, x));
        }
        std::vector<PiecedBytes> pieces;
        for (const auto& payload : payloads) pieces.emplace_back(ByteSpan(payload));
        std::vector<FoldPart> parts;
        std::vector<int64_t> expected = Start(kElements), many = expected;
        for (size_t u = 0; u < payloads.size(); ++u) {
          const auto weight = static_cast<int64_t>(700 + u);
          parts.push_back({&pieces[u], 0, weight});
          const std::vector<double> values = ReferenceValues(c, payloads[u], kElements);
          for (size_t i = 0; i < kElements; ++i) {
            expected[i] += ReferenceTerm(values[i], {.fraction_bits = f, .weight = weight});
          }
        }
        codec->FoldMany(parts, kElements, f, many.data());
        ASSERT_EQ(many, expected) << c.spec << ", f " << f << ", elements up to 2^" << exponent;
      }
    }
  }
}

TEST(Fold, IsUndoneByTheNegativeWeight) {
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    const std::vector<float> x = RandomFloats(8, 5000, 1.5);
    const std::vector<uint8_t> payload = Encode(*codec, x);
    const PiecedBytes pieced{ByteSpan(payload)};
    std::vector<int64_t> acc = Start(x.size());
    codec->Fold(pieced, 0, x.size(), {.fraction_bits = 30, .weight = 12345}, acc.data());
    EXPECT_NE(acc, Start(x.size()));
    codec->Fold(pieced, 0, x.size(), {.fraction_bits = 30, .weight = -12345}, acc.data());
    EXPECT_EQ(acc, Start(x.size()));
  }
}

TEST(Fold, OfPartsFromTileBoundariesEqualsTheWhole) {
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    const std::vector<float> x = RandomFloats(9, 2 * kTileElements + 777, 1.0);
    const std::vector<uint8_t> payload = Encode(*codec, x);
    const PiecedBytes pieced{ByteSpan(payload)};
    const GridFold grid{.fraction_bits = 30, .weight = 17};
    std::vector<int64_t> whole(x.size()), parts(x.size());
    codec->Fold(pieced, 0, x.size(), grid, whole.data());
    for (uint64_t begin = 0; begin < x.size(); begin += kTileElements) {
      codec->Fold(pieced, begin, std::min<uint64_t>(kTileElements, x.size() - begin), grid,
                  parts.data() + begin);
    }
    EXPECT_EQ(parts, whole) << c.spec;
    // A count that ends within a block touches nothing behind it.
    std::vector<int64_t> some(kTileElements, 5);
    codec->Fold(pieced, kTileElements, 1001, grid, some.data());
    for (uint64_t i = 0; i < kTileElements; ++i) {
      ASSERT_EQ(some[i], 5 + (i < 1001 ? whole[kTileElements + i] : 0)) << c.spec << " " << i;
    }
  }
}

TEST(Slices, CutAnywhereGiveTheSameFoldDecodeAndVerdict) {
  for (const CodecCase& c : AllCases()) {
    const auto codec = Make(c.spec);
    const std::vector<float> x = RandomFloats(10, 20011, 1.0);
    const std::vector<uint8_t> payload = Encode(*codec, x);
    const PiecedBytes one{ByteSpan(payload)};
    const GridFold grid{.fraction_bits = 30, .weight = 99};
    std::vector<int64_t> acc(x.size());
    std::vector<float> decoded(x.size());
    codec->Fold(one, 0, x.size(), grid, acc.data());
    codec->Decode(one, decoded);
    for (const size_t longest :
         {size_t{1}, size_t{3}, size_t{7}, size_t{40}, size_t{300}, size_t{9000}}) {
      for (uint64_t seed = 0; seed < (longest < 10 ? 1 : 8); ++seed) {
        const CutBytes cut(payload, seed, longest);
        EXPECT_EQ(codec->Validate(cut.bytes(), x.size(), 4096), absl::OkStatus());
        std::vector<int64_t> other(x.size());
        codec->Fold(cut.bytes(), 0, x.size(), grid, other.data());
        EXPECT_EQ(other, acc) << c.spec << ", pieces up to " << longest << ", seed " << seed;
        std::vector<float> floats(x.size());
        codec->Decode(cut.bytes(), floats);
        EXPECT_EQ(floats, decoded) << c.spec << ", pieces up to " << longest;
      }
    }
  }
}

TEST(RawInt64, FoldsAndValidatesInAnySlices) {
  std::vector<int64_t> x(3001);
  PhiloxStream random(3);
  for (int64_t& v : x) v = static_cast<int64_t>(random.NextBelow(2'000'001)) - 1'000'000;
  std::vector<uint8_t> payload;
  EncodeRawInt64(x, &payload);
  ASSERT_EQ(payload.size(), 8 * x.size());
  const CutBytes cut(payload, 1, 50);
  EXPECT_EQ(ValidateRawInt64(cut.bytes(), x.size(), 1'000'000), absl::OkStatus());
  std::vector<int64_t> acc(1000, 3);
  FoldRawInt64(cut.bytes(), 2001, 1000, -7, acc.data());
  for (size_t i = 0; i < acc.size(); ++i) ASSERT_EQ(acc[i], 3 - 7 * x[2001 + i]);
}

}  // namespace
}  // namespace tributary::compression
