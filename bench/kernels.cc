// `tributary bench kernels`: folds, encodes and validation against the same run's ceiling.
#include <cstdio>

#include "base/status.h"
#include "bench/commands.h"
#include "bench/figures.h"
#include "compression/kernel_bench.h"

namespace tributary::bench {

int Kernels(const KernelsOptions& options) {
  std::vector<Figure> figures;
  for (const compression::KernelFigure& row : compression::RunKernelBench({})) {
    figures.push_back({.name = row.name,
                       .value = row.value,
                       .unit = row.unit,
                       .ceiling = row.ceiling,
                       .note = ""});
  }
  Print(figures);
  if (const absl::Status status = WriteJson(options.json, figures, {"kernels"}); !status.ok()) {
    std::fprintf(stderr, "%s\n", Text(status).c_str());
    return 1;
  }
  return 0;
}

}  // namespace tributary::bench
