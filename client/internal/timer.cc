// The timers' thread.
#include "client/internal/timer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace tributary::client::internal {

using Steady = std::chrono::steady_clock;

class TimerThread {
 public:
  // The process's, as long as somebody holds it.
  static std::shared_ptr<TimerThread> Get() {
    static std::mutex mu;
    static std::weak_ptr<TimerThread> shared;
    std::lock_guard lock(mu);
    auto thread = shared.lock();
    if (thread == nullptr) shared = thread = std::make_shared<TimerThread>();
    return thread;
  }
  TimerThread() : state_(std::make_shared<State>()), thread_([state = state_] { Run(*state); }) {}
  ~TimerThread() {
    {
      std::lock_guard lock(state_->mu);
      state_->stopped = true;
    }
    state_->wake.notify_one();
    // The last timer may end in a callback; the thread then ends by itself.
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  uint64_t Add(absl::Duration after, std::function<void()> then) {
    const auto wait = std::clamp(after, absl::ZeroDuration(), absl::Hours(24 * 365));
    std::lock_guard lock(state_->mu);
    const uint64_t number = ++state_->numbers;
    const Steady::time_point at = Steady::now() + absl::ToChronoNanoseconds(wait);
    state_->due[number] = at;
    state_->timers.emplace(std::pair(at, number), std::move(then));
    if (state_->timers.begin()->first.second == number) state_->wake.notify_one();
    return number;
  }
  void Remove(uint64_t number) {
    std::function<void()> dropped;  // freed without the lock
    std::lock_guard lock(state_->mu);
    const auto at = state_->due.find(number);
    if (at == state_->due.end()) return;
    const auto timer = state_->timers.find(std::pair(at->second, number));
    dropped = std::move(timer->second);
    state_->timers.erase(timer);
    state_->due.erase(at);
  }

 private:
  struct State {
    std::mutex mu;  // guards everything below
    std::condition_variable wake;
    std::map<std::pair<Steady::time_point, uint64_t>, std::function<void()>> timers;
    std::map<uint64_t, Steady::time_point> due;
    uint64_t numbers = 0;
    bool stopped = false;
  };
  static void Run(State& state) {
    std::unique_lock lock(state.mu);
    while (!state.stopped) {
      if (state.timers.empty()) {
        state.wake.wait(lock);
        continue;
      }
      const auto first = state.timers.begin();
      if (const Steady::time_point at = first->first.first; at > Steady::now()) {
        state.wake.wait_until(lock, at);
        continue;
      }
      std::function<void()> then = std::move(first->second);
      state.due.erase(first->first.second);
      state.timers.erase(first);
      lock.unlock();
      then();
      then = nullptr;
      lock.lock();
    }
  }

  const std::shared_ptr<State> state_;  // the thread's too, which may outlive this
  std::thread thread_;
};

Timer::Timer() : thread_(TimerThread::Get()) {}

Timer::~Timer() { Cancel(); }

void Timer::Set(absl::Duration after, std::function<void()> then) {
  Cancel();
  number_ = thread_->Add(after, std::move(then));
}

void Timer::Cancel() {
  if (number_ != 0) thread_->Remove(std::exchange(number_, 0));
}

}  // namespace tributary::client::internal
