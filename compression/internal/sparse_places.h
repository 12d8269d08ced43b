// Walking the places of a tile's non-zeros as they are written: a bitmap, Golomb-Rice coded gaps,
// or StreamVByte.
#pragma once

#include <streamvbyte.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "compression/internal/sparse.h"

namespace tributary::compression {

inline constexpr size_t kRoom = 64;  // the library reads and writes 16 bytes beyond

inline size_t RemainderBytes(size_t count, uint32_t rice) { return (count * rice + 7) / 8; }

inline uint64_t LoadUpTo8(const uint8_t* p, size_t n) {
  uint64_t word = 0;
  std::memcpy(&word, p, std::min<size_t>(n, 8));
  return word;
}

// visit(position) for each set bit of `n` bytes; stops where it returns false.
template <class Visit>
void ForEachBit(const uint8_t* p, size_t n, Visit visit) {
  for (size_t at = 0; at < n; at += 8) {
    const auto base = static_cast<uint32_t>(8 * at);
    for (uint64_t word = LoadUpTo8(p + at, n - at); word != 0; word &= word - 1) {
      if (!visit(base + static_cast<uint32_t>(std::countr_zero(word)))) return;
    }
  }
}

// visit(place), rising; places may be beyond a tile where the bytes are hostile. The bytes hold
// entry.count set bits.
template <class Visit>
void ForEachRicePlace(const TileEntry& entry, const uint8_t* p, Visit visit) {
  const uint32_t rice = entry.tag;
  const size_t rest_bytes = RemainderBytes(entry.count, rice);
  // Read 4 bytes at a time, beyond the end of the payload too: from a copy.
  uint8_t rest[kBitmapBytes + 8];  // no places take more than a bitmap
  std::memcpy(rest, p + entry.index_bytes - rest_bytes, rest_bytes);
  std::memset(rest + rest_bytes, 0, 8);
  const uint32_t mask = (1u << rice) - 1;
  uint32_t next = 0;  // the smallest place that can be next
  uint32_t unary = 0, rest_bit = 0;
  ForEachBit(p, entry.index_bytes - rest_bytes, [&](uint32_t position) {
    const uint32_t low = LoadLe<uint32_t>(rest + rest_bit / 8) >> rest_bit % 8 & mask;
    const uint32_t place = next + ((position - unary) << rice | low);
    unary = position + 1;
    rest_bit += rice;
    next = place + 1;
    return visit(place);
  });
}

// StreamVByte's "0124" form: two bits a gap say that it takes 0, 1, 2 or 4 bytes, which follow.
inline size_t ControlBytes(size_t count) { return (count + 3) / 4; }

// The gaps of bytes that have the right length.
inline void ReadGaps(const TileEntry& entry, const uint8_t* p, uint32_t* gaps) {
  // The decoder reads whole vectors, beyond the end of the payload too: from a copy.
  uint8_t bytes[kBitmapBytes + kRoom];
  std::memcpy(bytes, p, entry.index_bytes);
  std::memset(bytes + entry.index_bytes, 0, kRoom);
  streamvbyte_decode_0124(bytes, gaps, entry.count);
}

// visit(place) for each place of a tile that CheckIndices has passed, rising.
template <class Visit>
void ForEachPlace(const TileEntry& entry, const uint8_t* p, Visit visit) {
  const auto go_on = [&](uint32_t place) {
    visit(place);
    return true;
  };
  if (entry.tag == kBitmapTag) {
    ForEachBit(p, entry.index_bytes, go_on);
  } else if (entry.tag == kStreamVByteTag) {
    uint32_t gaps[kTileElements];
    ReadGaps(entry, p, gaps);
    uint32_t next = 0;
    for (uint32_t j = 0; j < entry.count; ++j) {
      visit(next + gaps[j]);
      next += gaps[j] + 1;
    }
  } else {
    ForEachRicePlace(entry, p, go_on);
  }
}

}  // namespace tributary::compression
