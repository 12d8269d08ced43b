// The memory that both sides of a link map: slots and rings of both directions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "transport/internal/frame.h"
#include "transport/internal/mapping.h"
#include "transport/internal/posix_io.h"
#include "transport/shm/bell.h"

namespace tributary::transport::shm {

// One per chunk under way, at position `sequence mod slots`. Written by the sender before
// `published` becomes sequence + 1, and not again until the receiver gave the slot back.
struct alignas(64) Entry {
  std::atomic<uint64_t> published;
  uint32_t slot;
  internal::ChunkHeaderBytes header;
};

// Of one direction, at the front of its memory.
struct DirectionHead {
  Bell arrived;  // the receiver sleeps on it
  Bell freed;    // the sender sleeps on it
  // Slots that the receiver has given back, in all. The last ones stand in the ring of freed slots.
  alignas(64) std::atomic<uint64_t> returned;
};

// One direction as pointers into the mapping. `slots` are the receiver's.
struct Direction {
  DirectionHead* head = nullptr;
  Entry* entries = nullptr;                // [slots]
  std::atomic<uint32_t>* freed = nullptr;  // [slots]: slot numbers, by count returned mod slots
  uint8_t* memory = nullptr;
  size_t stride = 0;
  uint32_t slots = 0;
  uint8_t* slot(uint32_t index) const { return memory + stride * index; }
};

// What both sides compute from the hellos; it must be the same on both.
struct Shape {
  size_t chunk_bytes = 0;
  uint32_t acceptor_slots = 0;   // of the direction towards the acceptor
  uint32_t connecter_slots = 0;  // of the direction towards the connecter
  size_t total_bytes() const;
};

// A mapping. Move-only; the memory goes when the last side has unmapped it.
class Region {
 public:
  // A new memfd, its space reserved and its size sealed. RESOURCE_EXHAUSTED where there is not
  // enough memory.
  static absl::StatusOr<internal::Fd> CreateMemory(const Shape& shape);
  // Maps it. FAILED_PRECONDITION where the size differs from the shape's, or where the peer could
  // still shrink it.
  static absl::StatusOr<Region> Map(const internal::Fd& memory, const Shape& shape);

  const Direction& to_acceptor() const { return to_acceptor_; }
  const Direction& to_connecter() const { return to_connecter_; }

 private:
  internal::Mapping memory_;
  Direction to_acceptor_;
  Direction to_connecter_;
};

}  // namespace tributary::transport::shm
