// A point on the monotonic clock: what a caller's wall-clock deadline becomes on entry.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tributary::transport::internal {

// Steps of the wall clock after construction neither stretch nor shorten the wait.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline FromWallClock(absl::Time deadline) {
    if (deadline == absl::InfiniteFuture()) return Deadline();
    return After(deadline - absl::Now());
  }
  static Deadline After(absl::Duration wait) {
    Deadline result;
    // A century is longer than any wait and far from overflowing the clock.
    if (wait < absl::Hours(24 * 365 * 100)) {
      result.infinite_ = false;
      result.at_ = Clock::now() + absl::ToChronoNanoseconds(std::max(wait, absl::ZeroDuration()));
    }
    return result;
  }
  static Deadline Infinite() { return Deadline(); }

  bool infinite() const { return infinite_; }
  Clock::time_point at() const { return at_; }
  bool Expired() const { return !infinite_ && Clock::now() >= at_; }
  static Deadline Sooner(const Deadline& a, const Deadline& b) {
    if (a.infinite_) return b;
    if (b.infinite_) return a;
    return a.at_ < b.at_ ? a : b;
  }

  // For poll(2): -1 without end, else rounded up so that the wait is never cut short into a spin.
  int PollMillis() const {
    if (infinite_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }

  // Waits for one notification, the deadline, or for no reason.
  void WaitOnce(std::condition_variable& changed, std::unique_lock<std::mutex>& lock) const {
    if (infinite_) {
      changed.wait(lock);
    } else {
      changed.wait_until(lock, at_);
    }
  }

  // Waits until `ready()` or the deadline; returns ready().
  template <typename Ready>
  bool Wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
            Ready ready) const {
    if (infinite_) {
      changed.wait(lock, ready);
      return true;
    }
    return changed.wait_until(lock, at_, ready);
  }

 private:
  bool infinite_ = true;
  Clock::time_point at_{};
};

}  // namespace tributary::transport::internal
