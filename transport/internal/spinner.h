// How long to try again before sleeping in the kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tributary::transport::internal {

// A wait that is served within the spin costs no sleep and no wake-up on either side; one that is
// not has burnt it. So the spin halves when it fails and grows back when it succeeds: an idle link
// spins for a microsecond a message, a ping-pong is served by spinning. Thread-safe.
class Spinner {
 public:
  // Calls `served` until it is true; false where it was not in time and the caller is to sleep.
  template <typename Served>
  bool Wait(Served served) {
    const int64_t budget = budget_ns_.load(std::memory_order_relaxed);
    const auto start = std::chrono::steady_clock::now();
    do {
      if (served()) {
        budget_ns_.store(std::min(2 * budget, kMostNs), std::memory_order_relaxed);
        return true;
      }
    } while ((std::chrono::steady_clock::now() - start).count() < budget);
    budget_ns_.store(std::max(budget / 2, kLeastNs), std::memory_order_relaxed);
    return false;
  }

 private:
  // A wake-up through the kernel takes 5 to 50 us, the more where the core went to sleep: to spin
  // for longer than that cannot pay.
  static constexpr int64_t kMostNs = 50'000;
  static constexpr int64_t kLeastNs = 1'000;
  std::atomic<int64_t> budget_ns_{kMostNs};
};

}  // namespace tributary::transport::internal
