// The workers that fold: each owns a range of elements and folds everything that waits, tile by
// tile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregation/accumulator.h"
#include "aggregation/update.h"
#include "base/bytes.h"

namespace tributary::aggregation {

// A child's packed partial sum, validated: all of it, or adjacent chunks.
struct PackedPartial {
  std::string first_id;
  std::vector<std::vector<uint8_t>> chunks;  // chunk i at index i - first_chunk
  uint64_t first_chunk = 0;
};

// Threads: all methods from any thread. Work handed in is done once each; its callback runs on a
// worker thread after the last range is folded, and must not block.
class FoldPool {
 public:
  struct Options {
    int workers = 1;            // 1..256
    int updates_per_pass = 16;  // at most this many share a pass over a tile
    // Updates are gathered, so that they share a pass, until `updates_per_pass` wait, or so many
    // encoded bytes, or the first has waited so long, or Flush: a pass costs most in the sums,
    // which it has to load and store. 0: they are folded as they come.
    double gather_seconds = 0;
    uint64_t gather_bytes = UINT64_MAX;
  };
  explicit FoldPool(const Options& options);
  ~FoldPool();  // finishes what was handed in

  // Work goes to this accumulator from now on. Only while nothing is in flight (CHECKed).
  void Target(ExactAccumulator* accumulator);
  // With `released` the update's bytes are let go as the passes go over them, and nobody else may
  // read it: so many more are free, says `released`, on worker threads and before `done`; it must
  // not block. The rest go at the end.
  void Fold(std::shared_ptr<const EncodedUpdate> update, std::function<void()> done,
            std::function<void(uint64_t bytes)> released = nullptr);
  void Flush();          // what is gathered is folded now
  bool Folding() const;  // workers have work, beside what is gathered
  void Merge(std::shared_ptr<const PackedPartial> partial, std::function<void()> done);
  // Undoes a Merge, in whatever order the two come to the workers. Its chunks are such as
  // ExactAccumulator::CanSubtractChunk says (CHECKed).
  void Subtract(std::shared_ptr<const PackedPartial> partial, std::function<void()> done);
  // Does nothing itself: `done` comes after all that was handed in before is in the sums.
  void Fence(std::function<void()> done);
  void Wait();                  // until nothing is in flight
  double busy_seconds() const;  // CPU seconds spent folding, all workers

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tributary::aggregation
