// The random numbers of tests/golden/random (which a reference in Python wrote) against those of
// base/philox.h and compression/random.h: at compile time with whatever compiler includes this, and
// by a function for its run time, in kernels too.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "compression/random.h"

namespace tributary::compression {

TRIBUTARY_HOST_DEVICE constexpr uint64_t Next64After(PhiloxStream numbers, int before) {
  for (int k = 0; k < before; ++k) numbers.Next64();
  return numbers.Next64();
}
TRIBUTARY_HOST_DEVICE constexpr double DoubleAfter(PhiloxStream numbers, int before) {
  for (int k = 0; k < before; ++k) numbers.NextDouble();
  return numbers.NextDouble();
}
TRIBUTARY_HOST_DEVICE constexpr uint64_t BelowAfter(PhiloxStream numbers, uint64_t n, int before) {
  for (int k = 0; k < before; ++k) numbers.NextBelow(n);
  return numbers.NextBelow(n);
}
TRIBUTARY_HOST_DEVICE constexpr bool Same(const PhiloxBlock& a, const PhiloxBlock& b) {
  return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

// The first line of vectors.inc that is not so; 0: there is none. `zero` is 0, and at run time
// where the compiler does not know, so that nothing was worked out before.
TRIBUTARY_HOST_DEVICE constexpr int FirstWrongVector(uint64_t zero) {
#define PHILOX(key, c0, c1, c2, c3, w0, w1, w2, w3)                            \
  if (!Same(Philox4x32((key) + zero, {c0, c1, c2, c3}), {{w0, w1, w2, w3}})) { \
    return __LINE__;                                                           \
  }
#define SEEDED_HASH(seed, purpose, text, value)
#define NEXT64(key, stream, before, value) \
  if (Next64After(PhiloxStream((key) + zero, stream), before) != (value)) return __LINE__;
#define UNIFORM53(key, stream, before, value)                    \
  if (DoubleAfter(PhiloxStream((key) + zero, stream), before) != \
      static_cast<double>(value) * 0x1p-53) {                    \
    return __LINE__;                                             \
  }
#define BELOW(key, stream, n, before, value) \
  if (BelowAfter(PhiloxStream((key) + zero, stream), n, before) != (value)) return __LINE__;
#define ROUNDING(key, round, tensor, i, value) \
  if (RoundingNumber((key) + zero, round, tensor, i) != (value)) return __LINE__;
#define TILE_KEY(key, round, tensor, tile, value) \
  if (TileKey((key) + zero, round, tensor, tile) != (value)) return __LINE__;
#include "tests/golden/random/vectors.inc"
#undef PHILOX
#undef SEEDED_HASH
#undef NEXT64
#undef UNIFORM53
#undef BELOW
#undef ROUNDING
#undef TILE_KEY
  return 0;
}
static_assert(FirstWrongVector(0) == 0);

// Hashes of text are made on the host alone.
constexpr int FirstWrongHash() {
#define PHILOX(...)
#define SEEDED_HASH(seed, purpose, text, value) \
  if (SeededHash(seed, purpose, text) != (value)) return __LINE__;
#define NEXT64(...)
#define UNIFORM53(...)
#define BELOW(...)
#define ROUNDING(...)
#define TILE_KEY(...)
#include "tests/golden/random/vectors.inc"
#undef PHILOX
#undef SEEDED_HASH
#undef NEXT64
#undef UNIFORM53
#undef BELOW
#undef ROUNDING
#undef TILE_KEY
  return 0;
}
static_assert(FirstWrongHash() == 0);

}  // namespace tributary::compression
