// `tributary bench kernels`: folds, encodes, validation and packing against the same run's ceiling.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_format.h"
#include "aggregation/kernel_bench.h"
#include "base/status.h"
#include "bench/commands.h"
#include "bench/figures.h"
#include "compression/kernel_bench.h"

namespace tributary::bench {

int Kernels(const KernelsOptions& options) {
  std::vector<compression::KernelFigure> rows =
      compression::RunKernelBench({.only = options.codec});
  if (options.codec.empty()) {
    std::ranges::move(aggregation::RunPackBench({}), std::back_inserter(rows));
  }
  std::vector<Figure> figures;
  figures.reserve(rows.size());
  for (const compression::KernelFigure& row : rows) {
    figures.push_back({.name = row.name,
                       .value = row.value,
                       .unit = row.unit,
                       .ceiling = row.ceiling,
                       .note = row.ns_an_element == 0
                                   ? ""
                                   : absl::StrFormat("%.3g ns an element, %.3g GB/s as fp32",
                                                     row.ns_an_element, 4 / row.ns_an_element)});
  }
  Print(figures);
  if (const absl::Status status = WriteJson(options.json, figures, {"kernels"}); !status.ok()) {
    std::fprintf(stderr, "%s\n", Text(status).c_str());
    return 1;
  }
  return 0;
}

}  // namespace tributary::bench
