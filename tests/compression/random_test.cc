// Random numbers by the vectors that C++, CUDA and Python share.
#include "random_vectors.h"

#include <cmath>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

TEST(Random, NumbersAreThoseOfTheSharedVectorsAtRunTimeToo) {
  volatile uint64_t zero = 0;
  EXPECT_EQ(FirstWrongVector(zero), 0) << "the line of tests/golden/random/vectors.inc";
  EXPECT_NE(FirstWrongVector(zero + 1), 0) << "of other keys they are others";
  EXPECT_EQ(FirstWrongHash(), 0);
}

// The kernels make many at once; at half-way every number between 0 and 65,535 is told by whether
// it rounds up at a step above or below it.
TEST(Random, EncodersRoundByTheNumbersThatADeviceWouldTake) {
  constexpr uint64_t kFirst = (uint64_t{1} << 35) - kTileElements;  // to a counter beyond 32 bits
  std::vector<float> x(2 * kTileElements);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(static_cast<float>(i % 4096) / 4096, -12);  // fractions of hq's step
  }
  const EncodeContext context{.key = 0xFEDCBA9876543210, .round = 7, .tensor = 3, .first = kFirst};
  const auto codec = Make("hq(bits=8, step=2^-12)");
  ForEachTarget([&](const std::string&) {
    const std::vector<uint8_t> payload = Encode(*codec, x, context);
    for (uint64_t i = 0; i < x.size(); ++i) {
      const uint32_t r = RoundingNumber(context.key, context.round, context.tensor, kFirst + i);
      ASSERT_EQ(payload[i], (i % 4096 * 16 + r) / 65536) << i;
    }
  });
}

}  // namespace
}  // namespace tributary::compression
