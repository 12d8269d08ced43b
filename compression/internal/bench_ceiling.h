// The ceilings of the kernel bench: the same bytes moved with the least arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tributary::compression {

// Reads n bytes and adds them, over and over where the tile is longer, to `elements` int64.
void CeilingFold(const uint8_t* p, size_t n, int64_t* acc, size_t elements);
// Reads n bytes; the result depends on all of them.
uint64_t CeilingRead(const uint8_t* p, size_t n);
// Adds 1 to `sums` sums, `stride` apart.
void CeilingTouch(size_t sums, int64_t* acc, size_t stride);
// Reads n floats and writes out_bytes (at most 4 n) bytes.
void CeilingEncode(const float* x, size_t n, uint8_t* out, size_t out_bytes);

}  // namespace tributary::compression
