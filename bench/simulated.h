// How well the simulation foretells: the same clients, policies and rounds, simulated and by real
// processes whose training is a wait.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figures.h"

namespace tributary::bench {

// `simulate.error.<case>`: how far the simulated mean round is from the measured, as a share of the
// measured. Files go to `out`. ABORTED names the log where a run does not end well.
absl::StatusOr<std::vector<Figure>> SimulatedAgainstReal(const std::string& out);

}  // namespace tributary::bench
