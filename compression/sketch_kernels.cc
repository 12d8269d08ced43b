// Codec sketch, the kernels: hashes of many elements at once, adding to cells, medians of them.
#include "compression/internal/sketch_kernels.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/sketch_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/fold-inl.h"
#include "compression/internal/philox-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

// Elements hashed at once: the numbers of so many stay in the first-level cache beside the cells.
constexpr size_t kStretch = 128;
constexpr uint32_t kMinus = 0x80000000;

// Of each row and element of a stretch: the cell, and kMinus where it takes the element's negative.
struct Hashes {
  HWY_ALIGN uint32_t row[kSketchMostRows][kStretch];
};

HWY_INLINE uint32_t HashOf(const SketchHash& hash, uint32_t row) {
  return hash.Cell(row) | (hash.Minus(row) ? kMinus : 0);
}

#if HWY_TARGET != HWY_SCALAR
using HashLanes = hn::ScalableTag<uint64_t>;
using HashVec = hn::Vec<HashLanes>;

// 25 bits of a Philox block become a cell of row `row` and its sign.
template <class V>
HWY_INLINE void StoreHashes(V bits, uint32_t row, uint32_t columns, uint32_t* out) {
  const HashLanes d;
  const hn::Repartition<uint32_t, HashLanes> d32;
  const hn::Rebind<uint32_t, HashLanes> dh;
  const auto place = hn::And(bits, hn::Set(d, 0xFFFFFF));
  const auto column =
      hn::ShiftRight<24>(hn::MulEven(hn::BitCast(d32, place), hn::Set(d32, columns)));
  const auto cell = hn::Add(column, hn::Set(d, uint64_t{row} * columns));
  const auto minus = hn::ShiftLeft<7>(hn::And(bits, hn::Set(d, 1 << 24)));
  hn::StoreU(hn::TruncateTo(dh, hn::Or(cell, minus)), dh, out);
}

// The words of one vector of counters as two 64-bit halves, taken apart into rows.
HWY_INLINE void StoreRows(const PhiloxWords<HashVec>& c, const SketchTile& tile, size_t at,
                          Hashes* out) {
  const HashLanes d;
  const auto lower = hn::Set(d, 0xFFFFFFFF);
  const auto low = hn::Or(hn::And(c.c0, lower), hn::ShiftLeft<32>(c.c1));
  const auto high = hn::Or(hn::And(c.c2, lower), hn::ShiftLeft<32>(c.c3));
  StoreHashes(low, 0, tile.columns, out->row[0] + at);
  if (tile.rows < 3) return;
  StoreHashes(hn::ShiftRight<25>(low), 1, tile.columns, out->row[1] + at);
  StoreHashes(hn::Or(hn::ShiftRight<50>(low), hn::ShiftLeft<14>(high)), 2, tile.columns,
              out->row[2] + at);
  if (tile.rows < 5) return;
  StoreHashes(hn::ShiftRight<11>(high), 3, tile.columns, out->row[3] + at);
  StoreHashes(hn::ShiftRight<36>(high), 4, tile.columns, out->row[4] + at);
}
#endif

// A tile's hashes, its key's schedule made once.
class TileHasher {
 public:
  explicit TileHasher(const SketchTile& tile) : tile_(tile) {
#if HWY_TARGET != HWY_SCALAR
    const HashLanes d;
    uint32_t k0 = static_cast<uint32_t>(tile.key);
    uint32_t k1 = static_cast<uint32_t>(tile.key >> 32);
    for (size_t r = 0; r < 10; ++r, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
      hn::Store(hn::Set(d, uint64_t{k0}), d, keys_ + 2 * r * hn::Lanes(d));
      hn::Store(hn::Set(d, uint64_t{k1}), d, keys_ + (2 * r + 1) * hn::Lanes(d));
    }
#endif
  }

  // Of n elements from `first` on, at most kStretch.
  HWY_INLINE void Hash(size_t first, size_t n, Hashes* out) const {
    size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const HashLanes d;
    const size_t lanes = hn::Lanes(d);
    const HashVec zero = hn::Zero(d);
    // Two vectors at once: one's products fill the wait for the other's.
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      PhiloxWords<HashVec> a{hn::Iota(d, first + i), zero, zero, zero};
      PhiloxWords<HashVec> b{hn::Iota(d, first + i + lanes), zero, zero, zero};
      HWY_UNROLL(10)
      for (size_t r = 0; r < 10; ++r) {
        a = PhiloxRound(d, a, keys_ + 2 * r * lanes);
        b = PhiloxRound(d, b, keys_ + 2 * r * lanes);
      }
      StoreRows(a, tile_, i, out);
      StoreRows(b, tile_, i + lanes, out);
    }
#endif
    for (; i < n; ++i) {
      const SketchHash hash(tile_, first + i);
      for (uint32_t r = 0; r < tile_.rows; ++r) out->row[r][i] = HashOf(hash, r);
    }
  }

 private:
  const SketchTile tile_;
