// Whose turn it is, and when virtual time moves.
#include "transport/sim/world.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "transport/sim/link.h"

namespace tributary::transport::sim {
namespace {

// Deadlines in virtual time are told from real ones by lying beyond any of these: Deadline::After
// has no end from a century on. The clock's count of nanoseconds ends after 292 years.
constexpr Deadline::Clock::time_point kVirtualEpoch{std::chrono::hours(24 * 365) * 150};

// This thread's registration; one network at a time.
thread_local Waiter* this_waiter = nullptr;
thread_local const World* this_world = nullptr;

}  // namespace

Waiter* World::Current() const { return this_world == this ? this_waiter : nullptr; }

SimDeadline World::After(absl::Duration wait) const {
  SimDeadline until{.at = std::nullopt, .real = Deadline::After(wait)};
  if (!until.real.infinite()) until.at = core.now() + std::max(wait, absl::ZeroDuration());
  return until;
}

SimDeadline World::Until(Deadline deadline) const {
  if (deadline.infinite()) return SimDeadline{};
  if (deadline.at() >= kVirtualEpoch) {
    const absl::Duration at = absl::FromChrono(deadline.at() - kVirtualEpoch);
    return {.at = at, .real = Deadline::After(at - core.now())};
  }
  // Rounded, so that the moments between the caller's look at the clock and now leave no mark.
  return After(absl::Floor(deadline.Left() + absl::Microseconds(500), absl::Milliseconds(1)));
}

void World::Enqueue(Waiter* waiter) {
  waiter->state = Waiter::State::kRunnable;
  runnable_.push_back(waiter);
}

void World::AwaitTurn(Lock& lock, Waiter* waiter) {
  Dispatch();
  waiter->turn.wait(lock, [&] { return running_ == waiter; });
  waiter->state = Waiter::State::kRunning;
}

void World::Register(Lock& lock, Waiter* waiter) {
  this_world = this;
  this_waiter = waiter;
  AwaitTurn(lock, waiter);
}

void World::Unregister(Lock&) {
  this_world = nullptr;
  this_waiter = nullptr;
  running_ = nullptr;
  Dispatch();
}

void World::EnterOutside(Lock&) {
  Waiter* me = Current();
  if (me == nullptr) return;
  me->state = Waiter::State::kOutside;
  running_ = nullptr;
  Dispatch();
}

void World::LeaveOutside(Lock& lock) {
  Waiter* me = Current();
  if (me == nullptr) return;
  Enqueue(me);
  AwaitTurn(lock, me);
}

void World::Notify(WaitList& list) {
  for (Waiter* waiter : list) {
    if (waiter->participant) {
      if (waiter->state == Waiter::State::kBlocked) Enqueue(waiter);
    } else {
      waiter->woken = true;
      waiter->turn.notify_one();
    }
  }
}

void World::Dispatch() {
  if (running_ != nullptr || dispatching_) return;
  dispatching_ = true;
  while (runnable_.empty() && core.Step()) {
  }
  dispatching_ = false;
  if (runnable_.empty()) return;
  running_ = runnable_.front();
  runnable_.pop_front();
  running_->turn.notify_one();
}

bool World::WaitOnce(Lock& lock, WaitList& list, const SimDeadline& until) {
  Waiter* me = Current();
  return me != nullptr ? WaitAsParticipant(lock, me, list, until) : WaitAsGuest(lock, list, until);
}

bool World::WaitAsParticipant(Lock& lock, Waiter* me, WaitList& list, const SimDeadline& until) {
  if (until.at.has_value() && *until.at <= core.now()) return false;
  list.push_back(me);
  me->timed_out = false;
  ++me->wait_id;
  uint64_t token = 0;
  if (until.at.has_value()) {
    token = next_token++;
    timers_[token] = me;
    Schedule(*until.at - core.now(), WorldEvent::kTimer, token, me->wait_id);
  }
  me->state = Waiter::State::kBlocked;
  running_ = nullptr;
  AwaitTurn(lock, me);
  std::erase(list, me);
  if (token != 0) timers_.erase(token);
  return !me->timed_out;
}

bool World::WaitAsGuest(Lock& lock, WaitList& list, const SimDeadline& until) {
  Waiter guest;
  list.push_back(&guest);
  Dispatch();
  const bool woken = until.real.Wait(guest.turn, lock, [&] { return guest.woken; });
  std::erase(list, &guest);
  return woken;
}

void World::OnTimer(uint64_t token, uint64_t wait_id) {
  const auto found = timers_.find(token);
  if (found == timers_.end()) return;
  Waiter* waiter = found->second;
  if (waiter->wait_id != wait_id || waiter->state != Waiter::State::kBlocked) return;
  waiter->timed_out = true;
  Enqueue(waiter);
}

void World::OnSimEvent(uint64_t a, uint64_t b) {
  const auto kind = static_cast<WorldEvent>(a >> 56);
  const uint64_t id = a & ((uint64_t{1} << 56) - 1);
  if (kind == WorldEvent::kTimer) return OnTimer(id, b);
  if (kind == WorldEvent::kSyn) return OnSyn(id);
  if (kind == WorldEvent::kConnected) {
    const auto found = connects.find(id);
    if (found == connects.end()) return;
    found->second->done = true;
    return Notify(found->second->changed);
  }
  std::string text;
  if (kind == WorldEvent::kCancel) {
    text = std::move(texts[b]);
    texts.erase(b);
  }
  const auto found = links.find(id);
  if (found != links.end()) found->second->OnEvent(kind, b, text);
}

}  // namespace tributary::transport::sim

