// The simulated world: virtual time, seeded chance, and a network that loses, delays, doubles and
// reorders. One thread, no clock: the same seed runs the same.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "base/philox.h"

namespace tributary::sim {

// What wall clocks say when a scenario begins.
inline constexpr absl::Duration kStartOfTime = absl::Hours(10);

// Whoever sends and receives.
struct Peer {
  std::string id;
  bool alive = true;
  uint64_t process = 1;  // counts its lives; the world's view, never stepped
  // As it tells others: from its wall clock, which may be stepped.
  uint64_t epoch = static_cast<uint64_t>(absl::ToInt64Microseconds(kStartOfTime));
  int island = 0;  // peers on different islands do not reach each other
  absl::Duration paused_until = absl::ZeroDuration();  // SIGSTOP: nothing happens before
  absl::Duration clock_step = absl::ZeroDuration();    // of its wall clock
};

// Messages from one peer to another, to see whether one overtakes another.
struct Post {
  uint64_t sent = 0;
  uint64_t newest_arrived = 0;
};

class World {
 public:
  World(uint64_t seed, std::map<std::string, int>* seen) : random_(seed, 1), seen_(*seen) {}

  absl::Duration now() const { return now_; }
  bool Chance(double p) { return random_.NextDouble() < p; }
  absl::Duration Seconds(double most) { return absl::Seconds(most * random_.NextDouble()); }
  uint64_t Below(uint64_t n) { return random_.NextBelow(n); }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[random_.NextBelow(values.size())];
  }

  void Later(absl::Duration in, std::function<void()> run) {
    queue_.push({now_ + in, order_++, std::move(run)});
  }
  // At a peer: not while it is paused, and not in a later life of it.
  void At(Peer& peer, absl::Duration in, std::function<void()> run);
  // A message: overtaken, late, double, and lost where its receiver is dead or cut off when it
  // arrives.
  void Send(const Peer& from, Peer& to, std::function<void()> run);
  bool Reaches(const Peer& a, const Peer& b) const { return a.island == b.island; }
  // A new life; its epoch is its wall clock's time.
  void Restart(Peer* peer);

  // Runs until nothing is left, or `stop` says so after an event; false where it spins.
  bool Run(const std::function<bool()>& stop);

  // Into the trace's hash, and on standard output where `print_trace` is set.
  static inline bool print_trace = false;
  void Trace(const std::string& who, const std::string& what);
  uint64_t trace() const { return trace_; }
  void Seen(const std::string& what) { ++seen_[what]; }
  uint64_t events() const { return events_; }

 private:
  struct Event {
    absl::Duration at;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& o) const { return std::tie(at, order) > std::tie(o.at, o.order); }
  };
  void Deliver(Peer& peer, uint64_t process, const std::function<void()>& run);

  PhiloxStream random_;
  std::map<std::string, int>& seen_;
  std::map<std::pair<const Peer*, const Peer*>, Post> posts_;  // never walked: pointers' order
  std::priority_queue<Event> queue_;
  absl::Duration now_ = absl::ZeroDuration();
  uint64_t order_ = 0;
  uint64_t events_ = 0;
  uint64_t trace_ = 0xcbf29ce484222325;
};

}  // namespace tributary::sim
