// A TCP link at work: one thread for the control socket, one for each data socket ("lane").
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
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

// Chunk i travels on lane i mod lanes; each lane is in order, so that the whole is. The threads
// sleep in poll(2) while nothing moves. One mutex guards the state; no thread holds it while it
// moves payload.
class TcpCore final : public internal::ControlledCore {
 public:
  // Starts the threads. RESOURCE_EXHAUSTED where memory, descriptors or threads run out.
  static absl::StatusOr<std::unique_ptr<Link>> Start(internal::ReadySockets sockets,
                                                     const LinkOptions& options);

  absl::StatusOr<Chunk> Borrow(absl::Time deadline) override;
  absl::Status Send(Chunk chunk) override;
  absl::StatusOr<Chunk> Receive(absl::Time deadline) override;
  std::string_view transport() const override { return "tcp"; }
  LinkStats stats() const override;
  void Shutdown() override;
  void Return(uint32_t slot) override;

 private:
  // Where a lane is in the chunk that it sends, and in the one that it receives. Its thread's
  // alone.
  struct Outgoing {
    internal::SlotChunk chunk;
    internal::ChunkHeaderBytes header;
    size_t done = 0;  // bytes of header and payload that the kernel took
    Clock::time_point moved_at;
  };
  struct Incoming {
    internal::ChunkHeaderBytes header;
    size_t header_done = 0;
    internal::ChunkHeader parsed;
    uint32_t slot = 0;
    size_t payload_done = 0;
    uint32_t crc32c = 0;
    uint64_t next_sequence = 0;
  };
  struct Lane {
    uint32_t index = 0;
    Fd fd;
    Waker wake;
    std::deque<internal::SlotChunk> queue;  // guarded by mutex_
    bool sleeping = false;                  // guarded by mutex_: in poll with nothing to send
    std::optional<Outgoing> out;
    Incoming in;
    std::thread thread;
    explicit Lane(Waker w) : wake(std::move(w)) {}
  };
  enum class Moved { kSome, kNothing, kEnded };

  TcpCore(internal::ReadySockets sockets, const LinkOptions& options, internal::Arena arena,
          Waker waker);

  // lane.cc
  void RunLane(Lane& lane);
  bool NextOutgoing(Lane& lane);
  Moved SendSome(Lane& lane);
  Moved ReceiveSome(Lane& lane);
  Moved ReceiveHeader(Lane& lane);
  Moved FinishChunk(Lane& lane);
  bool SleepLane(Lane& lane);
  void LaneEnded(Lane& lane, int error);

  void WakeBackend() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutData() override;
  Chunk Lend(uint32_t slot);

  const internal::Arena arena_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace tributary::transport::tcp
