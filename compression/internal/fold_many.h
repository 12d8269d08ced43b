// Folding several updates together: each sum is loaded and stored once for all of them, and stays
// in a register while they pass over it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "compression/codec.h"
#include "compression/internal/block_format.h"
#include "compression/internal/runs.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

// Updates that go together at most: so many streams are read side by side. More are several groups.
inline constexpr size_t kMany = 16;

// One update's units of a run that lies contiguous, and its weight, from 1 to 2^31 - 1.
struct ManyRun {
  const uint8_t* p = nullptr;
  int32_t weight = 1;
};

// Blocks of every update at once. Adds what FoldBlocks adds for each.
void FoldManyBlocks(const BlockFormat& format, std::span<const ManyRun> runs, size_t blocks,
                    size_t length, double grid_scale, int64_t* acc);

// Parts whose weight is narrow go to many(span of at most kMany of them), the others to one(part),
// as does a part that would go alone.
template <class Many, class One>
void ByWeight(std::span<const FoldPart> parts, Many many, One one) {
  std::array<FoldPart, kMany> group;
  size_t size = 0;
  const auto flush = [&] {
    if (size == 1) one(group[0]);
    if (size > 1) many(std::span<const FoldPart>(group.data(), size));
    size = 0;
  };
  for (const FoldPart& part : parts) {
    if (part.weight < 1 || part.weight > INT32_MAX) {
      one(part);
      continue;
    }
    group[size++] = part;
    if (size == kMany) flush();
  }
  flush();
}

// Walks units of `width` bytes through at most kMany payloads at once, from byte offset(part) of
// each on: visit(runs, units, done) for units that lie contiguous in all of them. A unit that
// straddles two pieces of one payload is copied.
template <class Offset, class Visit>
void ForEachCommonRun(std::span<const FoldPart> parts, Offset offset, size_t width, uint64_t count,
                      Visit visit) {
  std::array<ManyRun, kMany> runs;
  std::vector<ByteCursor> cursors;
  std::vector<uint8_t> copies;
  for (size_t u = 0; u < parts.size(); ++u) {
    cursors.emplace_back(*parts[u].payload, offset(parts[u]));
    runs[u].weight = static_cast<int32_t>(parts[u].weight);
  }
  for (uint64_t done = 0; done < count;) {
    uint64_t units = count - done;
    for (size_t u = 0; u < parts.size(); ++u) {
      const ByteSpan here = cursors[u].Contiguous();
      runs[u].p = here.data();
      units = std::min<uint64_t>(units, here.size() / width);
    }
    if (units > 0) {
      for (ByteCursor& cursor : cursors) cursor.Skip(units * width);
    } else {
      units = 1;
      copies.resize(parts.size() * width);
      for (size_t u = 0; u < parts.size(); ++u) {
        if (!cursors[u].Read(copies.data() + u * width, width)) return;
        runs[u].p = copies.data() + u * width;
      }
    }
    visit(std::span<const ManyRun>(runs.data(), parts.size()), units, done);
    done += units;
  }
}

// FoldMany of a codec of blocks; one(part) folds a part alone.
template <class One>
void FoldManyOfBlocks(const BlockFormat& format, std::span<const FoldPart> parts, uint64_t count,
                      int fraction_bits, int64_t* acc, One one) {
  const double grid_scale = std::ldexp(1.0, fraction_bits);
  const size_t width = format.BlockBytes(format.block);
  const uint64_t full = count / format.block;
  const size_t rest = count % format.block;
  const auto many = [&](std::span<const FoldPart> group) {
    const auto offset = [&](const FoldPart& part) { return part.begin / format.block * width; };
    ForEachCommonRun(group, offset, width, full,
                     [&](std::span<const ManyRun> runs, uint64_t blocks, uint64_t done) {
                       FoldManyBlocks(format, runs, blocks, format.block, grid_scale,
                                      acc + done * format.block);
                     });
    if (rest == 0) return;
    ForEachCommonRun(
        group, [&](const FoldPart& part) { return offset(part) + full * width; },
        format.BlockBytes(rest), 1,
        [&](std::span<const ManyRun> runs, uint64_t, uint64_t) {
          FoldManyBlocks(format, runs, 1, rest, grid_scale, acc + full * format.block);
        });
  };
  ByWeight(parts, many, one);
}

}  // namespace tributary::compression
