// The codecs that promise it have no bias. (That errors are independent: averaging_test.cc.)
//
// Each element's mean over 100,000 encodings is held to 4 sigma of its own, by the variance that
// the format's text gives. By chance one in 16,000 elements would miss that, so of the 128 here one
// in a test of 120 seeds; seeds are fixed, and what is seen is that the elements together are as
// they should be as well: their squared errors in sigmas add up to a chi-square, held to 4 of its
// own deviations.
#include <cmath>
#include <functional>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

constexpr int kEncodings = 100'000;
constexpr size_t kElements = 128;

// Negative values, zeros, grid points, half-way points and block maxima among small ones: blocks of
// 64, each with 0.127 as its maximum. `step`: between the codec's own grid points; 0: it has none.
std::vector<float> Input(double step) {
  std::vector<float> x = RandomFloats(21, kElements, 0.03);
  for (size_t from = 0; from < kElements; from += 64) {
    x[from + 3] = from == 0 ? 0.127f : -0.127f;
    x[from + 4] = 0;
    x[from + 5] = -0.0f;
    x[from + 6] = -0.005f;  // on int8's grid
    x[from + 7] = 0.0025f;  // half-way between two points of it
    x[from + 8] = -0.127f;
    x[from + 9] = 1e-7f;
    const auto at = [&](double steps) { return static_cast<float>(steps * step); };
    // Within the grid, but for int2's, which has no point between zero and the largest.
    if (3 * step < 0.127) {
      x[from + 10] = at(1);
      x[from + 11] = at(-3);
      x[from + 12] = at(2.5);
    }
    x[from + 13] = at(-0.5);
  }
  return x;
}

// `variance(x)` of one encoding of an element; `slack` what finite random bits may shift it by.
void ExpectUnbiased(const std::string& spec, double step,
                    const std::function<double(double)>& variance, double slack) {
  const auto codec = Make(spec);
  const std::vector<float> x = Input(step);
  std::vector<double> sums(kElements);
  std::vector<float> decoded(kElements);
  std::vector<uint8_t> payload;
  for (uint32_t k = 0; k < kEncodings; ++k) {
    payload.clear();
    const EncodeContext context{.key = 5, .round = k, .tensor = 1, .shared_key = 3};
    ASSERT_EQ(codec->Encode(x, context, &payload), absl::OkStatus());
    codec->Decode(PiecedBytes(ByteSpan(payload)), decoded);
    for (size_t i = 0; i < kElements; ++i) sums[i] += double{decoded[i]};
  }
  double chi = 0;
  int random = 0;
  for (size_t i = 0; i < kElements; ++i) {
    const double sigma = std::sqrt(variance(x[i]) / kEncodings);
    const double error = sums[i] / kEncodings - x[i];
    EXPECT_LE(std::abs(error), 4 * sigma + slack) << spec << ", element " << i << ": " << x[i];
    if (sigma < 10 * slack) continue;  // hardly random
    chi += error * error / (sigma * sigma);
    ++random;
  }
  ASSERT_GT(random, 50);
  EXPECT_NEAR(chi / random, 1, 4 * std::sqrt(2.0 / random)) << spec;
}

// Of rounding at random between two multiples of `scale`.
std::function<double(double)> BetweenTwo(double scale) {
  return [scale](double x) {
    const double position = std::abs(x) / scale;
    const double fraction = position - std::floor(position);
    return scale * scale * fraction * (1 - fraction);
  };
}

TEST(Unbiased, TheMeanOfAHundredThousandEncodingsIsWithinFourSigma) {
  // 16 random bits: the mean is right to 2^-17 of a step; scale and values are floats.
  const auto on_grid = [](const std::string& spec, double step, double slack) {
    ExpectUnbiased(spec, step, BetweenTwo(step), slack);
  };
  on_grid("int8(block=64)", 0.127 / 127, 0.001 * 0x1p-16 + 4e-8);
  on_grid("int4(block=64)", 0.127 / 7, 0.018 * 0x1p-16 + 4e-8);
  on_grid("int2(block=64)", 0.127, 0.127 * 0x1p-16 + 4e-8);
  // Within its levels, hq too.
  on_grid("hq(bits=8, step=2^-9)", 0x1p-9, 0x1p-25);
  on_grid("hq(bits=4, step=2^-5)", 0x1p-5, 0x1p-21);
  // `stride` times x with the probability of 1 / stride.
  ExpectUnbiased(
      "randk(0.25)", 0, [](double x) { return 3 * x * x; }, 1e-9);
  ExpectUnbiased(
      "randk(0.0625)", 0, [](double x) { return 15 * x * x; }, 1e-9);
}

}  // namespace
}  // namespace tributary::compression
