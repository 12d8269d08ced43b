// What a thread of one process rings to wake threads of another: a counter in shared memory, a
// futex behind it, and a short spin before that.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/deadline.h"
#include "transport/internal/spinner.h"

namespace tributary::transport::shm {

// Lies in shared memory; zero bytes are a bell that was never rung.
struct alignas(64) Bell {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleepers;

  uint32_t Count() const { return rung.load(std::memory_order_acquire); }
  // What was stored before is seen by whoever wakes. A system call only where somebody sleeps.
  void Ring();
  // Sleeps until the bell was rung more often than `seen` times, the deadline, or for no reason.
  void Sleep(uint32_t seen, const Deadline& until);
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Spins until the bell has rung; false where it has not and the caller is to sleep.
bool SpinFor(internal::Spinner& spinner, const Bell& bell, uint32_t seen);

}  // namespace tributary::transport::shm
