// Private to server/: what no key of a config shows by itself, but several together, or a file.
#pragma once

#include "aggregation/grid.h"
#include "base/toml_checks.h"
#include "server/config.h"

namespace tributary::server {

inline constexpr uint64_t kLeastInflightBytes = 1 << 16;  // of [limits]; a tile's worth

// Addresses that cannot go together, timeouts in the wrong order, TLS for nobody, files that cannot
// be written.
void CheckNodeTogether(TomlReader& toml, const Config& config);

// A root's: the grid's proof, policies against the model's tensors, the budget against an update,
// cohort against weights. After CheckNodeTogether.
void CheckRunTogether(TomlReader& toml, const Config& config);

// What [aggregation] asks of the grid.
aggregation::GridRequest GridRequestOf(const AggregationConfig& config);

}  // namespace tributary::server
