// What a thread of one process rings to wake threads of another: a counter in shared memory, a
// futex behind it, and a short spin before that.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/internal/deadline.h"

namespace tributary::transport::shm {

// Lies in shared memory; zero bytes are a bell that was never rung.
struct alignas(64) Bell {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleepers;

  uint32_t Count() const { return rung.load(std::memory_order_acquire); }
  // What was stored before is seen by whoever wakes. A system call only where somebody sleeps.
  void Ring();
  // Sleeps until the bell was rung more often than `seen` times, the deadline, or for no reason.
  void Sleep(uint32_t seen, const internal::Deadline& until);
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// How long to spin before sleeping. A wait that is served within the spin costs no system call on
// either side; one that is not has burnt it. So the spin halves when it fails and grows back when
// it succeeds: an idle link spins for a microsecond a message, a ping-pong is served by spinning.
// Thread-safe.
class Spinner {
 public:
  // Waits for the bell; false where it has not rung and the caller is to sleep.
  bool Wait(const Bell& bell, uint32_t seen);

 private:
  std::atomic<int64_t> budget_ns_{kMostNs};
  // A wake-up through the kernel takes 5 to 50 us, the more where the core went to sleep: to spin
  // for longer than that cannot pay.
  static constexpr int64_t kMostNs = 50'000;
  static constexpr int64_t kLeastNs = 1'000;
};

}  // namespace tributary::transport::shm
