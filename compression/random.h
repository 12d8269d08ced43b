// Which random numbers codecs take, as functions of keys and places alone: the same on any thread,
// host or device. docs/wire-format.md has them in words.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace tributary::compression {

// The numbers by which elements 8 * c to 8 * c + 7 of a tensor are rounded (int8, int4, int2, hq):
// sixteen bits each, the lower half of a word first.
TRIBUTARY_HOST_DEVICE constexpr PhiloxBlock RoundingBlock(uint64_t key, uint32_t round,
                                                          uint32_t tensor, uint64_t c) {
  return Philox4x32(key, {static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), tensor, round});
}
// That of element i.
TRIBUTARY_HOST_DEVICE constexpr uint32_t RoundingNumber(uint64_t key, uint32_t round,
                                                        uint32_t tensor, uint64_t i) {
  return RoundingBlock(key, round, tensor, i / 8)[i % 8 / 2] >> (16 * (i % 2)) & 0xFFFF;
}

// The key in the payload of a segment whose first tile is tile `tile` of its tensor: randk's mask,
// of the key that clients share; eden's rotation, of a client's own.
TRIBUTARY_HOST_DEVICE constexpr uint64_t TileKey(uint64_t key, uint32_t round, uint32_t tensor,
                                                 uint64_t tile) {
  return Philox4x32(key,
                    {static_cast<uint32_t>(tile), static_cast<uint32_t>(tile >> 32), tensor, round})
      .Low64();
}
// Keeps the rotations' keys apart from the rounding of other codecs under the same client key.
inline constexpr uint64_t kRotationPurpose = 0x6E6F697461746F72;  // "rotation"

}  // namespace tributary::compression
