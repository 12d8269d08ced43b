// Private to client/trainer: evaluates models on the test images as a root's evaluator does
// (server/evaluator.h): paths in, lines of JSON out.
#pragma once

#include <istream>
#include <ostream>

#include "absl/status/status.h"
#include "client/trainer/config.h"

namespace tributary::client::trainer {

// Until the input ends. For each line, the path of a model.safetensors, a line
// {"loss": mean cross entropy, "accuracy": 0..1, "count": examples} on the test images of the
// config's part of the data (all, with [data] clients = 1), or {"error": "..."}. Control variates
// in a model are left out. Not OK: the data or the model of the config cannot be had.
absl::Status JudgeModels(const ClientConfig& config, std::istream& paths, std::ostream& answers);

}  // namespace tributary::client::trainer
