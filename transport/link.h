// A link: a reliable, ordered, bidirectional connection between two aggregators that lends chunks
// of memory. Knows nothing of learning. Backends (tcp, sim; later shm, roce) hide behind Fabric.
//
// Sending:   Borrow(deadline) -> fill data -> Send. Borrow waits until the peer has granted a slot.
// Receiving: Receive(deadline) -> read in place -> drop the chunk. Dropping IS the credit: the peer
//            may then send one more. So many-to-one bursts are paced by the receiver and nothing is
//            lost.
// Failure:   the first error is sticky, wakes every waiter and names the peer. Close is orderly:
// what was
//            sent before it arrives, then the peer's Receive says OUT_OF_RANGE ("end of stream").
// Time:      every wait here, a Deadline's and those of LinkOptions, is measured by the monotonic
// clock
//            (CLOCK_MONOTONIC): setting the calendar neither ends nor prolongs one.
// Threads:   all methods may be called from any thread; one sender and one receiver at a time per
// link
//            give order, several senders get some order between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/deadline.h"

namespace tributary::transport {

enum class MemoryKind { kHost, kShared, kCuda };

// What a chunk carries beside its payload, uninterpreted by the transport: 32 bytes on the wire.
struct ChunkTag {
  uint64_t stream = 0;  // which stream of the protocol above this belongs to
  uint64_t index = 0;   // chunk number within the stream
  uint64_t a = 0;       // two words for the protocol above
  uint64_t b = 0;
};

class ChunkOwner;

// A lease on one slot. Move-only; destroying it returns the slot (and, when received, grants
// credit).
class Chunk {
 public:
  Chunk() = default;
  Chunk(ChunkOwner* owner, uint32_t slot, uint8_t* data, size_t capacity, MemoryKind kind,
        uint64_t device_address = 0)
      : owner_(owner),
        slot_(slot),
        data_(data),
        capacity_(capacity),
        kind_(kind),
        device_address_(device_address) {}
  Chunk(Chunk&& other) noexcept { *this = std::move(other); }
  Chunk& operator=(Chunk&& other) noexcept;
  ~Chunk();

  uint8_t* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  size_t size() const { return size_; }
  void set_size(size_t bytes) { size_ = bytes; }  // <= capacity()
  ByteSpan bytes() const { return {data_, size_}; }
  MemoryKind memory_kind() const { return kind_; }
  // kCuda: where the GPU has the payload too; else 0. A received one is in both places. What is to
  // be sent is filled at data(), or on the GPU (complete there when Send is called) and said so.
  uint64_t device_address() const { return device_address_; }
  void set_filled_on_device(bool on) { filled_on_device_ = on; }
  bool filled_on_device() const { return filled_on_device_; }
  ChunkTag& tag() { return tag_; }
  const ChunkTag& tag() const { return tag_; }
  explicit operator bool() const { return owner_ != nullptr; }

 private:
  friend class ChunkOwner;
  ChunkOwner* owner_ = nullptr;
  uint32_t slot_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
  MemoryKind kind_ = MemoryKind::kHost;
  bool filled_on_device_ = false;
  uint64_t device_address_ = 0;
  ChunkTag tag_;
};

// Implemented by backends; outlives its chunks (backends keep themselves alive while leases are
// out).
class ChunkOwner {
 public:
  virtual ~ChunkOwner() = default;
  virtual void Return(uint32_t slot) = 0;

