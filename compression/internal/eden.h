// Between eden_codec.cc (checks, pieces) and eden.cc (kernels). A block is a float32 and then the
// codes of its rotated elements; every function takes one whole block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "compression/codec.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

inline constexpr uint32_t kEdenDefaultBlock = 1024;
inline constexpr uint32_t kEdenMinBlock = 64;
inline constexpr uint32_t kEdenMaxBlock = 4096;
inline constexpr uint32_t kEdenShortest = 16;  // the last block is filled up to a power of two
// |bits| of the smallest float beyond 2^100: sums over a block stay finite.
inline constexpr uint32_t kEdenFirstOverflow = 0x71800001;

std::shared_ptr<const Codec> MakeEden(int bits, uint32_t block);

// Blocks are rotated by signs and a Hadamard transform. `key` and the block's first element within
// its segment say the signs.
struct EdenBlock {
  int bits = 1;
  uint64_t key = 0;
  uint64_t first = 0;
  size_t size = 0;  // a power of two, the filling included
};
inline size_t EdenBytes(int bits, size_t size) { return 4 + size * static_cast<size_t>(bits) / 8; }

// Encodes n <= size elements.
void EdenEncode(const EdenBlock& block, const float* x, size_t n, uint8_t* out);
// The integers whose product with the block's float32 are the elements: size of them.
void EdenIntegers(const EdenBlock& block, const uint8_t* p, int32_t* out);
// The largest magnitude of n integers.
int32_t EdenLargest(const int32_t* integers, size_t n);
// out[i] = integers[i] * scale.
void EdenDecode(const int32_t* integers, size_t n, float scale, float* out);
// acc[i] += weight * rne(integers[i] * args.scale), |integers[i]| * args.scale <= 2^50.
void EdenFold(const int32_t* integers, size_t n, const FoldArgs& args, int64_t* acc);

}  // namespace tributary::compression
