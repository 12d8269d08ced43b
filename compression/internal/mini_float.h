// Floats of eight bits and fewer in scalar form: OCP's e4m3 and e5m2 (OFP8), and e2m1 (MX). They
// define the values; the vector kernels give the same bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tributary::compression {

// kMantissa mantissa bits, exponent bias kBias, largest finite magnitude code kTop.
template <int kMantissaBits, int kExponentBias, uint32_t kTopCode, int kTopMantissa, int kTopExp>
struct MiniFloat {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = kExponentBias;
  static constexpr uint32_t kTop = kTopCode;
  static constexpr float kLargest =
      static_cast<float>(kTopMantissa) * static_cast<float>(1 << kTopExp);
  static constexpr int kSignShift = 31 - (kTopCode > 7 ? 7 : 3);  // float's sign to the code's
  // Magnitude bits of the smallest normal number as a float, and of the float whose unit in the
  // last place is the smallest subnormal: adding it makes the float adder round to a multiple.
  static constexpr uint32_t kNormal = uint32_t{128 - kBias} << 23;
  static constexpr uint32_t kAdder = uint32_t{127 + 24 - kBias - kMantissa} << 23;
  static constexpr int kDrop = 23 - kMantissa;
  static constexpr uint32_t kRebias = uint32_t{127 - kBias} << 23;
};
using E4M3 = MiniFloat<3, 7, 0x7E, 7, 6>;    // 448
using E5M2 = MiniFloat<2, 15, 0x7B, 7, 13>;  // 57344
using E2M1 = MiniFloat<1, 1, 0x7, 3, 1>;     // 6

// Nearest, ties to even; what is beyond the largest becomes the largest.
template <class F>
uint8_t ToMini(float y) {
  const uint32_t bits = std::bit_cast<uint32_t>(y);
  const uint32_t magnitude =
      std::min(bits & 0x7FFFFFFF, std::bit_cast<uint32_t>(float{F::kLargest}));
  uint32_t code;
  if (magnitude < F::kNormal) {
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(uint32_t{F::kAdder});
    code = std::bit_cast<uint32_t>(sum) - F::kAdder;
  } else {
    const uint32_t odd = (magnitude >> F::kDrop) & 1;
    code = (magnitude - F::kRebias + ((uint32_t{1} << (F::kDrop - 1)) - 1) + odd) >> F::kDrop;
  }
  return static_cast<uint8_t>(code | (bits >> 31) << (31 - F::kSignShift));
}

// Of an 8-bit code that is a number: exponent and mantissa in a float's place are 2^(127 - bias)
// too small, and the product is exact.
template <class F>
float FromMini(uint8_t code) {
  const float magnitude = std::bit_cast<float>(uint32_t{code & 0x7Fu} << F::kDrop) *
                          std::bit_cast<float>(uint32_t{254 - F::kBias} << 23);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | uint32_t{code & 0x80u} << 24);
}

}  // namespace tributary::compression
