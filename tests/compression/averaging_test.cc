// Errors of unbiased codecs are independent from one encoding to the next, so that the error of a
// mean falls as one over their number; and where what should differ is shared, they do not.
//
// The squared error of a mean of n, times n, over the variance of one encoding is 1, give or take 4
// of its own standard deviations, which follow from the error's second and fourth moments.
#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/philox.h"
#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

constexpr size_t kElements = 32768;

// Of the error of one encoding of an element.
struct Moments {
  double second = 0;
  double fourth = 0;
};

struct Promise {
  const char* spec;
  std::function<Moments(double x)> moments;
  // How much more the summed squared error may vary than of independent elements.
  double dependence = 1;
  // What makes encodings independent: the client, or (a mask that clients share) the round.
  bool by_round = false;
};

// Rounding at random between two multiples of `step`: up with probability p, else down.
std::function<Moments(double)> Rounding(double step) {
  return [step](double x) {
    const double position = std::abs(x) / step;
    const double p = position - std::floor(position);
    const double variance = step * step * p * (1 - p);
    return Moments{variance, variance * step * step * (std::pow(p, 3) + std::pow(1 - p, 3))};
  };
}

// z * x with probability 1 / z, else nothing: together (z - 1) * |x|^2, as of any choice of one in
// z. Errors within a stratum are negatively correlated, -x_i * x_j: of means of many their squares'
// covariances 2 * x_i^2 * x_j^2 add at most 1 / (z - 1) to the variances 2 * (z - 1)^2 * x_i^4.
Promise Masked(const char* spec, double z) {
  const auto moments = [z](double x) {
    const double others = 1 - 1 / z;
    return Moments{(z - 1) * x * x, std::pow(x, 4) * (std::pow(z - 1, 4) / z + others)};
  };
  return {spec, moments, z / (z - 1), /*by_round=*/true};
}

std::vector<Promise> Promises() {
  return {{"int8(block=64)", Rounding(0.127 / 127)},
          {"int4(block=64)", Rounding(0.127 / 7)},
          {"int2(block=64)", Rounding(0.127)},
          {"int8(block=64) | lz4", Rounding(0.127 / 127)},
          {"int4(block=64) | zeros", Rounding(0.127 / 7)},
          {"int2(block=64) | zeros | zstd", Rounding(0.127)},
          // Within its levels.
          {"hq(bits=8, step=2^-8)", Rounding(0x1p-8)},
          {"hq(bits=4, step=2^-4)", Rounding(0x1p-4)},
          Masked("randk(0.5)", 2),
          Masked("randk(0.25)", 4),
          Masked("randk(0.0625)", 16)};
}

// Blocks of 64 whose maximum is 0.127, some of them zero throughout.
std::vector<float> Input() {
  std::vector<float> x = RandomFloats(31, kElements, 0.03);
  for (size_t from = 0; from < kElements; from += 64) {
    x[from + from / 64 % 64] = from % 128 == 0 ? 0.127f : -0.127f;
  }
  std::fill(x.begin() + 1024, x.begin() + 2048, 0.0f);
  return x;
}

// Of the k-th of the encodings that are averaged. Not independent: what makes them so is the same
// in all, though everything else differs.
EncodeContext ContextOf(const Promise& promise, uint32_t k, bool independent) {
  const uint32_t client = independent || promise.by_round ? k : 0;
  const uint32_t round = promise.by_round && independent ? k : 1;
  return {.key = SeededHash(1, "codec", "client-" + std::to_string(client)),
          .round = round,
          .tensor = 2,
          .shared_key = SeededHash(1, "mask", "")};
}

// |mean of n - x|^2
double ErrorOfMean(const Promise& promise, const std::vector<float>& x, uint32_t n,
                   bool independent) {
  const auto codec = Make(promise.spec);
  std::vector<double> sums(x.size());
  std::vector<float> decoded(x.size());
  for (uint32_t k = 0; k < n; ++k) {
    const auto payload = Encode(*codec, x, ContextOf(promise, k, independent));
    codec->Decode(PiecedBytes(ByteSpan(payload)), decoded);
    for (size_t i = 0; i < x.size(); ++i) sums[i] += double{decoded[i]};
  }
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) error += std::pow(sums[i] / n - double{x[i]}, 2);
  return error;
}

// By theory: the variance of one encoding, and four deviations of the measured ratio of n.
struct Theory {
  double variance = 0;
  double tolerance = 0;
};
Theory TheoryOf(const Promise& promise, const std::vector<float>& x, uint32_t n) {
  Theory theory;
  double spread = 0;  // of n times an element's squared error
  for (const float v : x) {
    const auto [second, fourth] = promise.moments(v);
    theory.variance += second;
    spread += (fourth + 3.0 * (n - 1) * second * second) / n - second * second;
  }
  // And what binary32 rounds: one encoding of randk(0.5) errs by just |x|, whatever it chose.
  theory.tolerance =
      4 * std::sqrt(promise.dependence * std::max(spread, 0.0)) / theory.variance + 1e-6;
  return theory;
}

TEST(Averaging, ErrorOfTheMeanFallsAsOneOverTheNumberAndASharedSeedBreaksThat) {
  const std::vector<float> x = Input();
  for (const Promise& promise : Promises()) {
    for (const uint32_t n : {1, 4, 16, 64}) {
      SCOPED_TRACE(std::string(promise.spec) + ", mean of " + std::to_string(n));
      const auto [variance, tolerance] = TheoryOf(promise, x, n);
      ASSERT_LT(tolerance, 0.2);
      const double ratio = ErrorOfMean(promise, x, n, /*independent=*/true) * n / variance;
      EXPECT_NEAR(ratio, 1, tolerance);
      // The planted fault: the same check must see it, as an error that stays what one has.
      const double shared = ErrorOfMean(promise, x, n, /*independent=*/false) * n / variance;
      EXPECT_NEAR(shared / n, 1, TheoryOf(promise, x, 1).tolerance);
      if (n > 1) {
        EXPECT_GT(std::abs(shared - 1), tolerance);
      }
    }
  }
}

// Whoever says to be unbiased is among them, or exact.
TEST(Averaging, EveryCodecWhoseRowSaysUnbiasedIsHeldToIt) {
  std::set<std::string> held = {"int64", "fp32"};
  for (const Promise& promise : Promises()) {
    held.insert(Make(promise.spec)->capabilities().name);
  }
  for (const Capabilities& row : AllCodecs()) {
    if (row.unbiased) {
      EXPECT_TRUE(held.contains(row.name)) << row.name;
    }
  }
  for (const CodecCase& c : AllCases()) {
    const Capabilities& row = Make(c.spec)->capabilities();
    if (row.unbiased) {
      EXPECT_TRUE(held.contains(row.name)) << c.spec;
    }
  }
}

// Rounded to nearest, 1 + 2^-12 comes back as 1 however often it is sent.
TEST(Averaging, RandomKOfHalfFloatsDoesNotSayUnbiased) {
  EXPECT_TRUE(Make("randk(0.5)")->capabilities().unbiased);
  const auto half = Make("randk(0.5, values=fp16)");
  EXPECT_FALSE(half->capabilities().unbiased);
  EXPECT_FALSE(Make("randk(0.5, scaled=no)")->capabilities().unbiased);
  const std::vector<float> x(4096, 1 + 0x1p-12f);
  std::vector<float> decoded(x.size());
  half->Decode(PiecedBytes(ByteSpan(Encode(*half, x))), decoded);
  for (const float v : decoded) EXPECT_TRUE(v == 0 || v == 2) << v;
}

}  // namespace
}  // namespace tributary::compression
