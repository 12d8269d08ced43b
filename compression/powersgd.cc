// Codec powersgd, the arithmetic: a step of power iteration in an order of operations that is
// fixed, and the products of factors, folded in vectors.
#include "compression/internal/powersgd.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/powersgd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "compression/internal/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Products of two floats are exact in double, so that a fused and an unfused sum agree.
HWY_INLINE hn::Vec<Doubles> RowValues(const PowerRow& row, size_t j) {
  const Doubles dd;
  const HalfFloats dh;
  auto v = hn::Mul(hn::Set(dd, static_cast<double>(row.p[0])),
                   hn::PromoteTo(dd, hn::LoadU(dh, row.q + j)));
  for (size_t k = 1; k < row.rank; ++k) {
    v = hn::MulAdd(hn::Set(dd, static_cast<double>(row.p[k])),
                   hn::PromoteTo(dd, hn::LoadU(dh, row.q + k * row.columns + j)), v);
  }
  return v;
}
#endif

void FoldRow(const PowerRow& row, size_t from, size_t n, const FoldArgs& args, int64_t* acc) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const bool narrow = args.narrow_limit >= 0;
  for (const size_t lanes = hn::Lanes(Doubles()); i + lanes <= n; i += lanes) {
    if (narrow) {
      FoldNarrow(RowValues(row, from + i), args, acc + i);
    } else {
      FoldWide(RowValues(row, from + i), args, acc + i);
    }
  }
#endif
  for (; i < n; ++i) FoldOne(row.Value(from + i), args, acc + i);
}

void DecodeRow(const PowerRow& row, size_t from, size_t n, float* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const HalfFloats dh;
  for (const size_t lanes = hn::Lanes(dh); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(dh, RowValues(row, from + i)), dh, out + i);
  }
#endif
  for (; i < n; ++i) out[i] = static_cast<float>(row.Value(from + i));
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {
namespace {

HWY_EXPORT(FoldRow);
HWY_EXPORT(DecodeRow);

// Keeps the first Qs apart from what else the client's key makes.
constexpr uint64_t kPurpose = 0x7265776F70;  // "power"
// A column of P that has so little left after the ones before it were taken out is rounding noise.
constexpr double kDependent = 1e-6;

// Eight sums, of the places that are the same modulo 8, added in pairs: one order everywhere.
template <class A, class B>
double Dot(const A* a, const B* b, size_t n) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  for (size_t j = 0; i < n; ++i, ++j) {
    sums[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

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

// The columns of P made orthonormal, one after the other (modified Gram-Schmidt); one that depends
// on those before it becomes zero.
void Orthonormalize(std::vector<std::vector<double>>* columns) {
  for (size_t k = 0; k < columns->size(); ++k) {
    std::vector<double>& p = (*columns)[k];
    const double before = std::sqrt(Dot(p.data(), p.data(), p.size()));
    for (size_t l = 0; l < k; ++l) {
      const std::vector<double>& other = (*columns)[l];
      const double part = Dot(p.data(), other.data(), p.size());
      for (size_t i = 0; i < p.size(); ++i) p[i] -= part * other[i];
    }
    const double norm = std::sqrt(Dot(p.data(), p.data(), p.size()));
    const bool dependent = !(norm > kDependent * before) || norm < 0x1p-140;
    for (double& v : p) v = dependent ? 0 : v / norm;
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
  const auto row = [&](size_t i) {
    return x.subspan(i * columns, std::min(columns, x.size() - i * columns));
  };
  std::vector<float> factors((rows + columns) * rank);
  float* const q = factors.data() + rows * rank;
  if (context.warm.size() == columns * rank) std::ranges::copy(context.warm, q);
  std::vector<std::vector<double>> p(rank, std::vector<double>(rows));
  for (uint32_t k = 0; k < rank; ++k) {
    const std::span<float> start(q + k * columns, columns);
    if (std::ranges::all_of(start, [](float v) { return v == 0; })) FillRandom(context, k, start);
    for (size_t i = 0; i < rows; ++i) p[k][i] = Dot(row(i).data(), start.data(), row(i).size());
  }
  Orthonormalize(&p);
  std::vector<double> sums(columns);
  for (uint32_t k = 0; k < rank; ++k) {
    std::ranges::fill(sums, 0.0);
    for (size_t i = 0; i < rows; ++i) {
      const auto v = static_cast<float>(p[k][i]);
      factors[i * rank + k] = v;
      const std::span<const float> of_row = row(i);
      for (size_t j = 0; j < of_row.size(); ++j) {
        sums[j] += static_cast<double>(of_row[j]) * static_cast<double>(v);
      }
    }
    for (size_t j = 0; j < columns; ++j) q[k * columns + j] = static_cast<float>(sums[j]);
  }
  return factors;
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
