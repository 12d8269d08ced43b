// The node's budget for encoded updates and partial sums in flight: whole reservations, first come
// first served.
#pragma once

#include <algorithm>
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
    const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const Request& request) { return request.key == key; });
    const bool found = it != waiting_.end();
    if (found) waiting_.erase(it);
    Pump();
    return found;
  }
  void Release(uint64_t bytes) {
    used_ -= bytes;
    Pump();
  }
  // What those who wait hold already, unasked: counted too, up to a fifth of the limit, so that
  // many of them leave the larger part of it to what is received. Who waits is looked at again with
  // the next Reserve, Drop or Release.
  void SetUnasked(uint64_t bytes) { unasked_ = std::min(bytes, limit_ / 5); }

 private:
  struct Request {
    uint64_t key;
    uint64_t bytes;
    std::function<void()> granted;
  };
  void Pump() {
    while (!waiting_.empty() && Fits(waiting_.front().bytes)) {
      Request next = std::move(waiting_.front());
      waiting_.pop_front();
      used_ += next.bytes;
      next.granted();
    }
  }
  // One that is alone always does: it was let in for being within the limit.
  bool Fits(uint64_t bytes) const { return used_ == 0 || used_ + bytes + unasked_ <= limit_; }
  uint64_t limit_;
  uint64_t used_ = 0;
  uint64_t unasked_ = 0;
  std::deque<Request> waiting_;
};

}  // namespace tributary::server
