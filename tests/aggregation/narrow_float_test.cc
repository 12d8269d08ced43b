// Promises of fp16 and bf16, straight from double.
#include "aggregation/internal/narrow_float.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tributary::aggregation {
namespace {

struct Half {
  static uint16_t To(double x) { return internal::ToF16(x); }
  static double From(uint16_t bits) { return internal::FromF16(bits); }
  static constexpr uint16_t kInfinity = 0x7C00;
};
struct Brain {
  static uint16_t To(double x) { return internal::ToBf16(x); }
  static double From(uint16_t bits) { return internal::FromBf16(bits); }
  static constexpr uint16_t kInfinity = 0x7F80;
};
template <class Format>
class NarrowFloatTest : public ::testing::Test {};
using Formats = ::testing::Types<Half, Brain>;
TYPED_TEST_SUITE(NarrowFloatTest, Formats);

TYPED_TEST(NarrowFloatTest, ReturnsEveryNumberAsItWas) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = TypeParam::From(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(TypeParam::From(TypeParam::To(value))));
    } else {
      ASSERT_EQ(TypeParam::To(value), bits);
    }
  }
}

TYPED_TEST(NarrowFloatTest, RoundsToTheNearestAndTiesToEven) {
  for (uint16_t bits = 0; bits + 1 < TypeParam::kInfinity; ++bits) {
    const double low = TypeParam::From(bits);
    const double high = TypeParam::From(bits + 1);
    ASSERT_LT(low, high);
    const double middle = low + (high - low) / 2;  // exact: doubles have bits to spare
    ASSERT_EQ(TypeParam::To(middle), bits + bits % 2) << bits;
    ASSERT_EQ(TypeParam::To(std::nextafter(middle, 0)), bits);
    ASSERT_EQ(TypeParam::To(std::nextafter(middle, HUGE_VAL)), bits + 1);
    ASSERT_EQ(TypeParam::To(-middle), 0x8000 | (bits + bits % 2));
  }
}

TYPED_TEST(NarrowFloatTest, OverflowsToInfinityWhereIeeeDoes) {
  const uint16_t last = TypeParam::kInfinity - 1;
  const double largest = TypeParam::From(last);
  const double half_step = (largest - TypeParam::From(last - 1)) / 2;
  EXPECT_EQ(TypeParam::To(std::nextafter(largest + half_step, 0)), last);
  EXPECT_EQ(TypeParam::To(largest + half_step), TypeParam::kInfinity);  // the tie: the last is odd
  EXPECT_EQ(TypeParam::To(1e300), TypeParam::kInfinity);
  EXPECT_EQ(TypeParam::To(-HUGE_VAL), 0x8000 | TypeParam::kInfinity);
  EXPECT_EQ(TypeParam::To(5e-324), 0);
  EXPECT_EQ(TypeParam::To(-5e-324), 0x8000);
}

TEST(NarrowFloatTest, MatchesPublishedPatterns) {
  EXPECT_EQ(internal::FromF16(0x3C00), 1);
  EXPECT_EQ(internal::FromF16(0x7BFF), 65504);
  EXPECT_EQ(internal::FromF16(0x0001), 0x1p-24);
  EXPECT_EQ(internal::FromF16(0x3555), 0.333251953125);
  EXPECT_EQ(internal::FromF16(0xC000), -2);
  EXPECT_EQ(internal::FromBf16(0x3F80), 1);
  EXPECT_EQ(internal::FromBf16(0x4049), 3.140625);
  EXPECT_EQ(internal::FromBf16(0x0001), 0x1p-133);
}

}  // namespace
}  // namespace tributary::aggregation
