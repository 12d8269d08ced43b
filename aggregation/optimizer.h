// Server optimizers: from a round's exact sum to the next model. FedAvg (McMahan et al., 2017),
// FedAvgM (Hsu et al., 2019), FedAdagrad, FedAdam and FedYogi (Reddi et al., "Adaptive Federated
// Optimization", 2021, algorithm 2).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/accumulator.h"
#include "aggregation/schedule.h"

namespace tributary::aggregation {

// With d the mean delta and lr the schedule's rate of the round:
//   fedavg      x += lr d
//   fedavgm     m = momentum m + d                                       x += lr m
//   fedadagrad  m = beta1 m + (1 - beta1) d,  v = v + d^2                x += lr m / (sqrt(v) +
//   tau) fedadam     m as above,  v = beta2 v + (1 - beta2) d^2               x as above fedyogi m
//   as above,  v = v - (1 - beta2) d^2 sign(v - d^2)       x as above
// m starts at 0, v at tau^2; as in the paper nothing corrects m for that.
// And "feddyn" (Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
// algorithm 1), which is no choice of its own but goes with its clients' part: with S the round's
// sum of weight times delta and P the weight of all clients, those that were not asked too,
//   m = m + S / P                                                       x += d + m
// where m is the paper's -h / alpha, so that alpha is the clients' affair.
struct OptimizerOptions {
  std::string name = "fedavg";
  Schedule schedule{};
  double momentum = 0.9;           // [0, 1): fedavgm
  double beta1 = 0.9;              // [0, 1): the adaptive three
  double beta2 = 0.99;             // [0, 1): fedadam, fedyogi
  double tau = 1e-3;               // > 0: the adaptive three
  int threads = 1;                 // 1..256; the result has the same bits with any number
  uint64_t population_weight = 0;  // feddyn: P, in the weights' units; > 0
  // By tensor, or empty. Above 0, for floats that are averaged: the tensor is a mean over all
  // clients, whose weight this is, kept by what those that are asked changed; it moves by S / that,
  // without rate, scale or moments (SCAFFOLD's control variate, whose update is of this form).
  std::vector<uint64_t> running = {};
};

// What an Apply goes by.
struct RoundSum {
  const ExactAccumulator& sum;
  const Grid& grid;
  uint64_t weight = 0;  // W
  uint64_t round = 1;   // from 1: the schedule's time
  double scale = 1;     // times the mean of floats: FedNova's effective steps
  // In place of what `sum` holds, and of W for single tensors (0: W); empty: as above.
  std::span<const int64_t> sums = {};
  std::span<const uint64_t> tensor_weights = {};
};

// Not thread-safe.
class ServerOptimizer {
 public:
  virtual ~ServerOptimizer() = default;
  virtual std::string_view name() const = 0;
  // next = base moved by the aggregate; both are layout.model_bytes() long, may not overlap. By
  // policy:
  //   MEAN  floats: base + the optimizer's step of the mean, computed in double and rounded once to
  //         the tensor's dtype; integers: base + rne(S / W), half to even, without learning rate or
  //         moments;
  //   SUM   base + S (floats: S * 2^-f);  MAX, FIRST  base + the delta kept;  SKIP  base.
  // Integers that leave their dtype's range: OUT_OF_RANGE naming the tensor, and `next` is to be
  // dropped. INVALID_ARGUMENT: a round that weighs more than the population. The moments that go
  // with `next` are only staged: they count from Commit on, and are forgotten by another Apply, so
  // that a round whose checkpoint fails leaves no trace.
  virtual absl::Status Apply(const RoundSum& round, std::span<const uint8_t> base,
                             std::span<uint8_t> next) = 0;
  virtual void Commit() = 0;
  // What a checkpoint must keep: the staged moments, where there are some, else the committed.
  virtual std::map<std::string, std::string> State() const = 0;
  // INVALID_ARGUMENT, and nothing has changed, where the state is another optimizer's, another
  // model's or damaged.
  virtual absl::Status Restore(const std::map<std::string, std::string>& state) = 0;
  // Bytes that State() has, about.
  virtual uint64_t state_bytes() const = 0;
};

// "fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi": those that a run may choose.
std::vector<std::string> ServerOptimizerNames();

// For models of this layout. INVALID_ARGUMENT names the option that cannot be, or what names are
// known.
absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeServerOptimizer(
    const OptimizerOptions& options, std::shared_ptr<const ModelLayout> layout);

}  // namespace tributary::aggregation
