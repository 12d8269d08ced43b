// Hierarchical averaging: a rack runs rounds of its own on its own model, and what its parent gets
// is one sum that stands for all of them (HierFAVG: Liu, Zhang, Song, Letaief, "Client-Edge-Cloud
// Hierarchical Federated Learning", ICC 2020).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "aggregation/accumulator.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"

namespace tributary::aggregation {

// Replaces the sums by those of one update of this weight whose delta is local - base, so that the
// parent's mean weighs the rack's model as it would a client's: MEAN tensors get weight times the
// delta, on the grid; SUM, MAX and FIRST tensors the delta; what is skipped is not looked at.
// `base` and `local` are layout.model_bytes() of little-endian tensors. OUT_OF_RANGE names the
// tensor whose delta passes the grid's bound or is not finite; the sums are to be dropped then.
// INVALID_ARGUMENT: sizes, or a weight of 0 or beyond the grid's. One pass; any thread, alone.
absl::Status ReplaceByDifference(std::span<const uint8_t> base, std::span<const uint8_t> local,
                                 uint64_t weight, const Grid& grid, ExactAccumulator* sum);

}  // namespace tributary::aggregation
