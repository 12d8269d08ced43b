// Private to client/trainer: model bytes into a torch module, and the differences out of it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/trainer/internal/network.h"

namespace tributary::client::trainer {

// Which of the network's tensors each of the task's is, after comparing names, shapes and dtypes.
// The layout's first `tensors` are looked at: what follows is not the model's.
// FAILED_PRECONDITION says what differs first.
absl::StatusOr<std::vector<size_t>> MatchTensors(const Network& network,
                                                 const aggregation::ModelLayout& layout,
                                                 uint32_t tensors);

// Copies the task's base model into the network. INVALID_ARGUMENT: the bytes are not the layout's.
absl::Status LoadBase(const TrainTask& task, const std::vector<size_t>& match, Network* network);

// network - base, tensor by tensor, into the result's floats and ints.
void TakeDeltas(const TrainTask& task, const std::vector<size_t>& match, const Network& network,
                TrainResult* result);

}  // namespace tributary::client::trainer