namespace tributary::transport {

using sim::Waiter;
using sim::World;

SimNetwork::SimNetwork(const SimOptions& options) : world_(std::make_shared<World>(options)) {}

SimNode SimNetwork::AddNode(const SimNodeOptions& options) {
  std::lock_guard lock(world_->mutex);
  return world_->core.AddNode(options);
}

absl::Duration SimNetwork::now() const {
  std::lock_guard lock(world_->mutex);
  return world_->core.now();
}

Deadline SimNetwork::In(absl::Duration wait) const {
  if (Deadline::After(wait).infinite()) return Deadline::Infinite();
  return Deadline::At(sim::kVirtualEpoch + absl::ToChronoNanoseconds(now() + wait));
}

SimStats SimNetwork::stats() const {
  std::lock_guard lock(world_->mutex);
  return world_->core.stats();
}

uint64_t SimNetwork::trace() const {
  std::lock_guard lock(world_->mutex);
  return world_->core.trace();
}

void SimNetwork::Kill(SimNode node) {
  std::lock_guard lock(world_->mutex);
  for (auto& [id, link] : world_->links) link->OnNodeKilled(node);
  world_->Dispatch();
}

SimNetwork::Participant::Participant(const SimNetwork& network) : world_(network.world_) {
  World::Lock lock(world_->mutex);
  auto* waiter = new Waiter;
  waiter->participant = true;
  world_->Enqueue(waiter);
  world_->Register(lock, waiter);
}

SimNetwork::Participant::~Participant() {
  World::Lock lock(world_->mutex);
  const std::unique_ptr<Waiter> waiter(world_->Current());
  world_->Unregister(lock);
}

SimNetwork::OutsideWait::OutsideWait(const SimNetwork& network) : world_(network.world_) {
  World::Lock lock(world_->mutex);
  world_->EnterOutside(lock);
}

SimNetwork::OutsideWait::~OutsideWait() {
  World::Lock lock(world_->mutex);
  world_->LeaveOutside(lock);
}

namespace sim {
namespace {

class SimThread final : public SimNetwork::Thread {
 public:
  SimThread(std::shared_ptr<World> world, std::function<void()> body) : world_(std::move(world)) {
    {
      World::Lock lock(world_->mutex);
      waiter_.participant = true;
      world_->Enqueue(&waiter_);
    }
    thread_ = std::thread([this, body = std::move(body)]() mutable {
      {
        World::Lock lock(world_->mutex);
        world_->Register(lock, &waiter_);
      }
      body();
      body = nullptr;  // what it holds (a link, say) ends while it is still this thread's turn
      World::Lock lock(world_->mutex);
      done_ = true;
      world_->Notify(finished_);
      world_->Unregister(lock);
    });
    World::Lock lock(world_->mutex);
    world_->Dispatch();
  }
  ~SimThread() override { Join(); }

  void Join() override {
    if (!thread_.joinable()) return;
    {
      World::Lock lock(world_->mutex);
      world_->Wait(lock, finished_, SimDeadline{}, [this] { return done_; });
    }
    thread_.join();
  }

 private:
  const std::shared_ptr<World> world_;
  Waiter waiter_;
  WaitList finished_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace sim

std::unique_ptr<SimNetwork::Thread> SimNetwork::Spawn(std::function<void()> body) {
  return std::make_unique<sim::SimThread>(world_, std::move(body));
}

void SimNetwork::Sleep(absl::Duration wait) {
  World::Lock lock(world_->mutex);
  sim::WaitList nothing;
  world_->Wait(lock, nothing, world_->After(wait), [] { return false; });
}

}  // namespace tributary::transport
