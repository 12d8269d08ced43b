// A child's partial sum that is folded while it comes in, and can be undone until it counts.
//
// Each chunk is checked and handed to the fold workers as it arrives; its packed bytes are kept,
// because subtracting needs them. Chunks with MAX or FIRST tensors, which cannot be undone, are
// only kept and are folded at the end. It outlives the link that brought it: what a child begins on
// one link it may go on with on the next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aggregation/accumulator.h"
#include "aggregation/fold_pool.h"
#include "base/bytes.h"
#include "server/partial_digest.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

// Threads: Take, Finish and StartOver from one thread at a time, the receiving one; the others from
// any. The accumulator, which is the pool's target, and the pool outlive it.
class PartialFold {
 public:
  PartialFold(const v1::PartialSumHeader& header, const aggregation::ExactAccumulator* sum,
              aggregation::FoldPool* pool);

  // The next chunk, number `index`. INVALID_ARGUMENT where it is not the next or is not valid;
  // CANCELLED once it is sealed.
  absl::Status Take(uint64_t index, ByteSpan packed);
  // All chunks are in and have this digest: INVALID_ARGUMENT where not; CANCELLED once sealed.
  absl::Status Finish(const std::string& digest);
  // Back to no chunks, once the workers have undone those that were there: blocks for that.
  void StartOver();

  // Nothing is taken any more, whatever the link still brings.
  void Seal();
  // Whether this header is of the same partial sum, as far as headers tell: the child then compares
  // the digest of what is here. The life of the child (its epoch) and its metrics may be others.
  bool SameSum(const v1::PartialSumHeader& header) const;
  // Unseals it.
  void Resume();
  // Folds what could not be folded before; `done`, on a worker, when all of it is in the sums. From
  // here it cannot be undone. After Finish.
  void Settle(std::function<void()> done);
  // Seals it and takes out of the sums what was folded; `done`, on a worker, when that is through.
  // Its chunks are freed by then.
  void Undo(std::function<void()> done);

  uint64_t chunks() const;       // that are in
  std::string digest() const;    // of those
  uint64_t taken_bytes() const;  // ever, those of StartOver too

 private:
  using Piece = std::shared_ptr<const aggregation::PackedPartial>;  // one chunk

  void SubtractAll();  // mu_ is held

  const v1::PartialSumHeader header_;
  const aggregation::ExactAccumulator* const sum_;
  aggregation::FoldPool* const pool_;
  mutable std::mutex mu_;
  bool sealed_ = false;        // guarded by mu_, as all below
  std::vector<Piece> folded_;  // handed to the workers
  std::vector<Piece> held_;    // that cannot be undone: for Settle
  uint64_t bytes_ = 0;         // of both
  uint64_t taken_bytes_ = 0;
  PartialDigest digest_;
};

}  // namespace tributary::server
