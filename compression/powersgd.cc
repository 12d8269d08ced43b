// Codec powersgd, the arithmetic: a step of power iteration in an order of operations that is
// fixed, and the products of factors, folded in vectors.
#include "compression/internal/powersgd.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/philox.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/powersgd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/dot-inl.h"
#include "compression/internal/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

// A column of P that has so little left after the ones before it were taken out is rounding noise.
constexpr double kDependent = 1e-6;
// Columns of Q that a row is multiplied by at once: as many as have sums in registers.
constexpr size_t kTogether = HWY_TARGET <= HWY_AVX2 ? 4 : 2;

// A row's products with all columns of Q, some at once: p[k * rows] for each k.
HWY_INLINE void RowTimesQ(const float* x, size_t n, const double* q, size_t columns, size_t rank,
                          double* p, size_t rows) {
  double dots[kTogether];
  size_t k = 0;
  for (; k + kTogether <= rank; k += kTogether) {
    Dots<true, kTogether>(x, q + k * columns, columns, n, dots);
    for (size_t m = 0; m < kTogether; ++m) p[(k + m) * rows] = dots[m];
  }
  for (; k + 2 <= rank; k += 2) {
    Dots<true, 2>(x, q + k * columns, columns, n, dots);
    p[k * rows] = dots[0];
    p[(k + 1) * rows] = dots[1];
  }
  if (k < rank) p[k * rows] = Dot<true>(x, q + k * columns, n);
}

void TimesQ(std::span<const float> x, size_t columns, const double* q, size_t rank, double* p) {
  const size_t rows = (x.size() + columns - 1) / columns;
  for (size_t i = 0; i < rows; ++i) {
    const size_t n = std::min(columns, x.size() - i * columns);
    RowTimesQ(x.data() + i * columns, n, q, columns, rank, p + i, rows);
  }
}

// sums[k * columns + j] += x[r * columns + j] * p[r * rank + k] for kMany k, n j, and, one after
// the other, kRows rows: a sum is loaded and stored once for all of them. The products are exact.
template <size_t kRows, size_t kMany>
HWY_INLINE void AddRows(const float* x, size_t columns, size_t n, const float* p, size_t rank,
                        double* sums) {
  size_t j = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles d;
  hn::Vec<Doubles> v[kRows][kMany];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t k = 0; k < kMany; ++k) {
      v[r][k] = hn::Set(d, static_cast<double>(p[r * rank + k]));
    }
  }
  for (const size_t lanes = hn::Lanes(d); j + lanes <= n; j += lanes) {
    hn::Vec<Doubles> of_row[kRows];
    for (size_t r = 0; r < kRows; ++r) of_row[r] = LoadDoubles(x + r * columns + j);
    for (size_t k = 0; k < kMany; ++k) {
      auto sum = hn::LoadU(d, sums + k * columns + j);
      for (size_t r = 0; r < kRows; ++r) sum = hn::MulAdd(of_row[r], v[r][k], sum);
      hn::StoreU(sum, d, sums + k * columns + j);
    }
  }
#endif
  for (; j < n; ++j) {
    for (size_t k = 0; k < kMany; ++k) {
      for (size_t r = 0; r < kRows; ++r) {
        sums[k * columns + j] +=
            static_cast<double>(x[r * columns + j]) * static_cast<double>(p[r * rank + k]);
      }
    }
  }
}

template <size_t kRows>
HWY_INLINE void AddRowsToAll(const float* x, size_t columns, size_t n, const float* p, size_t rank,
                             double* sums) {
  size_t k = 0;
  for (; k + 2 <= rank; k += 2) {
    AddRows<kRows, 2>(x, columns, n, p + k, rank, sums + k * columns);
  }
  if (k < rank) AddRows<kRows, 1>(x, columns, n, p + k, rank, sums + k * columns);
}

void TransposedTimesP(std::span<const float> x, size_t columns, const float* p, size_t rank,
                      double* sums) {
  const size_t whole = x.size() / columns;
  const auto row = [&](size_t i) { return x.data() + i * columns; };
  size_t i = 0;
  for (; i + 4 <= whole; i += 4)
    AddRowsToAll<4>(row(i), columns, columns, p + i * rank, rank, sums);
  for (; i < whole; ++i) AddRowsToAll<1>(row(i), columns, columns, p + i * rank, rank, sums);
  AddRowsToAll<1>(row(i), columns, x.size() - i * columns, p + i * rank, rank, sums);
}

