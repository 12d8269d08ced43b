// EDEN's own promises: the error that theory gives, that it has no bias, and that clients' errors
// are independent; and that signs and shared steps sum as counts.
#include <cmath>

#include "base/philox.h"
#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

std::vector<float> RoundTrip(const Codec& codec, std::span<const float> x,
                             const EncodeContext& context) {
  std::vector<float> out(x.size());
  codec.Decode(PiecedBytes(ByteSpan(Encode(codec, x, context))), out);
  return out;
}

double SquaredError(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return sum;
}

double Squares(std::span<const float> a) {
  double sum = 0;
  for (const float v : a) sum += double{v} * double{v};
  return sum;
}

// Of the normal distribution, 1/(1 - D) - 1 with D the Lloyd-Max distortion of Max (1960), Table I.
TEST(Eden, ErrsByWhatTheoryGivesForEachNumberOfBits) {
  const double distortion[] = {0.3634, 0.1175, 0.03454, 0.009497};
  const std::vector<float> x = RandomFloats(2, 64 * 1024);
  for (int bits = 1; bits <= 4; ++bits) {
    const auto codec = Make("eden(bits=" + std::to_string(bits) + ")");
    const double error = SquaredError(RoundTrip(*codec, x, {.key = 3}), x) / Squares(x);
    const double theory = 1 / (1 - distortion[bits - 1]) - 1;
    EXPECT_NEAR(error, theory, 0.03 * theory) << bits;
  }
}

TEST(Eden, ErrorOfTheMeanOverClientsFallsAsOneOverTheirNumberAndASharedSeedBreaksThat) {
  const std::vector<float> x = RandomFloats(6, 8 * 1024);
  const auto codec = Make("eden(bits=1)");
  for (const int clients : {10, 100}) {
    std::vector<double> mean(x.size()), shared(x.size());
    for (int c = 0; c < clients; ++c) {
      const auto own = RoundTrip(*codec, x, {.key = SeededHash(1, "codec", std::to_string(c))});
      const auto same = RoundTrip(*codec, x, {.key = 5});
      for (size_t i = 0; i < x.size(); ++i) {
        mean[i] += own[i] / clients;
        shared[i] += same[i] / clients;
      }
    }
    double error = 0, shared_error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(mean[i] - x[i], 2);
      shared_error += std::pow(shared[i] - x[i], 2);
    }
    EXPECT_NEAR(error / Squares(x) * clients, 0.571, 0.03) << clients;
    EXPECT_GT(shared_error / Squares(x), 0.5);
  }
}

// Negative values and zeros among them. A Hadamard rotation is not a uniform one, so that there is
// a bias; for values like training's it drowns in the noise, and a heavy tail shows it.
TEST(Eden, MeanOfManyEncodingsIsNearTheInput) {
  std::vector<float> usual = RandomFloats(9, 256);
  for (size_t i = 5; i < usual.size(); i += 16) usual[i] = 0;
  std::vector<float> heavy = usual;
  for (size_t i = 0; i < heavy.size(); i += 16) heavy[i] *= 8;
  for (const int bits : {1, 2}) {
    const auto codec = Make("eden(block=256, bits=" + std::to_string(bits) + ")");
    for (const auto& x : {usual, heavy}) {
      constexpr int kEncodings = 4000;
      std::vector<double> mean(x.size());
      double variance = 0;
      for (uint32_t k = 0; k < kEncodings; ++k) {
        const auto decoded = RoundTrip(*codec, x, {.key = 8, .round = k});
        for (size_t i = 0; i < x.size(); ++i) mean[i] += double{decoded[i]} / kEncodings;
        variance += SquaredError(decoded, x) / kEncodings;
      }
      double error = 0;
      for (size_t i = 0; i < x.size(); ++i) error += std::pow(mean[i] - x[i], 2);
      // What noise alone leaves of the squared error, and a bias of 2 % and 10 % of the norm.
      const double bias = x == heavy ? 0.1 : 0.02;
      EXPECT_LE(error, 1.3 * variance / kEncodings + bias * bias * Squares(x)) << bits;
    }
  }
}

// Of linear codecs: integers that aggregators add, whatever the grouping, never leave their type.
TEST(Linear, SumsOfVotesAreCountsAndSumsOfStepsAreIntegersInTwoGroupsAsInOne) {
  for (const char* spec :
       {"sign(mode=vote, step=2^-10)", "hq(bits=8, step=2^-12)", "hq(bits=4, step=2^-12)"}) {
    const auto codec = Make(spec);
    EXPECT_TRUE(codec->capabilities().linear);
    const int step = spec[0] == 's' ? 10 : 12;
    const GridFold grid{.fraction_bits = 30, .weight = 1};
    std::vector<int64_t> all(5000), left(5000), right(5000), counts(5000);
    for (int client = 0; client < 300; ++client) {  // more than 258: int16 would not do
      const std::vector<float> x = RandomFloats(client, 5000);
      const auto payload = Encode(*codec, x, {.key = static_cast<uint64_t>(client)});
      const PiecedBytes bytes{ByteSpan(payload)};
      codec->Fold(bytes, 0, 5000, grid, all.data());
      codec->Fold(bytes, 0, 5000, grid, client % 2 == 0 ? left.data() : right.data());
      std::vector<float> decoded(5000);
      codec->Decode(bytes, decoded);
      for (size_t i = 0; i < 5000; ++i) {
        counts[i] += static_cast<int64_t>(std::ldexp(decoded[i], step));
      }
    }
    for (size_t i = 0; i < 5000; ++i) {
      ASSERT_EQ(all[i], counts[i] << (30 - step)) << spec;
      ASSERT_EQ(left[i] + right[i], all[i]) << spec;
    }
  }
}

}  // namespace
}  // namespace tributary::compression
