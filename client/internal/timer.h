// One-shot timers on the monotonic clock, those of all clients of a process on one thread. Not
// gRPC's alarms: these wait by the system's clock, and are ten minutes late where that is set back
// by ten minutes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace tributary::client::internal {

class TimerThread;

// Not thread-safe. One that is being called back at that moment is not stopped by Set or by the
// end.
class Timer {
 public:
  Timer();
  ~Timer();  // not from `then`, unless others hold a Timer too
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  // Calls `then` once, on the timers' thread, which must not be held up; replaces what was set
  // before.
  void Set(absl::Duration after, std::function<void()> then);
  void Cancel();

 private:
  const std::shared_ptr<TimerThread> thread_;
  uint64_t number_ = 0;  // of what is set; 0: nothing
};

}  // namespace tributary::client::internal
