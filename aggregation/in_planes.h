// The root's side of updates that travel as coefficients of a basis (compression/planes.h): racks
// add coefficients as they add anything, and the sum goes back once, for it is linear.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"
#include "aggregation/optimizer.h"
#include "compression/planes.h"

namespace tributary::aggregation {

// An optimizer that takes the sums of those tensors whose shape is given (by tensor; 0 x 0: not)
// back from their basis and hands them to `inner`, rounded to the grid. 8 bytes an element of the
// layout. Keeps nothing between rounds. Apply: OUT_OF_RANGE naming the tensor where a sum leaves 62
// bits. INVALID_ARGUMENT: a tensor that is no float to be averaged, or not made of such planes.
absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeInPlanes(
    std::vector<compression::PlaneShape> planes, std::unique_ptr<ServerOptimizer> inner,
    std::shared_ptr<const ModelLayout> layout);

}  // namespace tributary::aggregation
