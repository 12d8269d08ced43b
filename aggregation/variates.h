// SCAFFOLD's control variates as tensors (Karimireddy et al., "SCAFFOLD: Stochastic Controlled
// Averaging for Federated Learning", ICML 2020): the server's c lies behind the model's tensors in
// one layout, so it goes down with the model, and changes of the clients' c_i go up with the
// updates, through the same exact sums.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"

namespace tributary::aggregation {

// What the name of a model's tensor has in front as a variate's.
inline constexpr char kVariatePrefix[] = "scaffold.";

// The model's tensors, then for each float tensor that is averaged, in order, an F32 of its shape
// under kVariatePrefix and its name, averaged too. INVALID_ARGUMENT: a name is taken or too long,
// or nothing is averaged.
absl::StatusOr<std::shared_ptr<const ModelLayout>> WithVariates(const ModelLayout& model);

struct Variates {
  uint32_t model_tensors = 0;  // the first so many are the model's, the others variates
  // By the model's tensors: the index of its variate.
  std::vector<std::optional<uint32_t>> of;
};

// Takes a layout that WithVariates made apart. FAILED_PRECONDITION where it is not one.
absl::StatusOr<Variates> FindVariates(const ModelLayout& layout);

}  // namespace tributary::aggregation
