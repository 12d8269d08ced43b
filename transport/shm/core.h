// A link through shared memory at work. Callers move the chunks themselves; the only thread is the
// control socket's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "transport/internal/acceptor.h"
#include "transport/internal/controlled_core.h"
#include "transport/internal/link_state.h"
#include "transport/shm/bell.h"
#include "transport/shm/region.h"

namespace tributary::transport::shm {

// Send slots are the peer's receive slots: what is borrowed is filled where it will be read. Send
// publishes an entry in the ring; Receive takes it in, checks it and lends the slot; dropping that
// puts the slot's number into the ring of freed ones. All that is read from the ring is copied
// first and checked, so that a peer that writes nonsense breaks its link and nothing else.
class ShmCore final : public internal::ControlledCore {
 public:
  enum class Role { kAcceptor, kConnecter };
  // Starts the control thread. RESOURCE_EXHAUSTED where memory, descriptors or threads run out.
  static absl::StatusOr<std::unique_ptr<Link>> Start(internal::ReadySockets sockets,
                                                     const LinkOptions& options, Region region,
                                                     Role role);

  absl::StatusOr<Chunk> Borrow(Deadline deadline) override;
  absl::Status Send(Chunk chunk) override;
  absl::StatusOr<Chunk> Receive(Deadline deadline) override;
  std::string_view transport() const override { return "shm"; }
  LinkStats stats() const override;
  void Shutdown() override;
  void Return(uint32_t slot) override;

 private:
  ShmCore(internal::ReadySockets sockets, const LinkOptions& options, Region region,
          internal::Waker waker, Role role);

  void WakeBackend() override {}
  void WakeSenders() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeReceivers() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Grants are the slots in the ring of freed ones; the heartbeat's say nothing more.
  void OnGrant(uint64_t, uint64_t) override {}
  void TakeInArrived() override;

  // Waits until `ready()`, which is called with the lock held and may let go of it meanwhile.
  template <typename Ready>
  bool WaitFor(Bell& bell, internal::Spinner& spinner, std::unique_lock<std::mutex>& lock,
               const Deadline& until, Ready ready);
  // Takes the slots that the peer has given back.
  void TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes in the next chunk where one is published (on the control thread, or in Receive); lets go
  // of the lock while it checks the
  // payload.
  bool TakeIn(std::unique_lock<std::mutex>& lock, bool control);
  absl::StatusOr<internal::SlotChunk> ClaimNext(uint32_t* payload_crc32c)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk Lend(uint32_t slot);
  uint8_t* Memory(uint32_t slot) const {
    return slot < out_.slots ? out_.slot(slot) : in_.slot(slot - out_.slots);
  }

  const Region region_;
  const Direction out_;  // we send
  const Direction in_;   // we receive
  internal::Spinner send_spin_;
  internal::Spinner receive_spin_;
  std::vector<bool> with_peer_ ABSL_GUARDED_BY(mutex_);  // of the send slots
  uint64_t taken_back_ ABSL_GUARDED_BY(mutex_) = 0;      // slots, in all
  uint64_t given_back_ ABSL_GUARDED_BY(mutex_) = 0;      // slots, in all
  uint64_t claimed_ ABSL_GUARDED_BY(mutex_) = 0;         // the next entry to take in
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;          // an entry was bad: take in no more
  int receivers_ ABSL_GUARDED_BY(mutex_) = 0;            // threads in Receive
};

}  // namespace tributary::transport::shm
