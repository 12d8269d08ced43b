// The node's budget for encoded updates and partial sums in flight: whole reservations, first come
// first served.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace tributary::server {

// On the event loop only. An update reserves all its bytes before any is read, so that
// half-received updates can never lock each other out.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_; }
  size_t waiting() const { return waiting_.size(); }

  // Calls `granted` once `bytes` (<= limit) are reserved: now, or in its turn. `key` names the
  // request.
  void Reserve(uint64_t key, uint64_t bytes, std::function<void()> granted) {
    waiting_.push_back({key, bytes, std::move(granted)});
    Pump();
  }
  // Forgets a waiting request; true where it was still waiting (nothing to release then).
  bool Drop(uint64_t key) {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->key != key) continue;
      waiting_.erase(it);
      Pump();
      return true;
    }
    return false;
  }
  void Release(uint64_t bytes) {
    used_ -= bytes;
    Pump();
  }

 private:
  struct Request {
    uint64_t key;
    uint64_t bytes;
    std::function<void()> granted;
  };
  void Pump() {
    while (!waiting_.empty() && used_ + waiting_.front().bytes <= limit_) {
      Request next = std::move(waiting_.front());
      waiting_.pop_front();
      used_ += next.bytes;
      next.granted();
    }
  }
  uint64_t limit_;
  uint64_t used_ = 0;
  std::deque<Request> waiting_;
};

}  // namespace tributary::server
