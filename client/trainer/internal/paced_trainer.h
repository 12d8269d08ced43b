// Private to client/trainer: a trainer that takes as long as it is told to; for benches.
#pragma once

#include <cstdint>
#include <memory>

#include "client/client.h"

namespace tributary::client::trainer {

struct Pace {
  double seconds = 0;       // that a training takes at least; 0: as long as it takes
  uint32_t slow_every = 0;  // client i is slow where (i mod slow_every) is 0; 0: nobody is
  double slow_factor = 10;  // so many times slower
};

// `inner` trains; then it waits until the task is so old, the task's share of work considered. A
// task that is cancelled meanwhile ends CANCELLED. Where nothing is to be waited for: `inner`.
std::unique_ptr<Trainer> MakePacedTrainer(const Pace& pace, uint32_t index,
                                          std::unique_ptr<Trainer> inner);

}  // namespace tributary::client::trainer
