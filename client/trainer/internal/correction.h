// Private to client/trainer: what SCAFFOLD and FedDyn add to each step's gradient, and what they
// leave behind for the next round.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/trainer/hyperparameters.h"
#include "client/trainer/internal/network.h"

namespace tributary::client::trainer {

// How many of the task's tensors, from the first, are the model's: all, but in a run of SCAFFOLD.
// FAILED_PRECONDITION: such a run's layout has no variates.
absl::StatusOr<uint32_t> ModelTensors(const TrainTask& task, const Hyperparameters& how);

// By the network's tensors, undefined where there is nothing to add:
//   scaffold  c - c_i: c from the base, c_i the task's memory of the variate
//   feddyn    -h_i, the memory of the tensor itself
// Empty under other algorithms. FAILED_PRECONDITION, feddyn: a float tensor that is averaged is not
// trained (a batch norm's statistics, say): the server would carry its drift on without end.
absl::StatusOr<std::vector<torch::Tensor>> GradientCorrections(const TrainTask& task,
                                                               const std::vector<size_t>& match,
                                                               const Network& network,
                                                               const Hyperparameters& how);

// After TakeDeltas. FAILED_PRECONDITION, fednova: training moved a float tensor that is averaged
// and that SGD does not train (a batch norm's statistics): the server, which makes each mean delta
// larger by the steps, would carry it far beyond what anybody measured.
absl::Status CheckFedNova(const TrainTask& task, const std::vector<size_t>& match,
                          const Network& network, const TrainResult& result);

// After TakeDeltas, of a training of `steps` (FedNova's normalised ones, as momentum makes a
// gradient count more than once):
//   scaffold  option II, c_i+ = c_i - c + (x - y) / (steps lr): the variates' deltas are c_i+ -
//   c_i,
//             and the memory goes along
//   feddyn    h_i+ = h_i - alpha (y - x)
void FinishCorrections(const TrainTask& task, const std::vector<size_t>& match,
                       const Network& network, const Hyperparameters& how, double steps,
                       TrainResult* result);

}  // namespace tributary::client::trainer
