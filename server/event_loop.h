// The node's one thread of decisions: closures and timers, run one after another. Nothing in it
// blocks, so timers come on time whatever peers do.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "base/clock.h"

namespace tributary::server {

// Post and PostAfter from any thread; closures run on the thread that called Run, in order.
class EventLoop {
 public:
  using TimerId = uint64_t;
  explicit EventLoop(const Clock* clock) : clock_(clock) {}

  void Post(std::function<void()> task);
  TimerId PostAfter(absl::Duration delay, std::function<void()> task);
  void CancelTimer(TimerId id);  // no effect once it has run
  void Run();                    // until Stop; what is left in the queue then is dropped
  void Stop();                   // from any thread
  absl::Duration Now() const { return clock_->Monotonic(); }
  const Clock& clock() const { return *clock_; }

 private:
  const Clock* clock_;
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;                                     // guarded by mu_
  std::map<std::pair<absl::Duration, TimerId>, std::function<void()>> timers_;  // guarded by mu_
  std::map<TimerId, absl::Duration> timer_times_;                               // guarded by mu_
  TimerId next_timer_ = 1;                                                      // guarded by mu_
  bool stopped_ = false;                                                        // guarded by mu_
};

// A thread for what takes long (applying, hashing, writing checkpoints): jobs run in order.
class JobThread {
 public:
  JobThread();
  ~JobThread();  // finishes the job that runs; drops the rest
  void Post(std::function<void()> job);

 private:
  void Run();
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mu_
  bool stopped_ = false;                     // guarded by mu_
  std::thread thread_;
};

}  // namespace tributary::server
