// A TCP link at work: one thread for the control socket, one for each data socket ("lane"), and the
// callers' own for small chunks.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "transport/internal/acceptor.h"
#include "transport/internal/controlled_core.h"
#include "transport/internal/frame.h"
#include "transport/internal/link_state.h"
#include "transport/tcp/socket.h"

namespace tributary::transport::tcp {

// Up to here it costs more to change threads than to move the bytes.
inline constexpr size_t kSmallChunk = size_t{64} << 10;

// Chunk i travels on lane i mod lanes; each lane is in order, so that the whole is. One mutex
// guards the state; no thread holds it while it moves payload.
//
// Each direction of a lane has one mover at a time. Large chunks are the lane thread's: it sends
// while the caller fills the next one, and receives ahead while the caller works on the last one. A
// small chunk is sent by the caller of Send, where the lane is free; and after one was received,
// the lane is left to the caller of Receive, who reads the socket itself: a message then costs no
// change of threads on either side. The lane thread takes the reading back when a large chunk came,
// when the peer takes leave, or when nobody has called Receive for a second.
class TcpCore final : public internal::ControlledCore {
 public:
  // Starts the threads. RESOURCE_EXHAUSTED where memory, descriptors or threads run out.
  static absl::StatusOr<std::unique_ptr<Link>> Start(internal::ReadySockets sockets,
                                                     const LinkOptions& options);

  absl::StatusOr<Chunk> Borrow(Deadline deadline) override;
  absl::Status Send(Chunk chunk) override;
  absl::StatusOr<Chunk> Receive(Deadline deadline) override;
  std::string_view transport() const override { return "tcp"; }
  LinkStats stats() const override;
  void Shutdown() override;
  void Return(uint32_t slot) override;

 private:
  // Where a lane is in the chunk that it sends. Its mover's alone.
  struct Outgoing {
    internal::SlotChunk chunk;
    internal::ChunkHeaderBytes header;
    size_t done = 0;  // bytes of header and payload that the kernel took
    Clock::time_point moved_at;
  };
  // Where it is in the one that it receives. Its mover's alone.
  struct Incoming {
    // What is read between chunks: a header, and whatever came with it. Room for a few small
    // chunks.
    std::array<uint8_t, 4096> stash;
    size_t begin = 0;
    size_t end = 0;
    bool in_payload = false;
    internal::ChunkHeader parsed;
    uint32_t slot = 0;
    size_t payload_done = 0;
    uint32_t crc32c = 0;
    uint64_t next_sequence = 0;
  };
  enum class Mover { kNobody, kThread, kCaller };
  struct Lane {
    uint32_t index = 0;
    Fd fd;
    Waker wake;
    std::deque<internal::SlotChunk> queue;  // guarded by mutex_
    bool sleeping = false;                  // guarded by mutex_: in poll with nothing to send
    Mover sender = Mover::kNobody;          // guarded by mutex_
    bool caller_reads = false;              // guarded by mutex_: else its thread does
    bool caller_inside = false;             // guarded by mutex_: a caller is at it now
    uint64_t visits = 0;                    // guarded by mutex_: by callers, in all
    uint64_t visits_at_tick = 0;            // guarded by mutex_
    std::optional<Outgoing> out;
    Incoming in;
    std::thread thread;
    explicit Lane(Waker w) : wake(std::move(w)) {}
  };
  // What a call to the socket did: some, and there may be more to do; some, and now the socket
  // would block; nothing, since it would block; or the connection ended, or is of no more use.
  enum class Moved { kMore, kAll, kNothing, kEnded };
  struct Ready {
    bool read = false;
    bool write = false;
  };

  TcpCore(internal::ReadySockets sockets, const LinkOptions& options, internal::Arena arena,
          Waker control_wake, Waker caller_wake);

  // lane.cc: the lane's thread
  void RunLane(Lane& lane);
  bool SleepLane(Lane& lane, Ready* ready);
  bool SenderStuck(Lane& lane, Deadline* until);
  bool LeaveToCallers(Lane& lane);

  // lane.cc: moving, by whoever is the mover
  bool NextOutgoing(Lane& lane, Mover mover);
  Moved SendSome(Lane& lane);
  Moved ReceiveSome(Lane& lane);
  // False where the link has failed.
  bool DrainStash(Lane& lane);
  bool TakePayload(Lane& lane, const uint8_t* bytes, size_t n);
  bool StartChunk(Lane& lane);
  bool FinishChunk(Lane& lane);
  void LaneEnded(Lane& lane, int error);

  // caller.cc: callers as movers
  void SendAsCaller(Lane& lane, std::unique_lock<std::mutex>& lock);
  bool MayReadAsCaller(const Lane& lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAsCaller(Lane& lane, const Deadline& until, std::unique_lock<std::mutex>& lock);
  void TakeReadingBack(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void WakeBackend() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeReceivers() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeInArrived() override;
  std::chrono::milliseconds TickEvery() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTick() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutData() override;
  Chunk Lend(uint32_t slot);

  const internal::Arena arena_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  const Waker caller_wake_;                             // ends the poll of the caller inside
  bool caller_inside_ ABSL_GUARDED_BY(mutex_) = false;  // of any lane: one at a time
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;             // callers asleep in Receive
  bool peer_leaves_ ABSL_GUARDED_BY(mutex_) = false;    // no more reading by callers
};

}  // namespace tributary::transport::tcp
