// `tributary bench round --scenario stragglers`: the default policy against waiting for all.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figures.h"

namespace tributary::bench {

// 100 clients behind two racks that train for real (Fashion-MNIST), a tenth of them ten times
// slower by a delay, and in each round one of their 20 processes killed -9 and started again; then
// the same shape in simulation.
absl::StatusOr<std::vector<Figure>> StragglersAgainstWaiting(const std::string& out);

}  // namespace tributary::bench
