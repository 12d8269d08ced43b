// The hyperparameters that a run may hand to its clients: their names and ranges, for the config
// that sets them and the client that obeys.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tributary::aggregation {

// lr (0, 1e6], momentum [0, 1), weight_decay, mu and feddyn [0, 1e6], local_epochs 1..10,000,
// batch_size 0..2^30 (0: all examples in one step), work (0, 1], seconds (0, 1e9],
// fednova and scaffold 0 or 1.
// INVALID_ARGUMENT: a name that is not known, with those that are, or a value out of its range, NaN
// among them.
absl::Status CheckHyperparameter(const std::string& name, double value);

}  // namespace tributary::aggregation
