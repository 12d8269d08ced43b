// Walks the whole units (elements, blocks) of a payload in pieces: in place where a unit lies
// contiguous, through a small copy where it straddles two pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace tributary::compression {

inline constexpr size_t kMaxBlock = 4096;  // elements in an int8 block
inline constexpr size_t kMaxUnitBytes = 4 + kMaxBlock;

// Calls visit(bytes, units, done) for runs of whole units of `width` bytes (at most kMaxUnitBytes),
// from byte `offset` on, until `count` units are done, `visit` returns false, or the payload ends.
// `done` is the number of units before the run. Returns false where `visit` did.
template <class Visit>
bool ForEachRun(const PiecedBytes& payload, uint64_t offset, size_t width, uint64_t count,
                Visit visit) {
  ByteCursor cursor(payload, offset);
  uint64_t done = 0;
  while (done < count) {
    const ByteSpan here = cursor.Contiguous();
    uint64_t units = std::min<uint64_t>(here.size() / width, count - done);
    if (units > 0) {
      if (!visit(here.data(), units, done)) return false;
      cursor.Skip(units * width);
    } else {
      uint8_t unit[kMaxUnitBytes];
      if (!cursor.Read(unit, width)) return true;
      if (!visit(static_cast<const uint8_t*>(unit), uint64_t{1}, done)) return false;
      units = 1;
    }
    done += units;
  }
  return true;
}

}  // namespace tributary::compression