 protected:
  static const ChunkOwner* OwnerOf(const Chunk& chunk) { return chunk.owner_; }
  static uint32_t SlotOf(const Chunk& chunk) { return chunk.slot_; }
  // Ends the lease without Return: the backend takes the slot over (Send).
  static uint32_t Release(Chunk& chunk) {
    chunk.owner_ = nullptr;
    return chunk.slot_;
  }
};

struct LinkStats {
  uint64_t bytes_sent = 0;      // payload
  uint64_t bytes_received = 0;  // payload
  uint64_t chunks_sent = 0;
  uint64_t chunks_received = 0;
  // Where the backend can tell (TCP_INFO), else 0: segments that this side sent again; and of its
  // connections now, the longest smoothed round trip and the smallest congestion window.
  uint64_t retransmits = 0;
  absl::Duration round_trip = absl::ZeroDuration();
  uint32_t congestion_window = 0;  // in segments
};
// What they say of the connections' path: `3 segments sent again, round trip 120us, congestion
// window 10 segments`; "" where the backend cannot tell.
std::string PathText(const LinkStats& stats);

class Link {
 public:
  virtual ~Link() = default;  // as Cancel("destroyed"), then waits for the backend's threads

  // A slot to fill. DEADLINE_EXCEEDED names the peer and says that it granted no credit; the sticky
  // error otherwise.
  virtual absl::StatusOr<Chunk> Borrow(Deadline deadline) = 0;
  // Queues a borrowed chunk of this link; returns before it is on the wire. INVALID_ARGUMENT for
  // another link's chunk.
  virtual absl::Status Send(Chunk chunk) = 0;
  // The next chunk in order. OUT_OF_RANGE after the peer's orderly Close; DATA_LOSS on a bad
  // CRC32C.
  virtual absl::StatusOr<Chunk> Receive(Deadline deadline) = 0;
  // Flushes, tells the peer, and closes our sending side. Our Receive goes on until the peer closes
  // too.
  virtual absl::Status Close(Deadline deadline) = 0;
  // At once: every waiter on both sides gets CANCELLED/UNAVAILABLE with `why`.
  virtual void Cancel(const std::string& why) = 0;

  virtual absl::Status status() const = 0;         // OK, or the sticky error
  virtual size_t chunk_bytes() const = 0;          // capacity of each slot, the same on both sides
  virtual std::string peer() const = 0;            // the peer's name from its hello
  virtual std::string hello() const = 0;           // the peer's application hello bytes
  virtual std::string_view transport() const = 0;  // "tcp", "sim"
  virtual LinkStats stats() const = 0;
};

struct LinkOptions {
  std::string name;   // ours, told to the peer; shown in its errors
  std::string hello;  // application bytes for the peer's Link::hello(); at most 64 KiB
  size_t chunk_bytes =
      (size_t{1} << 20) + 4096;  // slot capacity; both sides must agree (the hello is checked)
  uint32_t slots = 8;            // receive slots granted to the peer, and send slots; 1..1024
  uint32_t lanes = 2;            // tcp: data sockets per link, 1..16
  absl::Duration connect_timeout = absl::Seconds(10);  // for the whole set-up, either side
  absl::Duration heartbeat = absl::Seconds(1);         // on the control socket
  int heartbeats_missed = 5;                           // then the peer is declared dead
  absl::Duration progress_timeout =
      absl::Seconds(60);  // a send that moves nothing for this long fails
  // For fault injection only: called with each outgoing chunk's sequence number and payload after
  // its CRC32C was computed, from a thread of the backend; what it changes is damage on the wire.
  std::function<void(uint64_t sequence, uint8_t* payload, size_t bytes)> damage;
};

// Accepts links. Destroying it stops accepting; links already made live on.
class Listener {
 public:
  virtual ~Listener() = default;
  // The next link, set up and said hello to. A bad hello is answered, logged, counted and never
  // returned here.
  virtual absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) = 0;
  virtual std::string address() const = 0;  // what peers pass to Connect, e.g. "10.0.0.5:7071"
  // Wakes Accept with CANCELLED; further calls too.
  virtual void Cancel() = 0;
  // Connections answered with a refusal, or dropped for silence, since the start.
  virtual uint64_t refused() const = 0;
};

// One transport backend.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::string_view name() const = 0;  // "tcp", "sim"
  // tcp: "host:port", port 0 for any free one.
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                           const LinkOptions& options) = 0;
  virtual absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                        const LinkOptions& options) = 0;
};

}  // namespace tributary::transport
