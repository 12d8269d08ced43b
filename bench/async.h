// Asynchronous against synchronous: the same clients, data and latencies, real training, virtual
// time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figures.h"

namespace tributary::bench {

// `async.speedup` and what it rests on; files go to `out`. Starts tributary-client, which must lie
// beside this program. ABORTED where an arm does not reach the accuracy.
absl::StatusOr<std::vector<Figure>> AsyncAgainstSync(const std::string& out, uint32_t clients);

}  // namespace tributary::bench
