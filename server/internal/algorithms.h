// Private to server/: what the clients' algorithms in [training] ask of the run: its layout, its
// server step, and what they do not go with.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "aggregation/optimizer.h"
#include "base/toml_reader.h"
#include "server/config.h"

namespace tributary::server {

// What clients and racks of the run see: the model's layout, under SCAFFOLD with control variates.
absl::StatusOr<std::shared_ptr<const aggregation::ModelLayout>> RunLayout(
    const TrainingConfig& training, std::shared_ptr<const aggregation::ModelLayout> model);

// Of a checkpoint's layout: FAILED_PRECONDITION where it has variates and the config none, or the
// other way.
absl::Status CheckResumedLayout(const TrainingConfig& training,
                                const aggregation::ModelLayout& layout);

// The server optimizer of a root's config, for RunLayout's layout. `threads` is left at 1.
aggregation::OptimizerOptions OptimizerOptionsOf(const Config& config,
                                                 const aggregation::Grid& grid,
                                                 const aggregation::ModelLayout& layout);

// Findings at the key that is best mended. `layout`: RunLayout's, or null where there is none.
// Those of [run] rack_rounds among them.
void CheckAlgorithms(TomlReader& toml, const Config& config,
                     const aggregation::ModelLayout* layout);

}  // namespace tributary::server
