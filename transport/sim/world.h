// The simulated network with its threads: whose turn it is, who waits for what, which ends exist.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "transport/sim.h"

namespace tributary::transport::sim {

class SimLinkCore;

// A thread that waits, or may. Participants are registered; others get one for the time of a call.
struct Waiter {
  enum class State { kRunnable, kRunning, kBlocked, kOutside };
  std::condition_variable turn;
  State state = State::kRunnable;
  bool participant = false;
  bool woken = false;    // not a participant: look at your condition again
  uint64_t wait_id = 0;  // numbers its waits, so that the timer of a former one is ignored
  bool timed_out = false;
};

// Who waits for a change of one object, in the order of coming.
using WaitList = std::deque<Waiter*>;

// A deadline in the waiter's own time: virtual for participants, real for others.
struct SimDeadline {
  std::optional<absl::Duration> at;  // virtual; nothing: never
  Deadline real;
};

// A connection being set up; the connecting thread owns it and takes it out of World::connects.
struct PendingConnect {
  SimNode node = 0;
  std::string address;
  LinkOptions options;
  bool done = false;
  absl::Status status;
  std::unique_ptr<Link> link;
  WaitList changed;
};

// Where links come in. Owned by its Listener.
struct ListenerState {
  SimNode node = 0;
  std::string address;
  LinkOptions options;
  bool cancelled = false;
  uint64_t refused = 0;
  std::deque<std::unique_ptr<Link>> ready;
  WaitList changed;
};

enum class WorldEvent : uint8_t {
  kTimer = 1,  // a: waiter token, b: wait id
  kSyn,        // a: connect token: the hello reaches the listener
  kConnected,  // a: connect token: the answer is back
  kData,       // a: link, b: sequence
  kGrant,      // a: link, b: granted
  kGoodbye,    // a: link, b: total
  kArrived,    // a: link
  kCancel,     // a: link, b: text token
  kPeerDead,   // a: link
};

// All members are guarded by `mutex`; methods that take a lock want it held.
class World final : public SimHandler, public std::enable_shared_from_this<World> {
 public:
  using Lock = std::unique_lock<std::mutex>;
  explicit World(const SimOptions& options) : core(options) {}

  mutable std::mutex mutex;
  SimCore core;

  // --- whose turn it is (world.cc) ---
  void Register(Lock& lock, Waiter* waiter);  // makes it this thread's; returns at its turn
  void Unregister(Lock& lock);
  void Enqueue(Waiter* waiter);  // able to run
  void AwaitTurn(Lock& lock, Waiter* waiter);
  Waiter* Current() const;  // this thread's, or null
  SimDeadline Until(Deadline deadline) const;
  SimDeadline After(absl::Duration wait) const;
  // Blocks until ready() or the deadline; returns ready().
  template <typename Ready>
  bool Wait(Lock& lock, WaitList& list, const SimDeadline& until, Ready ready) {
    while (!ready()) {
      if (!WaitOnce(lock, list, until)) return ready();
    }
    return true;
  }
  // Everybody in the list looks again.
  void Notify(WaitList& list);
  // After a change made by a thread that may be no participant: lets those go on who now can.
  void Dispatch();
  void EnterOutside(Lock& lock);
  void LeaveOutside(Lock& lock);

  // --- events ---
  void Schedule(absl::Duration delay, WorldEvent kind, uint64_t a, uint64_t b) {
    core.After(delay, this, uint64_t{static_cast<uint8_t>(kind)} << 56 | a, b);
  }
  void OnSimEvent(uint64_t a, uint64_t b) override;
  void OnSyn(uint64_t token);  // fabric.cc

  // --- what exists (fabric.cc, link.cc) ---
  std::unordered_map<uint64_t, SimLinkCore*> links;
  std::map<std::string, ListenerState*> listeners;
  std::unordered_map<uint64_t, PendingConnect*> connects;
  std::unordered_map<uint64_t, std::string> texts;
  uint64_t next_token = 1;

 private:
  bool WaitOnce(Lock& lock, WaitList& list, const SimDeadline& until);
  bool WaitAsParticipant(Lock& lock, Waiter* me, WaitList& list, const SimDeadline& until);
  bool WaitAsGuest(Lock& lock, WaitList& list, const SimDeadline& until);
  void OnTimer(uint64_t token, uint64_t wait_id);

  std::deque<Waiter*> runnable_;
  Waiter* running_ = nullptr;
  bool dispatching_ = false;
  std::unordered_map<uint64_t, Waiter*> timers_;
};

}  // namespace tributary::transport::sim
