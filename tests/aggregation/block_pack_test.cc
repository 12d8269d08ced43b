// Promises of the bit-packing kernels: every width, every target, the bytes that the format
// describes.
#include "aggregation/internal/block_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "compression/codec.h"

namespace tributary::aggregation::internal {
namespace {

using Values = std::array<int64_t, kBlockValues>;

// Values that need exactly `width` bits, both ends of its range among them.
Values ValuesOfWidth(size_t width, uint64_t seed) {
  Values values{};
  if (width == 0) return values;
  PhiloxStream random(seed, width);
  for (int64_t& v : values) v = static_cast<int64_t>(random.Next64()) >> (64 - width);
  values[3] = static_cast<int64_t>(~uint64_t{0} << (width - 1));       // -2^(width-1)
  values[511] = static_cast<int64_t>(~(~uint64_t{0} << (width - 1)));  // 2^(width-1) - 1
  return values;
}

// The format's text, bit by bit: bit `b` of row `r` of a lane is bit r*width+b of the lane's words.
std::vector<uint8_t> PackByTheText(const Values& values, size_t width) {
  std::vector<uint8_t> out(width * kBytesPerBit);
  for (size_t i = 0; i < kBlockValues; ++i) {
    for (size_t b = 0; b < width; ++b) {
      if ((static_cast<uint64_t>(values[i]) >> b & 1) == 0) continue;
      const size_t bit = (i / kLanes) * width + b;
      const size_t word = bit / 64;
      const size_t in_word = bit % 64;
      out[word * 64 + (i % kLanes) * 8 + in_word / 8] |= static_cast<uint8_t>(1u << (in_word % 8));
    }
  }
  return out;
}

// Runs `check` under each target that this CPU has, and prints those that it lacks.
template <class Check>
void UnderEveryTarget(Check check) {
  for (const std::string& target : compression::SupportedTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(compression::ForceTarget(target).ok());
    check();
  }
  ASSERT_TRUE(compression::ForceTarget("").ok());
}

TEST(BlockPackTest, WritesTheFormatsBytesForEveryWidthUnderEveryTarget) {
  UnderEveryTarget([] {
    for (size_t width = 0; width <= 64; ++width) {
      const Values values = ValuesOfWidth(width, 1);
      EXPECT_EQ(BlockWidth(values.data()), width);
      // One byte more, to see that none is written past the end; at an odd address.
      std::vector<uint8_t> packed(width * kBytesPerBit + 2, 0xA5);
      PackBlock(values.data(), width, packed.data() + 1);
      EXPECT_EQ(packed.back(), 0xA5);
      EXPECT_EQ(packed.front(), 0xA5);
      EXPECT_EQ(std::vector<uint8_t>(packed.begin() + 1, packed.end() - 1),
                PackByTheText(values, width))
          << width;
    }
  });
}

TEST(BlockPackTest, UnpacksAddsAndSubtractsEveryWidthUnderEveryTarget) {
  UnderEveryTarget([] {
    for (size_t width = 0; width <= 64; ++width) {
      const Values values = ValuesOfWidth(width, 2);
      const std::vector<uint8_t> packed = PackByTheText(values, width);
      Values out;
      out.fill(-1);
      UnpackBlock(packed.data(), width, out.data());
      EXPECT_EQ(out, values) << width;
      const Values start = ValuesOfWidth(40, 3);
      Values sum = start;
      UnpackAddBlock(packed.data(), width, sum.data());
      for (size_t i = 0; i < kBlockValues; ++i) {
        const auto expected = static_cast<int64_t>(static_cast<uint64_t>(start[i]) +
                                                   static_cast<uint64_t>(values[i]));
        ASSERT_EQ(sum[i], expected) << width << " " << i;
      }
      UnpackSubtractBlock(packed.data(), width, sum.data());
      EXPECT_EQ(sum, start) << width;
    }
  });
}

TEST(BlockPackTest, WidthIsTheFewestBitsOfTwosComplement) {
  const std::pair<int64_t, size_t> rows[] = {{0, 0},
                                             {-1, 1},
                                             {1, 2},
                                             {-2, 2},
                                             {63, 7},
                                             {64, 8},
                                             {-64, 7},
                                             {-65, 8},
                                             {127, 8},
                                             {128, 9},
                                             {-128, 8},
                                             {std::numeric_limits<int64_t>::max(), 64},
                                             {std::numeric_limits<int64_t>::min(), 64},
                                             {std::numeric_limits<int64_t>::max() / 2, 63},
                                             {std::numeric_limits<int64_t>::min() / 2, 63}};
  UnderEveryTarget([&] {
    for (const auto& [value, width] : rows) {
      for (const size_t at : {0, 7, 200, 511}) {
        Values values{};
        values[at] = value;
        EXPECT_EQ(BlockWidth(values.data()), width) << value << " at " << at;
      }
    }
  });
}

TEST(BlockPackTest, SaysWhichTargetsThisMachineCannotTry) {
  const auto supported = compression::SupportedTargets();
  ASSERT_FALSE(supported.empty());
  for (const char* wanted : {"AVX3", "AVX2"}) {
    if (std::find(supported.begin(), supported.end(), wanted) == supported.end()) {
      std::cout << "not tried: target " << wanted << ", which this CPU or build lacks\n";
    }
  }
}

}  // namespace
}  // namespace tributary::aggregation::internal
