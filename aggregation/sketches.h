// Tensors that a run sends as count sketches: whose sums are cells until the root finds the largest
// elements in them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/accumulator.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "base/bytes.h"
#include "compression/segment.h"
#include "compression/sketch.h"

namespace tributary::aggregation {

// Immutable, thread-safe. Every tier makes its own from the round's spec.
class SketchedTensors {
 public:
  struct Tensor {
    bool sketched = false;
    compression::SketchForm form;
    uint64_t key = 0;  // of its first tile
  };

  // Null where no tensor is sketched. FAILED_PRECONDITION where one has another policy than MEAN:
  // the others are not linear, or have no weight. INVALID_ARGUMENT: not a codec spec.
  static absl::StatusOr<std::shared_ptr<const SketchedTensors>> Create(const ModelLayout& layout,
                                                                       std::string_view codec,
                                                                       uint64_t seed);
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;  // of the layout
};

// OK where a validated segment is a sketch just if its tensor's are (`sketched` may be null: none
// are), of the run's form and with the run's key.
absl::Status CheckSketch(const SketchedTensors* sketched, const compression::SegmentHeader& header,
                         const PiecedBytes& payload);

// At the root: what a sum of sketches stands for, and what was not found in it, which is added to
// the next round's (FetchSGD's error accumulation, in cells). Not thread-safe.
class SketchRecovery {
 public:
  SketchRecovery(std::shared_ptr<const ModelLayout> layout,
                 std::shared_ptr<const SketchedTensors> sketched);

  // Replaces the cells of each sketched tensor in a closed sum of weight `weight` by the elements
  // found: sums as of updates that had sent these elements alone. What is left is staged. The
  // elements' sums are rounded to the grid, once.
  void Recover(const Grid& grid, uint64_t weight, ExactAccumulator* sum);
  // The round counted: what it left is what the next begins with. Without it the next Recover
  // begins where this one did.
  void Commit();
  // The staged cells, where there are some, else the committed: float64, little-endian, in order.
  std::string State() const;
  // INVALID_ARGUMENT where the state is of another layout or form; "" is none.
  absl::Status Restore(std::string_view state);

 private:
  uint64_t Cells() const;

  const std::shared_ptr<const ModelLayout> layout_;
  const std::shared_ptr<const SketchedTensors> sketched_;
  std::vector<double> committed_, staged_;  // of all sketched tensors, in order
};

}  // namespace tributary::aggregation
