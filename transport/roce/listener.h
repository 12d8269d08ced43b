// Accepts RoCE links: tcp's listener for the control sockets, a thread for each link being set up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "transport/internal/acceptor.h"
#include "transport/link.h"
#include "transport/roce/node.h"

namespace tributary::transport::roce {

class RoceListener final : public Listener {
 public:
  static absl::StatusOr<std::unique_ptr<Listener>> Start(RocePart part, const std::string& address,
                                                         const LinkOptions& options);
  ~RoceListener() override;

  absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) override;
  std::string address() const override { return sockets_->address(); }
  void Cancel() override;
  uint64_t refused() const override {
    return sockets_->refused() + refused_.load(std::memory_order_relaxed);
  }

 private:
  // A link whose queue pairs are being connected.
  struct SetUp {
    std::thread thread;
    int control = -1;   // while the set-up waits for the peer; guarded by mutex_
    bool done = false;  // guarded by mutex_
  };

  RoceListener(RocePart part, const LinkOptions& options)
      : part_(std::move(part)), options_(options) {}
  void Take(internal::ReadySockets sockets);  // from the socket listener's thread
  void RunSetUp(SetUp& at, internal::ReadySockets sockets);
  void Reap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RocePart part_;
  const LinkOptions options_;
  std::atomic<uint64_t> refused_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<SetUp> set_ups_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Link>> ready_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Listener> sockets_;  // last: its thread calls Take
};

}  // namespace tributary::transport::roce
