// The stated errors of codecs that one bound for each element says little of, and of every codec at
// the largest numbers that it takes (docs/codecs.md, "How far off").
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

std::vector<float> Decoded(const Codec& codec, const std::vector<Part>& parts, size_t n) {
  std::vector<float> all(n);
  for (const Part& part : parts) {
    codec.Decode(PiecedBytes(ByteSpan(part.payload)),
                 std::span(all).subspan(part.first, part.count));
  }
  return all;
}

// Places, the largest first, the earlier of equals first.
std::vector<size_t> BySize(const std::vector<float>& x) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  return order;
}

// The first k of the order; zeros never.
std::vector<bool> Kept(const std::vector<float>& x, const std::vector<size_t>& order, size_t k) {
  std::vector<bool> kept(x.size());
  for (size_t j = 0; j < std::min(k, x.size()); ++j) kept[order[j]] = x[order[j]] != 0;
  return kept;
}

struct KeptNumbers {
  double largest = 0, mean = 0;
};
// Over a segment's kept elements, in binary64.
KeptNumbers NumbersOf(const std::vector<float>& x, const std::vector<bool>& kept,
                      const Part& part) {
  KeptNumbers numbers;
  size_t count = 0;
  for (uint64_t i = part.first; i < part.first + part.count; ++i) {
    if (!kept[i]) continue;
    ++count;
    numbers.largest = std::max(numbers.largest, std::abs(double{x[i]}));
    numbers.mean += std::abs(double{x[i]});
  }
  numbers.mean /= static_cast<double>(std::max<size_t>(count, 1));
  return numbers;
}

// What a kept element may be off by.
double AllowedOfKept(const std::string& values, double x, const KeptNumbers& numbers) {
  if (values == "fp32") return 0;
  if (values == "fp16") return std::max(std::abs(x) * 0x1p-11, 0x1p-25);
  if (values == "int8") return numbers.largest / 127 * (0.5 + 0x1p-16) + 0x1p-149;
  // Ternary: the mean in its place, rounded to float32 once.
  return std::abs(std::abs(x) - numbers.mean) + numbers.mean * 0x1p-24 + 0x1p-150;
}

void ExpectOfTopK(const std::string& values, double fraction, const std::vector<float>& x,
                  const std::vector<bool>& kept) {
  const auto codec = Make("topk(" + std::to_string(fraction) + ", values=" + values + ")");
  const std::vector<Part> parts = EncodeParts(*codec, x);
  const std::vector<float> decoded = Decoded(*codec, parts, x.size());
  for (const Part& part : parts) {
    const KeptNumbers numbers = NumbersOf(x, kept, part);
    // Ternary is exactly the mean, but for the order of a sum in binary64.
    const auto mean = static_cast<float>(numbers.mean);
    const float least = std::nextafter(mean, 0.0f);
    const float most = std::nextafter(mean, std::numeric_limits<float>::infinity());
    for (uint64_t i = part.first; i < part.first + part.count; ++i) {
      if (!kept[i]) {
        ASSERT_EQ(decoded[i], 0) << i;
        continue;
      }
      ASSERT_LE(std::abs(double{decoded[i]} - double{x[i]}),
                AllowedOfKept(values, double{x[i]}, numbers))
          << i << ": " << x[i] << " came back as " << decoded[i];
      if (values != "ternary") continue;
      ASSERT_EQ(std::signbit(decoded[i]), std::signbit(x[i])) << i;
      ASSERT_GE(std::abs(decoded[i]), least) << i;
      ASSERT_LE(std::abs(decoded[i]), most) << i;
    }
  }
}

