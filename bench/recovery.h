// Aggregators killed within a round, and how long it takes until work goes on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figures.h"

namespace tributary::bench {

// `recovery.p50_ms`, `recovery.max_ms` over 30 kills with -9, and the same by what was killed;
// files go to `out`. Starts `tributary serve` for the global and two racks; the clients are threads
// of this process. DEADLINE_EXCEEDED where a run does not recover within half a minute.
absl::StatusOr<std::vector<Figure>> Recovery(const std::string& out);

}  // namespace tributary::bench
