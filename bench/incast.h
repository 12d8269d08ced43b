// `tributary bench round --scenario incast`: many clients ready at once against few.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figures.h"

namespace tributary::bench {

// Updates of 16 MB into one aggregator: 10 clients, then `clients` that wait for grants, then as
// many that do not. Real processes over loopback.
absl::StatusOr<std::vector<Figure>> Incast(const std::string& out, uint32_t clients,
                                           uint64_t inflight_mb);

}  // namespace tributary::bench