TEST(StatedError, OfTopKIsThatOfItsValuesWhereElementsAreKeptAndTheElementElsewhere) {
  for (const std::string& pattern : Patterns()) {
    for (const size_t n : {size_t{1}, size_t{33}, size_t{4097}, 3 * kTileElements + 5}) {
      const std::vector<float>& x = MakeInput(pattern, n);
      const std::vector<size_t> order = BySize(x);
      for (const double fraction : {0.003, 0.3, 1.0}) {
        const auto k = std::max(1.0, std::round(fraction * static_cast<double>(n)));
        const std::vector<bool> kept = Kept(x, order, static_cast<size_t>(k));
        for (const std::string values : {"fp32", "fp16", "int8", "ternary"}) {
          SCOPED_TRACE(values + " " + std::to_string(fraction) + " of " + std::to_string(n) + ", " +
                       pattern);
          ExpectOfTopK(values, fraction, x, kept);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

struct Squares {
  double x = 0, lost = 0, product = 0;  // |x|^2, |x - decoded|^2, <x, decoded>
};
Squares SquaresOf(std::span<const float> x, std::span<const float> decoded) {
  Squares s;
  for (size_t i = 0; i < x.size(); ++i) {
    s.x += double{x[i]} * double{x[i]};
    s.lost += (double{x[i]} - double{decoded[i]}) * (double{x[i]} - double{decoded[i]});
    s.product += double{x[i]} * double{decoded[i]};
  }
  return s;
}

TEST(StatedError, OfPowerSgdIsWithinTheTensorsNorm) {
  for (const char* spec : {"powersgd(rank=1)", "powersgd", "powersgd(rank=5)"}) {
    const auto codec = Make(spec);
    for (const std::string& pattern : Patterns()) {
      for (const size_t n : {size_t{1}, size_t{2}, size_t{33}, size_t{4096}, size_t{65537}}) {
        const std::vector<float>& x = MakeInput(pattern, n);
        const Squares s = SquaresOf(x, Decoded(*codec, EncodeParts(*codec, x), n));
        // A projection, but for factors that are rounded to float32; of subnormal products nothing
        // is left to project.
        ASSERT_LE(s.lost, s.x * (1 + 1e-5)) << spec << ", " << n << " of " << pattern;
      }
    }
  }
}

// The scale is made so that what comes back has the length along x that x has: what is lost lies
// across it. So the error of a block is |x|^2 (1 / cos^2 - 1) with the angle between the rotated
// block and its codes, and no error feedback or mean over clients makes it shrink or grow.
TEST(StatedError, OfEdenLiesAcrossWhatWasEncoded) {
  for (const char* spec :
       {"eden(bits=1)", "eden(bits=2, block=64)", "eden(bits=3, block=4096)", "eden(bits=4)"}) {
    const auto codec = Make(spec);
    const CodecCase c{spec, 0};
    const size_t block = c.has("=64") ? 64 : c.has("=4096") ? 4096 : 1024;
    for (const std::string& pattern : Patterns()) {
      for (const size_t n : {size_t{1}, size_t{31}, size_t{1024}, size_t{4097}, size_t{40000}}) {
        SCOPED_TRACE(std::string(spec) + ", " + std::to_string(n) + " of " + pattern);
        const std::vector<float>& x = MakeInput(pattern, n);
        const std::vector<float> decoded = Decoded(*codec, EncodeParts(*codec, x), n);
        for (size_t at = 0; at < n; at += block) {
          const size_t count = std::min(block, n - at);
          const Squares s =
              SquaresOf(std::span(x).subspan(at, count), std::span(decoded).subspan(at, count));
          if (s.x < 0x1p-200) {  // such a block is all zeros
            ASSERT_EQ(s.lost, s.x) << at;
            continue;
          }
          ASSERT_NEAR(s.product, s.x, 1e-5 * s.x) << at;
          // The worst is one sign for all the energy of one coefficient.
          const size_t padded = std::max<size_t>(16, std::bit_ceil(count));
          ASSERT_LE(s.lost, static_cast<double>(padded - 1) * s.x * (1 + 1e-5)) << at;
        }
      }
    }
  }
}

// |x - estimate| is at most the median over the rows of the magnitudes that share x's cell there.
TEST(StatedError, OfASketchIsWhatSharesAnElementsCells) {
  for (const CodecCase& c : SketchCases()) {
    const auto codec = Make(c.spec);
    const uint64_t rows = c.has("rows=1") ? 1 : c.has("rows=3") ? 3 : 5;
    const double fraction = std::stod(c.spec.substr(c.spec.find('(') + 1));
    for (const std::string& pattern : Patterns()) {
      const std::vector<float>& x = MakeInput(pattern, kTileElements);
      const std::vector<Part> parts = EncodeParts(*codec, x);
      ASSERT_EQ(parts.size(), 1u);
      uint64_t key;
      std::memcpy(&key, parts[0].payload.data(), 8);
      const std::vector<float> decoded = Decoded(*codec, parts, x.size());
      const auto columns = static_cast<uint64_t>(fraction * static_cast<double>(kTileElements) /
                                                 static_cast<double>(rows));
      std::vector<double> together(rows * columns);
      for (uint64_t i = 0; i < x.size(); ++i) {
        for (uint32_t row = 0; row < rows; ++row) {
          together[SketchPlaceOf(key, i, row, columns).cell] += std::abs(double{x[i]});
        }
      }
      for (uint64_t i = 0; i < x.size(); ++i) {
        std::vector<double> others;
        for (uint32_t row = 0; row < rows; ++row) {
          others.push_back(together[SketchPlaceOf(key, i, row, columns).cell]);
        }
        std::ranges::sort(others);
        const double shared = others[rows / 2] - std::abs(double{x[i]});
        // Cells are sums rounded to float32, and those to the grid of the largest.
        ASSERT_LE(std::abs(double{decoded[i]} - double{x[i]}),
                  shared + others[rows - 1] * 0x1p-20 + 0x1p-30)
            << c.spec << ", " << pattern << ", " << i;
      }
    }
  }
}

struct LargestRow {
  CodecCase codec;
  float largest;  // refusal_test.cc: the next float is refused
};

std::vector<LargestRow> LargestRows() {
  constexpr float kMost = 0x1p127f;
  return {{{"fp32", 1}, std::numeric_limits<float>::max()},
          {{"fp16", 1}, 65519.996f},
          {{"bf16", 1}, 0x1.fefffep127f},
          {{"int8", 128, true}, kMost},
          {{"int8(rounding=nearest)", 128}, kMost},
          {{"int4", 128, true}, kMost},
          {{"int4(block=16, rounding=nearest)", 16}, kMost},
          {{"int2", 128, true}, kMost},
          {{"sign", 1024}, kMost},
          {{"sign(mode=vote, step=2^-10)", 4096}, kMost},
          {{"fp8", 128}, kMost},
          {{"fp8(format=e5m2)", 128}, kMost},
          {{"mxfp8", 32}, kMost},
          {{"mxfp8(format=e5m2)", 32}, kMost},
          {{"mxfp4", 32}, kMost},
          {{"mxint8", 32}, kMost},
          {{"hq", 4096, true}, kMost},
          {{"hq(bits=4, step=2^-8, rounding=nearest)", 4096}, kMost},
          {{"topk(0.1)", kTileElements, false, false}, kMost},
          {{"topk(0.1, values=fp16)", kTileElements, false, false}, 65519.996f},
          {{"topk(0.1, values=int8)", kTileElements, false, false}, kMost},
          {{"topk(0.1, values=ternary)", kTileElements, false, false}, kMost},
          {{"randk(0.01)", kTileElements, true, false}, 0x1p112f},
          {{"eden", 1024, true, false}, 0x1p100f},
          {{"eden(bits=1)", 1024, true, false}, 0x1p100f},
          {{"sketch(0.2)", kTileElements, true, false}, 0x1p100f},
          {{"int8 | zeros | lz4", 128, true, false}, kMost},
          {{"fp16 | zstd", 1, false, false}, 65519.996f}};
}

// All at the largest; one of them among ones; and every size up to it.
std::vector<std::vector<float>> LargestInputs(float largest, size_t n) {
  std::vector<std::vector<float>> inputs(3, std::vector<float>(n, 1.0f));
  for (size_t i = 0; i < n; ++i) {
    const float sign = i % 3 == 0 ? -1.0f : 1.0f;
    inputs[0][i] = sign * largest;
    if (i == n / 2) inputs[1][i] = sign * largest;
    inputs[2][i] = sign * largest * (static_cast<float>(i % 17) / 16);
  }
  return inputs;
}

TEST(StatedError, HoldsAtTheLargestNumbersThatEachCodecTakesUnderEveryTarget) {
  for (const LargestRow& row : LargestRows()) {
    const CodecCase& c = row.codec;
    const auto codec = Make(c.spec);
    const ErrorBound allowed = AllowedError(c);
    for (const size_t n : {size_t{1}, size_t{100}, size_t{4097}}) {
      for (const std::vector<float>& x : LargestInputs(row.largest, n)) {
        const std::vector<double> maxima = BlockMaxima(x, c.block);
        const std::vector<uint8_t> first = Encode(*codec, x);
        const std::vector<double> values = ReferenceValues(c, first, n);
        ForEachTarget([&](const std::string& target) {
          SCOPED_TRACE(c.spec + ", " + std::to_string(n) + " elements, " + target);
          const std::vector<uint8_t> payload = Encode(*codec, x);
          ASSERT_EQ(payload, first);
          const PiecedBytes pieced{ByteSpan(payload)};
          ASSERT_EQ(codec->Validate(pieced, n, 1e300), absl::OkStatus());
          std::vector<float> decoded(n);
          codec->Decode(pieced, decoded);
          ExpectDecoded(x, maxima, decoded, values, allowed);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(StatedError, OfPowerSgdHoldsAtTheLargestNumbersUnderEveryTarget) {
  const auto codec = Make("powersgd");
  for (const size_t n : {size_t{1}, size_t{100}, size_t{4097}}) {
    for (const std::vector<float>& x : LargestInputs(0x1p100f, n)) {
      std::vector<uint8_t> first;
      ForEachTarget([&](const std::string&) {
        const std::vector<uint8_t> payload = Encode(*codec, x);
        if (first.empty()) first = payload;
        ASSERT_EQ(payload, first);
        std::vector<float> decoded(n);
        codec->Decode(PiecedBytes(ByteSpan(payload)), decoded);
        const Squares s = SquaresOf(x, decoded);
        ASSERT_LE(s.lost, s.x * (1 + 1e-5)) << n;
      });
    }
  }
}

}  // namespace
}  // namespace tributary::compression