// p -= part * other. These products are rounded: nothing is fused.
HWY_INLINE void TakeOut(double part, const double* other, size_t n, double* p) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles d;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto product = hn::Mul(hn::Set(d, part), hn::LoadU(d, other + i));
    hn::StoreU(hn::Sub(hn::LoadU(d, p + i), product), d, p + i);
  }
#endif
  for (; i < n; ++i) p[i] -= part * other[i];
}

HWY_INLINE void DivideBy(double norm, size_t n, double* p) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Doubles d;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, p + i), hn::Set(d, norm)), d, p + i);
  }
#endif
  for (; i < n; ++i) p[i] /= norm;
}

// The columns of P, back to back, made orthonormal, one after the other (modified Gram-Schmidt);
// one that depends on those before it becomes zero.
void Orthonormalize(double* columns, size_t rows, size_t rank) {
  for (size_t k = 0; k < rank; ++k) {
    double* const p = columns + k * rows;
    const double before = std::sqrt(Dot<false>(p, p, rows));
    for (size_t l = 0; l < k; ++l) {
      const double* const other = columns + l * rows;
      TakeOut(Dot<false>(p, other, rows), other, rows, p);
    }
    const double norm = std::sqrt(Dot<false>(p, p, rows));
    if (!(norm > kDependent * before) || norm < 0x1p-140) {
      std::fill_n(p, rows, 0.0);
    } else {
      DivideBy(norm, rows, p);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// A row's elements from j on, with factors k to k + kMany added to `sum`; `p` has the row's as
// doubles. Products of two floats are exact in double, so that a fused and an unfused sum agree.
template <size_t kMany>
HWY_INLINE hn::Vec<Doubles> AddFactors(const PowerRow& row, const double* p, size_t k, size_t j,
                                       hn::Vec<Doubles> sum) {
  const Doubles d;
  for (size_t m = k; m < k + kMany; ++m) {
    sum = hn::MulAdd(hn::Set(d, p[m]), LoadDoubles(row.q + m * row.columns + j), sum);
  }
  return sum;
}
// The first kMany factors; the sum begins with a product, which may be -0.
template <size_t kMany>
HWY_INLINE hn::Vec<Doubles> FirstFactors(const PowerRow& row, const double* p, size_t j) {
  const auto first = hn::Mul(hn::Set(Doubles(), p[0]), LoadDoubles(row.q + j));
  return AddFactors<kMany - 1>(row, p, 1, j, first);
}

// Elements whose sums stay in the first-level cache while many factors pass over them: the columns
// of Q are then read in runs. One element's numbers of Q may all lie in one set of that cache.
constexpr size_t kRowStretch = 256;

// The sums of n elements, whole vectors, of a row with more than four factors.
HWY_INLINE void ManyFactors(const PowerRow& row, const double* p, size_t from, size_t n,
                            double* sums) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    hn::Store(FirstFactors<4>(row, p, from + i), d, sums + i);
  }
  size_t k = 4;
  for (; k + 4 <= row.rank; k += 4) {
    for (size_t i = 0; i < n; i += lanes) {
      hn::Store(AddFactors<4>(row, p, k, from + i, hn::Load(d, sums + i)), d, sums + i);
    }
  }
  for (; k < row.rank; ++k) {
    for (size_t i = 0; i < n; i += lanes) {
      hn::Store(AddFactors<1>(row, p, k, from + i, hn::Load(d, sums + i)), d, sums + i);
    }
  }
}

// visit(i, elements from i on) for whole vectors of a row's n elements; how many those are.
template <class Visit>
HWY_INLINE size_t ForEachVector(const PowerRow& row, size_t from, size_t n, Visit visit) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d), whole = n / lanes * lanes;
  double p[kMaxRank];
  std::copy_n(row.p, row.rank, p);
  // Few factors stay in registers.
  const auto run = [&](auto rank) HWY_ATTR {
    for (size_t i = 0; i < whole; i += lanes) {
      visit(i, FirstFactors<decltype(rank)::value>(row, p, from + i));
    }
    return whole;
  };
  if (row.rank == 1) return run(std::integral_constant<size_t, 1>());
  if (row.rank == 2) return run(std::integral_constant<size_t, 2>());
  if (row.rank == 3) return run(std::integral_constant<size_t, 3>());
  if (row.rank == 4) return run(std::integral_constant<size_t, 4>());
  HWY_ALIGN double sums[kRowStretch];
  for (size_t at = 0; at < whole; at += kRowStretch) {
    const size_t here = std::min(kRowStretch, whole - at);
    ManyFactors(row, p, from + at, here, sums);
    for (size_t i = 0; i < here; i += lanes) visit(at + i, hn::Load(d, sums + i));
  }
  return whole;
}
#endif