#if HWY_TARGET != HWY_SCALAR
  HWY_ALIGN uint64_t keys_[20 * hn::MaxLanes(HashLanes())];
#endif
};

// out[i]: x[i] with the sign that row's hash gives it.
HWY_INLINE void SignDoubles(const float* x, const uint32_t* hashes, size_t n, double* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles dd;
  const Bits64 du;
  const hn::Rebind<uint32_t, Doubles> dh;
  for (const size_t lanes = hn::Lanes(dd); i + lanes <= n; i += lanes) {
    const auto minus = hn::And(hn::LoadU(dh, hashes + i), hn::Set(dh, kMinus));
    const auto sign = hn::BitCast(dd, hn::ShiftLeft<32>(hn::PromoteTo(du, minus)));
    hn::StoreU(hn::Xor(hn::PromoteTo(dd, hn::LoadU(HalfFloats(), x + i)), sign), dd, out + i);
  }
#endif
  for (; i < n; ++i) {
    const auto v = static_cast<double>(x[i]);
    out[i] = (hashes[i] & kMinus) != 0 ? -v : v;
  }
}

// One element's cells after the other: two elements of a vector may have the same cell, and sums
// are in the order of elements. Adding is the one part without vectors.
template <uint32_t kRows>
HWY_INLINE void Scatter(const Hashes& hashes, const double (*values)[kStretch], size_t n,
                        double* cells) {
  for (size_t i = 0; i < n; ++i) {
    for (uint32_t r = 0; r < kRows; ++r) cells[hashes.row[r][i] & ~kMinus] += values[r][i];
  }
}

template <uint32_t kRows>
HWY_INLINE void AddRows(const SketchTile& tile, const float* x, size_t n, double* cells) {
  const TileHasher hasher(tile);
  Hashes hashes;
  HWY_ALIGN double values[kRows][kStretch];
  for (size_t at = 0; at < n; at += kStretch) {
    const size_t here = std::min(kStretch, n - at);
    // A zero changes no cell: none is -0.
    if (std::all_of(x + at, x + at + here, [](float v) { return v == 0; })) continue;
    hasher.Hash(at, here, &hashes);
    for (uint32_t r = 0; r < kRows; ++r) SignDoubles(x + at, hashes.row[r], here, values[r]);
    Scatter<kRows>(hashes, values, here, cells);
  }
}

void AddTile(const SketchTile& tile, const float* x, size_t n, double* cells) {
  if (tile.rows == 1) return AddRows<1>(tile, x, n, cells);
  if (tile.rows == 3) return AddRows<3>(tile, x, n, cells);
  AddRows<5>(tile, x, n, cells);
}

// Numbers of the cells' type, in vectors (D a tag) or alone (D void). Of equal ones, zeros of both
// signs among them, std::min and std::max give the first; a vector's Min does what the CPU does.
template <class D>
struct Medians {
#if HWY_TARGET != HWY_SCALAR
  using V = hn::Vec<D>;
  static HWY_INLINE V Min(V a, V b) { return hn::IfThenElse(hn::Lt(b, a), b, a); }
  static HWY_INLINE V Max(V a, V b) { return hn::IfThenElse(hn::Lt(a, b), b, a); }
#endif
};
template <>
struct Medians<float> {
  static float Min(float a, float b) { return std::min(a, b); }
  static float Max(float a, float b) { return std::max(a, b); }
};
template <>
struct Medians<double> {
  static double Min(double a, double b) { return std::min(a, b); }
  static double Max(double a, double b) { return std::max(a, b); }
};

