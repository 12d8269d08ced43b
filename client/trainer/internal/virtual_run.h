// Private to client/trainer: a run in virtual time with real training. Who trains, and when its
// update is there, is the simulation's model of clients; what is trained is real, and so are the
// round's and the buffer's machines, the exact sums and the server's optimizer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/trainer/config.h"

namespace tributary::client::trainer {

struct VirtualRunOptions {
  std::string arm = "async";  // "wait", "adaptive" (rounds; the latter by the default policy),
                              // "async" (FedBuff)
  std::string latencies;      // a simulation's file (simulate/config.h): [clients] and [straggler]
  uint64_t buffer = 10;       // async
  uint64_t concurrency = 0;   // clients that train at once, in rounds the cohort; 0: all
  double until = 0.8;         // test accuracy at which it ends,
  uint32_t most_versions = 2000;  // or after so many versions
  double lr = 0.05;
  double local_epochs = 1;
  double batch_size = 32;
};

// Trains config.split.clients clients and prints a line of JSON a version: {"version", "seconds"
// (virtual), "updates" (that counted so far), "trainings", "accuracy", "loss"}.
absl::Status RunInVirtualTime(const ClientConfig& config, const VirtualRunOptions& options);

}  // namespace tributary::client::trainer
