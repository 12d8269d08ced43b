// Folding a tile of top-k: decoding places, fetching sums and adding to them, each ahead of the
// next.
#include <cstdint>

#include "compression/internal/sparse.h"
#include "compression/internal/sparse_places.h"

namespace tributary::compression {
namespace {

// Places decoded, and their sums fetched, before the sums of as many before them are added to. A
// core keeps some fifty cache lines on their way into its second level; fewer leave it waiting,
// more wait in turn.
constexpr size_t kAhead = 64;

// add(j, sum) for the j-th place's sum, of places below `length`.
template <class Add>
void WalkSums(const TileEntry& entry, const uint8_t* p, uint64_t length, int64_t* acc, Add add) {
  uint16_t places[kTileElements];
  const auto add_up = [&](size_t from, size_t to) {
    while (to > from && places[to - 1] >= length) --to;  // they rise
    for (size_t j = from; j < to; ++j) add(j, acc + places[j]);
  };
  size_t decoded = 0;
  ForEachPlace(entry, p, [&](uint32_t place) {
    places[decoded++] = static_cast<uint16_t>(place);
    __builtin_prefetch(acc + place, 1, 2);
    if (decoded % kAhead == 0 && decoded > kAhead) {
      add_up(decoded - 2 * kAhead, decoded - kAhead);
    }
  });
  const size_t added = decoded < 2 * kAhead ? 0 : decoded / kAhead * kAhead - kAhead;
  add_up(added, decoded);
}

}  // namespace

void FoldSparseTile(SparseValues kind, const TileEntry& entry, const uint8_t* p, uint64_t length,
                    float scale, const FoldArgs& args, int64_t* acc) {
  const uint8_t* const values = p + entry.index_bytes;
  FoldArgs scaled = args;
  switch (kind) {
    case SparseValues::kTernary: {
      int64_t terms[2] = {0, 0};
      FoldOne(static_cast<double>(scale), args, &terms[0]);
      FoldOne(-static_cast<double>(scale), args, &terms[1]);
      return WalkSums(entry, p, length, acc, [&](size_t j, int64_t* sum) {
        const int64_t term = terms[values[j / 8] >> j % 8 & 1];
        *sum = static_cast<int64_t>(static_cast<uint64_t>(*sum) + static_cast<uint64_t>(term));
      });
    }
    case SparseValues::kInt8:
      scaled.scale *= static_cast<double>(scale);  // exact: the scale has 24 bits
      return WalkSums(entry, p, length, acc, [&](size_t j, int64_t* sum) {
        FoldOne(static_cast<int8_t>(values[j]), scaled, sum);
      });
    case SparseValues::kFloat16:
      return WalkSums(entry, p, length, acc, [&](size_t j, int64_t* sum) {
        FoldOne(static_cast<double>(HalfToFloat(LoadLe<uint16_t>(values + 2 * j))), args, sum);
      });
    case SparseValues::kFloat32:
      return WalkSums(entry, p, length, acc, [&](size_t j, int64_t* sum) {
        FoldOne(static_cast<double>(LoadLe<float>(values + 4 * j)), args, sum);
      });
  }
}

}  // namespace tributary::compression
