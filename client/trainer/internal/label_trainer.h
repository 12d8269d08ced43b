// Private to client/trainer: a trainer that tells with its metrics which labels it trains on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace tributary::client::trainer {

// Adds "label.0", "label.1", ... to what `inner` reports of each training and evaluation: the share
// of each label among the client's training examples, weighted by their number. Summed exactly
// through the tiers, their means are the label shares of those who took part, and, of an
// evaluation, of all who are there. INVALID_ARGUMENT: more labels than a report has room for.
absl::StatusOr<std::unique_ptr<Trainer>> MakeLabelTrainer(std::span<const uint8_t> labels,
                                                          int label_count,
                                                          std::unique_ptr<Trainer> inner);

}  // namespace tributary::client::trainer
