// Decorators that hurt, slow or watch a link, around any fabric: for tests and for trying out
// operation.
//
// All faults act on the sending side of the decorated end, and all waits are in Borrow, which has a
// deadline; a Cancel, or the link's failure, ends them. Waits are in real time, also over a
// simulated network (there, give its nodes latency and rates instead).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "transport/link.h"

namespace tributary::transport {

// What a recorder is told of each chunk.
struct ChunkRecord {
  bool sent = false;      // else received
  uint64_t sequence = 0;  // of the link, in its direction, from 0
  size_t bytes = 0;
  ChunkTag tag;
};

struct Faults {
  absl::Duration delay = absl::ZeroDuration();  // before each chunk
  double bytes_per_s = 0;                       // at most, on average; 0: no limit
  std::optional<uint64_t> stall_after;          // after n chunks Borrow only waits
  std::optional<uint64_t>
      cut_after;  // after n chunks Borrow cancels the link (chunks under way may be lost)
  // One bit of this byte of chunk n is flipped after its CRC32C was computed, so that the receiver
  // says DATA_LOSS. Only through MakeFaultyFabric. A chunk that has no such byte stays whole.
  std::optional<uint64_t> corrupt_chunk;
  size_t corrupt_byte = 0;
  // Called for each chunk sent and received, by the thread that did it. Must be thread-safe.
  std::function<void(const ChunkRecord&)> record;
};

// Each link made by the result, connecting or accepting, has these faults, counted for each link
// apart.
std::unique_ptr<Fabric> MakeFaultyFabric(std::unique_ptr<Fabric> inner, const Faults& faults);
std::unique_ptr<Link> MakeFaultyLink(std::unique_ptr<Link> inner, const Faults& faults);

}  // namespace tributary::transport
