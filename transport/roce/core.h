// A RoCE link at work: a thread for its completions beside the control socket's.
#pragma once

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
#include "transport/roce/set_up.h"
#include "transport/roce/wire.h"

namespace tributary::transport::roce {

// Chunk i travels on queue pair i mod n, into the slot that the receiver named when it granted
// credit for chunk i. Callers post chunks and grants themselves; the thread takes completions up.
// It sleeps in poll(2) while nothing moves. The link's mutex guards the queue pairs too; payload is
// checksummed outside it.
class RoceCore final : public internal::ControlledCore {
 public:
  // Starts the threads. RESOURCE_EXHAUSTED where descriptors or threads run out.
  static absl::StatusOr<std::unique_ptr<Link>> Start(ReadyWire ready,
                                                     internal::ReadySockets sockets,
                                                     const LinkOptions& options,
                                                     absl::Duration spin);

  absl::StatusOr<Chunk> Borrow(Deadline deadline) override;
  absl::Status Send(Chunk chunk) override;
  absl::StatusOr<Chunk> Receive(Deadline deadline) override;
  std::string_view transport() const override { return "roce"; }
  LinkStats stats() const override;
  void Shutdown() override;
  void Return(uint32_t slot) override;

 private:
  static constexpr size_t kTakenAtOnce = 16;  // completions

  RoceCore(ReadyWire ready, internal::ReadySockets sockets, const LinkOptions& options,
           absl::Duration spin, internal::Waker control_wake, internal::Waker wake);

  // core.cc
  void WakeBackend() override { wake_.Wake(); }
  void WakeSenders() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Grants that count name a slot and come by the queue pair; those of heartbeats say nothing more.
  void OnGrant(uint64_t, uint64_t) override {}
  void TakeInArrived() override;
  void WatchDevice();
  Chunk Lend(uint32_t slot, uint32_t place);
  // The chunk's header, and all of it where the network device reads.
  absl::Status Prepare(const internal::SlotChunk& chunk, bool filled_on_device);
  // Slot numbers of LinkState are names: those for receiving stand for the place in memory that the
  // peer wrote to.
  void PostChunk(const internal::SlotChunk& chunk, uint32_t peer_slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostGrants() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unsignalled chunks are accounted for by the next signalled one; where none follows, by these.
  void PostFlushes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Grants and flushes stop at this many requests in a queue, so that chunks always have room.
  size_t QueueRoom() const { return wire_->slots() + 2 * wire_->receive_slots(); }
  void BeforePost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SendsAreUnderWay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // completions.cc
  void Run();
  bool TakeCompletions();  // true where there were some
  void TakeOne(const ibv_wc& completion);
  void TakeSent(QueuePair& pair, const ibv_wc& completion);
  void TakeReceived(QueuePair& pair, const ibv_wc& completion);
  void TakeGrant(uint32_t immediate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeChunk(const ibv_wc& completion);
  absl::Status CheckChunk(const ibv_wc& completion, uint32_t place,
                          internal::ChunkHeader* header) const;
  void TakeFailed(QueuePair& pair, const ibv_wc& completion);
  // Errors that time brings. Returns when to look again.
  Clock::time_point CheckTime();
  void Sleep(Clock::time_point until);

  const std::chrono::nanoseconds spin_;
  const std::unique_ptr<Wire> wire_;  // its queue pairs are guarded by mutex_
  const uint32_t signal_every_;       // chunks on a queue pair
  const internal::Waker wake_;

  bool posting_ ABSL_GUARDED_BY(mutex_) = true;  // until the teardown
  // Of a chunk with credit: the peer's slot for it, by sequence modulo their number.
  std::vector<uint32_t> peer_slot_ ABSL_GUARDED_BY(mutex_);
  uint64_t granted_to_us_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of a chunk that we granted: our place for it, by sequence modulo their number.
  std::vector<uint32_t> granted_place_ ABSL_GUARDED_BY(mutex_);
  uint64_t named_ ABSL_GUARDED_BY(mutex_) = 0;       // chunks that a place was named for
  uint64_t grants_due_ ABSL_GUARDED_BY(mutex_) = 0;  // chunks that one is to be named for
  std::deque<uint32_t> free_places_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> place_of_ ABSL_GUARDED_BY(mutex_);  // of LinkState's receive slots
  Clock::time_point moved_at_ ABSL_GUARDED_BY(mutex_);  // a send completed, or none was under way

  std::mutex taking_;  // held while completions are taken, in their order
  uint64_t watch_ = 0;
  std::thread thread_;
};

}  // namespace tributary::transport::roce
