// Private to client/trainer: Dirichlet shares and apportionment that no C library can change.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace tributary::client::trainer {

// Natural logarithm of a positive normal x, and e^x for x in [-700, 700]; relative error below
// 1e-14 (absolute, for Log near 1). Made of IEEE additions, multiplications and divisions alone:
// the same bits on every machine.
double PortableLog(double x);
double PortableExp(double x);

// One draw from Dirichlet(alpha, ..., alpha), in units of 1/2^20, each rounded half to even. The
// shares sum to about 2^20, at least one is not 0. n in 1..1,000,000, alpha in 0.001..1,000,000.
std::vector<uint64_t> DrawShares(double alpha, uint32_t n, PhiloxStream* random);

// `total` counted out in proportion to the shares (each at most 2^20, not all 0) by largest
// remainder, among equals to the first: the counts sum to `total`, which is below 2^40.
std::vector<uint64_t> Apportion(uint64_t total, std::span<const uint64_t> shares);

}  // namespace tributary::client::trainer
