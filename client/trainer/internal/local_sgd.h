// Private to client/trainer: passes of SGD over a client's examples, and its test.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/philox.h"
#include "client/trainer/dataset.h"
#include "client/trainer/hyperparameters.h"
#include "client/trainer/internal/network.h"

namespace tributary::client::trainer {

struct Trained {
  double loss = 0;  // mean over the last epoch, or what was done of it
  uint64_t steps = 0;
};
// Trains the network in place. `out_of_time`: asked after each step; true ends it with what it has.
// `corrections`: by the network's tensors, added to each step's gradient where defined; or empty.
// CANCELLED, OUT_OF_RANGE (the loss is not finite). Throws what torch throws.
absl::StatusOr<Trained> TrainLocally(Network* network, const Examples& examples,
                                     const ImageFormat& format, const Hyperparameters& how,
                                     PhiloxStream order, const std::function<bool()>& cancelled,
                                     const std::function<bool()>& out_of_time,
                                     const std::vector<torch::Tensor>& corrections = {});

struct TestScore {
  double loss = 0;      // mean cross entropy
  double accuracy = 0;  // share of examples whose highest score is their label's
};
// Of a network in evaluation mode. Throws what torch throws.
TestScore Test(Network* network, const Examples& examples, const ImageFormat& format);

}  // namespace tributary::client::trainer