void FoldRow(const PowerRow& row, size_t from, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  using V = hn::Vec<Doubles>;
  if (args.narrow_limit >= 0) {
    i = ForEachVector(row, from, n,
                      [&](size_t at, V v) HWY_ATTR { FoldNarrow(v, args, acc + at); });
  } else {
    i = ForEachVector(row, from, n, [&](size_t at, V v) HWY_ATTR { FoldWide(v, args, acc + at); });
  }
#endif
  for (; i < n; ++i) FoldOne(row.Value(from + i), args, acc + i);
}

void DecodeRow(const PowerRow& row, size_t from, size_t n, float* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  i = ForEachVector(row, from, n, [&](size_t at, hn::Vec<Doubles> v) HWY_ATTR {
    hn::StoreU(hn::DemoteTo(HalfFloats(), v), HalfFloats(), out + at);
  });
#endif
  for (; i < n; ++i) out[i] = static_cast<float>(row.Value(from + i));
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {
namespace {

HWY_EXPORT(TimesQ);
HWY_EXPORT(Orthonormalize);
HWY_EXPORT(TransposedTimesP);
HWY_EXPORT(FoldRow);
HWY_EXPORT(DecodeRow);

// Keeps the first Qs apart from what else the client's key makes.
constexpr uint64_t kPurpose = 0x7265776F70;  // "power"

// Numbers from -1 to 1, multiples of 2^-23.
void FillRandom(const EncodeContext& context, uint32_t k, std::span<float> q) {
  const auto tile = static_cast<uint32_t>(context.first / kTileElements);
  PhiloxBlock words{};
  for (size_t j = 0; j < q.size(); ++j) {
    if (j % 4 == 0) {
      words = Philox4x32(context.key ^ kPurpose ^ uint64_t{k} << 48,
                         {static_cast<uint32_t>(j / 4), tile, context.tensor, context.round});
    }
    q[j] = static_cast<float>(static_cast<int32_t>(words[j % 4]) >> 8) * 0x1p-23f;
  }
}

}  // namespace

void PowerFold(const PowerRow& row, size_t from, size_t n, const FoldArgs& args, int64_t* acc) {
  HWY_DYNAMIC_DISPATCH(FoldRow)(row, from, n, args, acc);
}
void PowerDecode(const PowerRow& row, size_t from, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRow)(row, from, n, out);
}

std::vector<float> PowerFactors(std::span<const float> x, size_t columns, uint32_t rank,
                                const EncodeContext& context) {
  const size_t rows = (x.size() + columns - 1) / columns;
  std::vector<float> factors((rows + columns) * rank);
  const std::span<float> q = std::span(factors).subspan(rows * rank);
  if (context.warm.size() == q.size()) std::ranges::copy(context.warm, q.begin());
  for (uint32_t k = 0; k < rank; ++k) {
    const std::span<float> start = q.subspan(k * columns, columns);
    if (std::ranges::all_of(start, [](float v) { return v == 0; })) FillRandom(context, k, start);
  }
  // Doubles, which every row takes them as; aligned, so that vectors of them do not straddle cache
  // lines.
  const auto of_q = hwy::AllocateAligned<double>(q.size());
  std::ranges::copy(q, of_q.get());
  std::vector<double> of_p(rows * rank);
  HWY_DYNAMIC_DISPATCH(TimesQ)(x, columns, of_q.get(), rank, of_p.data());
  HWY_DYNAMIC_DISPATCH(Orthonormalize)(of_p.data(), rows, rank);
  for (uint32_t k = 0; k < rank; ++k) {
    for (size_t i = 0; i < rows; ++i) {
      factors[i * rank + k] = static_cast<float>(of_p[k * rows + i]);
    }
  }
  std::fill_n(of_q.get(), q.size(), 0.0);
  HWY_DYNAMIC_DISPATCH(TransposedTimesP)(x, columns, factors.data(), rank, of_q.get());
  std::transform(of_q.get(), of_q.get() + q.size(), q.begin(),
                 [](double sum) { return static_cast<float>(sum); });
  return factors;
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
