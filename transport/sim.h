// Links over a simulated network: one process, virtual time, seeded (the model:
// transport/sim_core.h).
//
// Virtual time and threads. Threads that use simulated links register as participants. Of the
// participants exactly one runs at a time; it runs until it blocks in a link call (or a Sleep, a
// Join, an OutsideWait) or unregisters, then the next that can go on runs, in the order in which
// they became able to. Only when none can go on does time advance, event by event, until one can.
// So a run depends on nothing but the seed, the options and the program: the same seed gives the
// same trace().
// - Deadlines from SimNetwork::In are exact. Any other deadline is taken as that much virtual time
// from
//   now, rounded to a millisecond.
// - A participant must not wait for another by other means (a condition variable, a future, a
// join):
//   time would stand still. Wrap such a wait in an OutsideWait, or use Thread::Join.
// - Threads that are not participants may use links too. They hold nothing up: events happen at
//   once whenever no participant can run, and their deadlines are real time. Nothing is
//   reproducible then. (A handler that schedules itself for ever would keep them busy for ever.)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "transport/link.h"
#include "transport/sim_core.h"

namespace tributary::transport {

namespace sim {
class World;
struct Waiter;
}  // namespace sim

// Thread-safe. Shared by its fabrics, links and chunks.
class SimNetwork {
 public:
  explicit SimNetwork(const SimOptions& options = SimOptions());

  SimNode AddNode(const SimNodeOptions& options = SimNodeOptions());
  absl::Duration now() const;  // virtual, from 0
  // A deadline for link calls: `wait` of virtual time from now.
  Deadline In(absl::Duration wait) const;
  SimStats stats() const;
  uint64_t trace() const;
  // A machine's death: its links fail here at once, and at their peers, which hear nothing, when
  // their heartbeats have been missed.
  void Kill(SimNode node);

  // Makes the constructing thread a participant; returns when it is its turn. Destroyed by that
  // thread.
  class Participant {
   public:
    explicit Participant(const SimNetwork& network);
    ~Participant();
    Participant(const Participant&) = delete;
    Participant& operator=(const Participant&) = delete;

   private:
    std::shared_ptr<sim::World> world_;
  };
  // While it lives, this participant counts as blocked: it waits for something outside the network.
  class OutsideWait {
   public:
    explicit OutsideWait(const SimNetwork& network);
    ~OutsideWait();
    OutsideWait(const OutsideWait&) = delete;
    OutsideWait& operator=(const OutsideWait&) = delete;

   private:
    std::shared_ptr<sim::World> world_;
  };
  // A thread that is a participant from its first line; its turn comes in the order of the Spawns.
  class Thread {
   public:
    virtual ~Thread() = default;  // joins
    virtual void Join() = 0;      // as a link call: others run and time advances meanwhile
  };
  std::unique_ptr<Thread> Spawn(std::function<void()> body);
  // Blocks this participant for `wait` of virtual time.
  void Sleep(absl::Duration wait);

 private:
  friend std::unique_ptr<Fabric> MakeSimFabric(const SimNetwork& network, SimNode node);
  std::shared_ptr<sim::World> world_;
};

// The fabric as one node sees it. Addresses are any text; "" listens at one that is free.
std::unique_ptr<Fabric> MakeSimFabric(const SimNetwork& network, SimNode node);

}  // namespace tributary::transport
