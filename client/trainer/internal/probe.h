// Private to client/trainer: `tributary-client --probe-codecs`: which codec should a run use?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"
#include "client/client.h"
#include "client/trainer/config.h"

namespace tributary::client::trainer {

struct ProbeRow {
  std::string spec;
  uint64_t bytes = 0;           // of the update's segments, headers among them
  double times_smaller = 0;     // than the model in fp32
  double nmse = 0;              // |x - decoded|^2 / |x|^2 over all float tensors
  double encode_ns = 0;         // an element, the best of three
  bool error_feedback = false;  // what is lost comes later
};

// Every codec, stage and kind of values that there is, with usual parameters.
const std::vector<std::string>& ProbedSpecs();

// Every codec of `specs` on this update.
// INVALID_ARGUMENT as CodecPolicy::Parse and Encode.
absl::StatusOr<std::vector<ProbeRow>> ProbeUpdate(const aggregation::ModelLayout& layout,
                                                  const TrainResult& update,
                                                  const std::vector<std::string>& specs);

// One client's update: the config's data, its built-in model with initial weights, one local epoch.
// Prints the table. INVALID_ARGUMENT for a model that is not built in.
absl::Status ProbeCodecs(const ClientConfig& config);

}  // namespace tributary::client::trainer
