// A point on the monotonic clock by which a wait is to end: setting the calendar moves none.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/time/time.h"

namespace tributary {

// A value. No calendar time becomes one: "in five seconds" is Deadline::After(absl::Seconds(5)).
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Now, where `wait` is not positive; without end from a century on.
  static Deadline After(absl::Duration wait) {
    Deadline result;
    // A century is longer than any wait and far from overflowing the clock.
    if (wait < absl::Hours(24 * 365 * 100)) {
      result.infinite_ = false;
      result.at_ = Clock::now() + absl::ToChronoNanoseconds(std::max(wait, absl::ZeroDuration()));
    }
    return result;
  }
  static Deadline At(Clock::time_point at) {
    Deadline result;
    result.infinite_ = false;
    result.at_ = at;
    return result;
  }
  // Takes what is there, and waits for nothing.
  static Deadline Now() { return After(absl::ZeroDuration()); }
  static Deadline Infinite() { return Deadline(); }

  bool infinite() const { return infinite_; }
  Clock::time_point at() const { return at_; }
  bool Expired() const { return !infinite_ && Clock::now() >= at_; }
  // Not negative.
  absl::Duration Left() const {
    if (infinite_) return absl::InfiniteDuration();
    return std::max(absl::FromChrono(at_ - Clock::now()), absl::ZeroDuration());
  }
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

}  // namespace tributary
