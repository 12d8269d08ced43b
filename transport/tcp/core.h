// A TCP link at work: one thread for the control socket, one for each data socket ("lane").
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "transport/internal/frame.h"
#include "transport/internal/link_core.h"
#include "transport/internal/link_state.h"
#include "transport/tcp/socket.h"
#include "tributary/v1/link.pb.h"

namespace tributary::transport::tcp {

// Both hellos were exchanged, every socket is there: what a link is made of.
struct ReadySockets {
  Fd control;
  std::vector<Fd> lanes;
  v1::LinkHello ours;
  v1::LinkHello theirs;
};

// Chunk i travels on lane i mod lanes; each lane is in order, so that the whole is. The threads
// sleep in poll(2) while nothing moves. One mutex guards the state; no thread holds it while it
// moves payload.
class TcpCore final : public internal::LinkCore {
 public:
  // Starts the threads. RESOURCE_EXHAUSTED where memory, descriptors or threads run out.
  static absl::StatusOr<std::unique_ptr<Link>> Start(ReadySockets sockets,
                                                     const LinkOptions& options);

  absl::StatusOr<Chunk> Borrow(absl::Time deadline) override;
  absl::Status Send(Chunk chunk) override;
  absl::StatusOr<Chunk> Receive(absl::Time deadline) override;
  absl::Status Close(absl::Time deadline) override;
  void Cancel(const std::string& why) override;
  absl::Status status() const override;
  size_t chunk_bytes() const override { return options_.chunk_bytes; }
  std::string peer() const override { return theirs_.name(); }
  std::string hello() const override { return theirs_.application(); }
  std::string_view transport() const override { return "tcp"; }
  LinkStats stats() const override;
  void Shutdown() override;
  void Return(uint32_t slot) override;

 private:
  using Clock = std::chrono::steady_clock;

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

  TcpCore(ReadySockets sockets, const LinkOptions& options, internal::Arena arena, Waker waker);

  // lane.cc
  void RunLane(Lane& lane);
  bool NextOutgoing(Lane& lane);
  Moved SendSome(Lane& lane);
  Moved ReceiveSome(Lane& lane);
  Moved ReceiveHeader(Lane& lane);
  Moved FinishChunk(Lane& lane);
  bool SleepLane(Lane& lane);
  void LaneEnded(Lane& lane, int error);

  // control.cc
  void RunControl();
  bool ReadControl();
  void HandleControl(const internal::ControlMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ControlEnded(const std::string& how);
  void CheckLiveness(Clock::time_point now);
  void Farewell();
  // These write at once what the socket takes; the control thread writes the rest.
  void SendControl(internal::ControlType type, uint64_t a = 0, uint64_t b = 0,
                   std::string text = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FlushControl() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnnounceGrant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerGoodbye() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The one way into the sticky error. `tell` says it to the peer too.
  void Fail(absl::Status error, bool local, bool tell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailUnlocked(absl::Status error, bool tell);
  bool OrderlyEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk Lend(uint32_t slot);

  const LinkOptions options_;
  const v1::LinkHello theirs_;
  const internal::Arena arena_;
  const std::chrono::nanoseconds silence_limit_;

  mutable std::mutex mutex_;
  std::condition_variable can_send_;     // slots, credits, flushing, closing
  std::condition_variable can_receive_;  // arrivals, the end
  internal::LinkState state_ ABSL_GUARDED_BY(mutex_);
  bool goodbye_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool goodbye_answered_ ABSL_GUARDED_BY(mutex_) = false;  // by us
  bool peer_gone_ ABSL_GUARDED_BY(mutex_) = false;         // its control socket ended
  bool grant_waits_ ABSL_GUARDED_BY(mutex_) = false;       // for the control socket to drain
  std::string control_out_ ABSL_GUARDED_BY(mutex_);
  // A lane ended without a word; the control socket may still bring the reason until then.
  std::optional<Clock::time_point> reason_until_ ABSL_GUARDED_BY(mutex_);
  std::string lane_ended_ ABSL_GUARDED_BY(mutex_);

  std::atomic<int64_t> heard_ns_;  // when anything last came from the peer, on Clock
  Fd control_;
  Waker control_wake_;
  internal::ControlReader control_in_;  // the control thread's
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::thread control_thread_;
};

}  // namespace tributary::transport::tcp
