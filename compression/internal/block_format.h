// What the block codecs share (int4, int2, sign, fp8, the MX formats, hq): blocks of a scale and
// codes of 1, 2, 4 or 8 bits, all of one size but the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "compression/codec.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

enum class ScaleKind : uint8_t {
  kFloat32,  // a binary32 in front of each block
  kE8M0,     // a byte e in front of each block: 2^(e - 127), as in OCP's MX
  kShared,   // none: the header's parameter says it for the whole run
};
enum class CodeKind : uint8_t {
  kInteger,  // two's complement
  kSign,     // one bit: 0 is +1, 1 is -1
  kE2M1,     // 4 bits; its values are counted in halves, so that they are integers
  kE4M3,
  kE5M2,
};

// An element's value is the exact product scale * 2^unit_exponent * code.
struct BlockFormat {
  Capabilities capabilities;
  uint32_t parameter = 0;  // of the segment header
  uint32_t block = 128;    // elements, a power of two in [16, kMaxBlock]
  int bits = 8;            // a code
  ScaleKind scale_kind = ScaleKind::kFloat32;
  CodeKind code_kind = CodeKind::kInteger;
  int unit_exponent = 0;
  int levels = 0;        // integers: an encoder's codes are in [-levels, levels]
  float largest = 0;     // the largest |code| that a decoder takes, in units
  int top_exponent = 0;  // E8M0: the scale is 2^(floor(log2(max)) - this)
  bool stochastic = false;

  size_t scale_bytes() const {
    return scale_kind == ScaleKind::kFloat32 ? 4 : scale_kind == ScaleKind::kE8M0 ? 1 : 0;
  }
  size_t BlockBytes(size_t length) const {
    return scale_bytes() + (length * static_cast<size_t>(bits) + 7) / 8;
  }
  bool floats() const { return code_kind == CodeKind::kE4M3 || code_kind == CodeKind::kE5M2; }
};

std::shared_ptr<const Codec> MakeBlockCodec(BlockFormat format);

// Each checks its parameters: INVALID_ARGUMENT without the spec, which the caller names.
std::shared_ptr<const Codec> MakeInt4(uint32_t block, bool stochastic);
std::shared_ptr<const Codec> MakeInt2(uint32_t block, bool stochastic);
std::shared_ptr<const Codec> MakeSign(uint32_t block);
std::shared_ptr<const Codec> MakeSignVote(int step_exponent);
std::shared_ptr<const Codec> MakeFp8(uint32_t block, bool e5m2);
std::shared_ptr<const Codec> MakeMxFp8(bool e5m2);
std::shared_ptr<const Codec> MakeMxFp4();
std::shared_ptr<const Codec> MakeMxInt8();
std::shared_ptr<const Codec> MakeHq(int bits, int step_exponent, bool stochastic);

inline constexpr uint32_t kDefaultBlock = 128;
inline constexpr uint32_t kSignDefaultBlock = 1024;
inline constexpr uint32_t kMxBlock = 32;
inline constexpr uint32_t kVoteFlag = 0x80000000;  // sign's parameter: votes, with the step below
inline constexpr int kMaxStepExponent = 60;        // steps are 2^-60 to 1

// --- Kernels (block_kernels.cc). Blocks lie contiguous.
// Encodes x, whose elements are all at most 2^127.
void EncodeBlocks(const BlockFormat& format, const float* x, size_t n, const EncodeContext& context,
                  uint8_t* out);
// Of `blocks` blocks of `length` elements. args.narrow_limit says whether the weight is narrow.
void FoldBlocks(const BlockFormat& format, const uint8_t* p, size_t blocks, size_t length,
                const FoldArgs& args, int64_t* acc);
void DecodeBlocks(const BlockFormat& format, const uint8_t* p, size_t blocks, size_t length,
                  float* out);

// The mean of |x| in binary64, rounded to binary32: eight sums, of the elements whose index modulo
// 8 is the same, then ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)).
float MeanMagnitude(const float* x, size_t n);

// The smallest float whose product with `levels` is at least max, or its neighbour above: nothing
// is clamped. 0 only for 0.
inline float ScaleFor(float max, float levels) {
  const float scale = max / levels;
  if (static_cast<double>(scale) * static_cast<double>(levels) >= static_cast<double>(max)) {
    return scale;
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) + 1);
}

// The MX rule's scale byte: 2^(floor(log2(max)) - top_exponent), within what a byte can say.
inline uint8_t MxScale(float max, int top_exponent) {
  if (max == 0) return 0;
  const int exponent = std::ilogb(max) - top_exponent + 127;
  return static_cast<uint8_t>(exponent < 0 ? 0 : exponent > 254 ? 254 : exponent);
}

// 2^exponent, from -149 to 127, without a call a block.
inline float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23
                                               : uint32_t{1} << (exponent + 149));
}

// The scale in front of a block, times the unit: a float without rounding, except that 2^(e - 127)
// times a unit may be as small as 2^-133, a subnormal, also exact.
inline float BlockUnit(const BlockFormat& format, const uint8_t* block) {
  if (format.scale_kind == ScaleKind::kFloat32) return LoadLe<float>(block);
  const int e8m0 = format.scale_kind == ScaleKind::kE8M0 ? int{block[0]} - 127 : 0;
  return PowerOfTwo(e8m0 + format.unit_exponent);
}

}  // namespace tributary::compression
