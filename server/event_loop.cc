// The decision thread and the job thread.
#include "server/event_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tributary::server {

void EventLoop::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mu_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

EventLoop::TimerId EventLoop::PostAfter(absl::Duration delay, std::function<void()> task) {
  TimerId id;
  {
    std::lock_guard lock(mu_);
    id = next_timer_++;
    const absl::Duration at = clock_->Monotonic() + delay;
    timers_.emplace(std::make_pair(at, id), std::move(task));
    timer_times_[id] = at;
  }
  wake_.notify_one();
  return id;
}

void EventLoop::CancelTimer(TimerId id) {
  std::lock_guard lock(mu_);
  const auto it = timer_times_.find(id);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, id});
  timer_times_.erase(it);
}

void EventLoop::Run() {
  std::unique_lock lock(mu_);
  while (!stopped_) {
    const absl::Duration now = clock_->Monotonic();
    std::function<void()> task;
    // Due timers go first: a flood of messages must not hold them up.
    if (!timers_.empty() && timers_.begin()->first.first <= now) {
      task = std::move(timers_.begin()->second);
      timer_times_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    } else if (!queue_.empty()) {
      task = std::move(queue_.front());
      queue_.pop_front();
    } else if (!timers_.empty()) {
      const absl::Duration wait = std::min(timers_.begin()->first.first - now, absl::Hours(1));
      wake_.wait_for(lock, absl::ToChronoNanoseconds(wait));
      continue;
    } else {
      wake_.wait(lock);
      continue;
    }
    lock.unlock();
    task();
    task = nullptr;  // its captures end outside the lock
    lock.lock();
  }
}

void EventLoop::Stop() {
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
  }
  wake_.notify_all();
}

JobThread::JobThread() : thread_([this] { Run(); }) {}

JobThread::~JobThread() {
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void JobThread::Post(std::function<void()> job) {
  {
    std::lock_guard lock(mu_);
    queue_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void JobThread::Run() {
  std::unique_lock lock(mu_);
  while (true) {
    wake_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    auto job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace tributary::server
