// Bit-packing of one block of a partial sum (docs/wire-format.md, "Partial sum"): the kernels.
//
// A block is 64 rows of 8 lanes. Each lane's 64 values are packed on their own, so a vector of
// lanes packs and unpacks without crossing lanes, whatever the vector's width, and to the same
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tributary::aggregation::internal {

inline constexpr size_t kLanes = 8;
inline constexpr size_t kRows = 64;
inline constexpr size_t kBlockValues = kLanes * kRows;
// The bytes of a packed block, for each bit of its width.
inline constexpr size_t kBytesPerBit = kBlockValues / 8;

// The fewest bits that hold all 512 values as two's complement, [0, 64]; 0 when all are zero.
size_t BlockWidth(const int64_t* values);
// Packs 512 values, which fit `width` bits, into width * 64 bytes at `out` (any alignment).
void PackBlock(const int64_t* values, size_t width, uint8_t* out);
// The reverse: writes 512 values, adds them to what is there, or subtracts them (both modulo 2^64).
void UnpackBlock(const uint8_t* packed, size_t width, int64_t* out);
void UnpackAddBlock(const uint8_t* packed, size_t width, int64_t* out);
void UnpackSubtractBlock(const uint8_t* packed, size_t width, int64_t* out);

}  // namespace tributary::aggregation::internal
