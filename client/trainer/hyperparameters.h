// What a round's spec tells clients about training, read and checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "tributary/v1/model.pb.h"

namespace tributary::client::trainer {

// Defaults hold where the spec names nothing.
struct Hyperparameters {
  double lr = 0.05;           // > 0
  double momentum = 0;        // [0, 1): v = momentum * v + g, w -= lr * v; v starts at 0 each round
  double weight_decay = 0;    // >= 0: g += weight_decay * w
  uint32_t local_epochs = 1;  // 1..10,000 passes over the client's examples
  uint32_t batch_size = 32;   // 0: all examples in one step; a partial last batch is kept
  double mu = 0;              // >= 0, FedProx (Li et al., 2020): g += mu * (w - base)
  double work = 1;            // (0, 1]: this share of the steps, rounded up, then it stops
  double seconds = 0;         // above 0: so long after the task came it stops with what it has
  // SCAFFOLD (aggregation/variates.h), option II: g += c - c_i.
  bool scaffold = false;
  // >= 0, FedDyn's alpha (Acar et al., 2021): g += alpha * (w - base) - h_i, and then h_i -= alpha
  // * (w - base).
  double feddyn = 0;
  bool fednova = false;  // the delta is divided by its normalised steps (aggregation/fednova.h)
};

// INVALID_ARGUMENT: an unknown name (lists the known ones) or a value out of its range.
absl::StatusOr<Hyperparameters> ReadHyperparameters(const v1::RoundSpec& spec);

}  // namespace tributary::client::trainer
