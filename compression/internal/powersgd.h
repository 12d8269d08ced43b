// Between powersgd_codec.cc (checks, segments) and powersgd.cc (factors, kernels).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compression/codec.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

inline constexpr uint32_t kMaxRank = 64;
// A Q is at most half a segment's payload; tensors with longer rows are cut into other rows.
inline constexpr uint64_t kMaxFactorBytes = uint64_t{1} << 19;
inline constexpr uint64_t kMaxPowerTiles = 4096;  // of a segment: what its bytes may grow to

// `columns` of the matrix that a tensor is taken as; 0: about as many as rows.
std::shared_ptr<const Codec> MakePowerSgd(uint32_t rank, uint64_t columns = 0);

// A row's factors: element j is the sum over k of p[k] * q[k * columns + j], the products (exact in
// binary64) added in the order of k, each sum rounded to nearest.
struct PowerRow {
  const float* p = nullptr;
  const float* q = nullptr;
  size_t rank = 0;
  size_t columns = 0;

  double Value(size_t j) const {
    double v = static_cast<double>(p[0]) * static_cast<double>(q[j]);
    for (size_t k = 1; k < rank; ++k) {
      v += static_cast<double>(p[k]) * static_cast<double>(q[k * columns + j]);
    }
    return v;
  }
};

// acc[i] += weight * rne(element (from + i) * args.scale), n elements; args.narrow_limit >= 0 says
// that weight and integers are narrow.
void PowerFold(const PowerRow& row, size_t from, size_t n, const FoldArgs& args, int64_t* acc);
void PowerDecode(const PowerRow& row, size_t from, size_t n, float* out);

// One step of power iteration on x as rows of `columns` elements (the last may be short): P is x
// Q0, orthonormal, Q is x^T P. Returns P, rank floats a row, and then Q, `columns` floats for each
// k. Q0 is `warm` where that has Q's size, and random where it has not or is all zero.
std::vector<float> PowerFactors(std::span<const float> x, size_t columns, uint32_t rank,
                                const EncodeContext& context);

}  // namespace tributary::compression
