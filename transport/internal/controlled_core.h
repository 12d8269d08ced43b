// The part of a link that every backend with a control socket shares: signs of life, grants,
// goodbyes, cancels, and the end. A backend adds how payload moves.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "transport/internal/frame.h"
#include "transport/internal/link_core.h"
#include "transport/internal/link_state.h"
#include "transport/internal/posix_io.h"
#include "tributary/v1/link.pb.h"

namespace tributary::transport::internal {

// What both ends know of each other once their hellos were exchanged.
struct Hellos {
  v1::LinkHello ours;
  v1::LinkHello theirs;
  // How messages name the peer, and where it is: `peer "rack0" (10.0.0.5:7071)`.
  std::string PeerName(const std::string& where) const;
};

// How long the peer may give no sign of life: by the slower heart of the two sides.
std::chrono::nanoseconds SilenceLimit(const LinkOptions& ours, const v1::LinkHello& theirs);

// One thread, asleep in poll(2) on the control socket. One mutex guards the state of the whole
// link. A backend derives from this, starts its own threads and then StartControl, and joins them
// in Shutdown between BeginShutdown and EndShutdown.
class ControlledCore : public LinkCore {
 public:
  absl::Status Close(Deadline deadline) override;
  void Cancel(const std::string& why) override;
  absl::Status status() const override;
  size_t chunk_bytes() const override { return options_.chunk_bytes; }
  std::string peer() const override { return theirs_.name(); }
  std::string hello() const override { return theirs_.application(); }

 protected:
  using Clock = std::chrono::steady_clock;

  // `control` is the connected, non-blocking control socket, `wake` of its thread.
  ControlledCore(const LinkOptions& options, const v1::LinkHello& theirs, Fd control, Waker wake,
                 const LinkState::Config& state);

  // --- what a backend may add; called with mutex_ held where the annotation says so ---
  // The link failed, or was closed: wake all threads of the backend.
  virtual void WakeBackend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Something that Borrow or Close (Receive) waits for may have come true. The base notifies the
  // condition variables.
  virtual void WakeSenders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { can_send_.notify_all(); }
  virtual void WakeReceivers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { can_receive_.notify_all(); }
  // A cumulative grant of the peer came.
  virtual void OnGrant(uint64_t epoch, uint64_t granted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The peer's last word is about to be judged (a goodbye, the end of its control socket, or that
  // none came after the data path ended): take in whatever is here already. Called without the
  // mutex, on the control thread.
  virtual void TakeInArrived() {}
  // How often OnTick is called at least; 0: never.
  virtual std::chrono::milliseconds TickEvery() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return {}; }
  virtual void OnTick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}
  // The control socket is cut; cut the data path too. Called without the mutex.
  virtual void CutData() {}

  // --- what a backend uses ---
  // May throw std::system_error, as std::thread does.
  void StartControl();
  void BeginShutdown();  // cancels; all threads end by themselves
  void EndShutdown();    // joins the control thread, closes the control socket
  // These write at once what the socket takes; the control thread writes the rest.
  void SendControl(ControlType type, uint64_t a = 0, uint64_t b = 0, std::string text = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnnounceGrant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerGoodbye() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one way into the sticky error. `tell` says it to the peer too.
  void Fail(absl::Status error, bool local, bool tell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The data path ended without a word from the peer: fails with `what` unless the control socket
  // brings the reason within a moment, or a later call a better one. The first cause stays; what
  // only follows from one gives way to it, and waits longer: the side that knows the cause is to
  // speak first.
  enum class EndedBy { kCause, kFollowsFromOne };
  void DataEnded(std::string what, EndedBy by = EndedBy::kCause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OrderlyEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_.closed() && state_.peer_done();
  }
  void HeardOfPeer() {
    heard_ns_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  const LinkOptions options_;
  const v1::LinkHello theirs_;
  mutable std::mutex mutex_;
  std::condition_variable can_send_;     // slots, credits, flushing, closing
  std::condition_variable can_receive_;  // arrivals, the end
  LinkState state_ ABSL_GUARDED_BY(mutex_);

 private:
  void RunControl();
  Clock::time_point NextLook(Clock::time_point next_beat, bool* listen, bool* write)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ReadControl();
  void HandleControl(const ControlMessage& message);
  void ControlEnded(const std::string& how);
  void CheckReason();
  void CheckLiveness();
  void Farewell();
  void FlushControl() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::chrono::nanoseconds silence_limit_;
  bool goodbye_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool goodbye_answered_ ABSL_GUARDED_BY(mutex_) = false;  // by us
  bool peer_gone_ ABSL_GUARDED_BY(mutex_) = false;         // its control socket ended
  bool grant_waits_ ABSL_GUARDED_BY(mutex_) = false;       // for the control socket to drain
  std::string control_out_ ABSL_GUARDED_BY(mutex_);
  // What DataEnded was told last that holds. Something better may come while the control thread
  // looks so many times more: a stop of this process, or of the machine and the peer with it,
  // counts as one look, however long.
  struct Ended {
    std::string what;
    EndedBy by;
    int looks;
    Clock::time_point next_look;
  };
  std::optional<Ended> ended_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> heard_ns_;  // when anything last came from the peer, on Clock
  Fd control_;
  Waker control_wake_;
  ControlReader control_in_;       // the control thread's
  Clock::time_point last_tick_{};  // the control thread's
  Clock::time_point judged_at_{};  // the peer's liveness; the control thread's
  std::thread control_thread_;
};

}  // namespace tributary::transport::internal
