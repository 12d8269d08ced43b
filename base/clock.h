// The seam to time: waits and deadlines use the monotonic clock, tests replace it.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tributary {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, from an arbitrary start: for deadlines and durations. Wall-clock steps do not move
  // it.
  virtual absl::Duration Monotonic() const = 0;
  // Calendar time, for logs and reports only.
  virtual absl::Time Now() const = 0;
};

class RealClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace tributary