template <class M, class V>
HWY_INLINE V Median3(V a, V b, V c) {
  return M::Max(M::Min(a, b), M::Min(M::Max(a, b), c));
}
// Of kRows numbers: `value(row)`.
template <uint32_t kRows, class M, class Value>
HWY_INLINE auto Median(Value value) {
  if constexpr (kRows == 1) {
    return value(0);
  } else if constexpr (kRows == 3) {
    return Median3<M>(value(0), value(1), value(2));
  } else {
    // Of four, the least and the greatest are not it.
    const auto a = value(0), b = value(1), c = value(2), d = value(3);
    const auto low = M::Max(M::Min(a, b), M::Min(c, d));
    const auto high = M::Min(M::Max(a, b), M::Max(c, d));
    return Median3<M>(low, high, value(4));
  }
}

#if HWY_TARGET != HWY_SCALAR
// The cells that a vector of hashes names, with their signs.
HWY_INLINE hn::Vec<Floats> SignedCells(Floats d, const float* cells, const uint32_t* hashes) {
  const hn::RebindToUnsigned<Floats> du;
  const hn::RebindToSigned<Floats> di;
  const auto hash = hn::LoadU(du, hashes);
  const auto minus = hn::And(hash, hn::Set(du, kMinus));
  const auto cell = hn::GatherIndex(d, cells, hn::BitCast(di, hn::Xor(hash, minus)));
  return hn::Xor(cell, hn::BitCast(d, minus));
}
HWY_INLINE hn::Vec<Doubles> SignedCells(Doubles d, const double* cells, const uint32_t* hashes) {
  const Bits64 du;
  const hn::RebindToSigned<Doubles> di;
  const auto hash = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint32_t, Doubles>(), hashes));
  const auto minus = hn::And(hash, hn::Set(du, kMinus));
  const auto cell = hn::GatherIndex(d, cells, hn::BitCast(di, hn::Xor(hash, minus)));
  return hn::Xor(cell, hn::BitCast(d, hn::ShiftLeft<32>(minus)));
}
HWY_INLINE void StoreFloats(Floats d, hn::Vec<Floats> v, float* out) { hn::StoreU(v, d, out); }
HWY_INLINE void StoreFloats(Doubles, hn::Vec<Doubles> v, float* out) {
  hn::StoreU(hn::DemoteTo(HalfFloats(), v), HalfFloats(), out);
}
#endif

template <uint32_t kRows, class Cell>
HWY_INLINE void EstimateRows(const SketchTile& tile, const Cell* cells, size_t n, float* out) {
  const TileHasher hasher(tile);
  Hashes hashes;
  for (size_t at = 0; at < n; at += kStretch) {
    const size_t here = std::min(kStretch, n - at);
    hasher.Hash(at, here, &hashes);
    size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::ScalableTag<Cell> d;
    for (const size_t lanes = hn::Lanes(d); i + lanes <= here; i += lanes) {
      const auto median = Median<kRows, Medians<hn::ScalableTag<Cell>>>(
          [&](uint32_t r) HWY_ATTR { return SignedCells(d, cells, hashes.row[r] + i); });
      StoreFloats(d, median, out + at + i);
    }
#endif
    for (; i < here; ++i) {
      const auto value = [&](uint32_t r) {
        const Cell cell = cells[hashes.row[r][i] & ~kMinus];
        return (hashes.row[r][i] & kMinus) != 0 ? -cell : cell;
      };
      out[at + i] = static_cast<float>(Median<kRows, Medians<Cell>>(value));
    }
  }
}

template <class Cell>
HWY_INLINE void EstimateCells(const SketchTile& tile, const Cell* cells, size_t n, float* out) {
  if (tile.rows == 1) return EstimateRows<1>(tile, cells, n, out);
  if (tile.rows == 3) return EstimateRows<3>(tile, cells, n, out);
  EstimateRows<5>(tile, cells, n, out);
}
void EstimateFloats(const SketchTile& tile, const float* cells, size_t n, float* out) {
  EstimateCells(tile, cells, n, out);
}
void EstimateDoubles(const SketchTile& tile, const double* cells, size_t n, float* out) {
  EstimateCells(tile, cells, n, out);
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(AddTile);
HWY_EXPORT(EstimateFloats);
HWY_EXPORT(EstimateDoubles);

void SketchAddTile(const SketchTile& tile, const float* x, size_t n, double* cells) {
  HWY_DYNAMIC_DISPATCH(AddTile)(tile, x, n, cells);
}
void SketchEstimateTile(const SketchTile& tile, const float* cells, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(EstimateFloats)(tile, cells, n, out);
}
void SketchEstimateTile(const SketchTile& tile, const double* cells, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(EstimateDoubles)(tile, cells, n, out);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
