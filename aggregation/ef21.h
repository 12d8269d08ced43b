// The root's side of EF21: updates are changes of each client's estimate of its own delta, and what
// moves the model is the mean of all clients' estimates, of those too that were not asked
// (Richtarik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021; partial participation: Fatkhullin et al.,
// "EF21 with Bells & Whistles", 2021, algorithm 4).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "aggregation/optimizer.h"

namespace tributary::aggregation {

struct Ef21Options {
  std::vector<bool> tensors;       // by tensor: whose deltas come as changes of estimates
  uint64_t population_weight = 0;  // of all clients together, in the weights' units; > 0
  int fraction_bits = 30;          // the grid's
};

// An optimizer that adds each round's sum to those of all rounds before, and hands `inner` the
// totals as the sums of those tensors, with the population's weight; the other tensors stay as they
// are. The totals are the grid's integers, so that they equal the sum of weight times estimate over
// all clients, exactly, as long as a client's weight stays the same. 16 bytes an element of the
// layout. State() has 8 bytes an element of those tensors, beside the inner one's.
//
// Apply, beside what inner says: INVALID_ARGUMENT where the round weighs more than the population,
// OUT_OF_RANGE naming the tensor where a total leaves 63 bits; nothing has changed then. Not
// thread-safe. INVALID_ARGUMENT: no weight, or a tensor that is no float to be averaged.
absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeEf21(
    Ef21Options options, std::unique_ptr<ServerOptimizer> inner,
    std::shared_ptr<const ModelLayout> layout);

}  // namespace tributary::aggregation
