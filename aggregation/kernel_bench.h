// Measures the packing of partial sums against a ceiling taken in the same run.
#pragma once

#include <cstdint>
#include <vector>

#include "compression/kernel_bench.h"

namespace tributary::aggregation {

struct PackBenchOptions {
  // Sums that pass by in one repetition; as int64 more than the last-level cache holds.
  uint64_t elements = uint64_t{16} << 20;
  int repetitions = 7;  // kernel and ceiling take turns so often; the best of each counts
};

// `kernels.pack.write` and `kernels.pack.merge`, on the calling thread, in GB/s of int64 sums
// packed or merged into. The sums are those of a round: about 42 bits wide. A ceiling moves the
// same bytes between the same places with the least arithmetic.
std::vector<compression::KernelFigure> RunPackBench(const PackBenchOptions& options);

}  // namespace tributary::aggregation
