// Server optimizers: from a round's exact sum to the next model. FedAvg (McMahan et al., 2017) now.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "aggregation/accumulator.h"

namespace tributary::aggregation {

// Not thread-safe.
class ServerOptimizer {
 public:
  virtual ~ServerOptimizer() = default;
  virtual std::string_view name() const = 0;
  // next = base moved by the aggregate; both are layout.model_bytes() long, may not overlap. By
  // policy:
  //   MEAN  floats: base + lr * mean, computed in double and rounded once to the tensor's dtype;
  //         integers: base + rne(S / W), half to even, with the server learning rate not applied;
  //   SUM   base + S (floats: S * 2^-f);  MAX, FIRST  base + the delta kept;  SKIP  base.
  // Integers that leave their dtype's range: OUT_OF_RANGE naming the tensor, and `next` is to be
  // dropped.
  virtual absl::Status Apply(const ExactAccumulator& sum, const Grid& grid, uint64_t weight,
                             std::span<const uint8_t> base, std::span<uint8_t> next) = 0;
  // What a checkpoint must keep.
  virtual std::map<std::string, std::string> State() const = 0;
  virtual absl::Status Restore(const std::map<std::string, std::string>& state) = 0;
};

// "fedavg". INVALID_ARGUMENT names what is known. learning_rate: 1 is plain averaging.
absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeServerOptimizer(std::string_view name,
                                                                     double learning_rate);

}  // namespace tributary::aggregation
