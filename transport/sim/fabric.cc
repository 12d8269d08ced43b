// Listening and connecting on the simulated network.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"
#include "transport/sim.h"
#include "transport/sim/link.h"
#include "transport/sim/world.h"

namespace tributary::transport {
namespace sim {

void World::OnSyn(uint64_t token) {
  const auto found = connects.find(token);
  if (found == connects.end()) return;  // gave up meanwhile
  PendingConnect& connect = *found->second;
  const auto at = listeners.find(connect.address);
  SimNode answering = connect.node;
  if (at == listeners.end()) {
    connect.status = absl::UnavailableError("nobody listens there");
  } else {
    ListenerState& listener = *at->second;
    answering = listener.node;
    v1::LinkHello hello = internal::ControlHello(connect.options, std::string(16, '\0'), 0);
    connect.status = internal::CheckFit(hello, listener.options);
    if (connect.status.ok()) {
      auto ends = SimLinkCore::MakePair(shared_from_this(), connect.node, connect.options,
                                        listener.node, listener.options);
      connect.status = ends.status();
      if (ends.ok()) {
        connect.link = std::move(ends->connecting);
        listener.ready.push_back(std::move(ends->accepting));
        Notify(listener.changed);
      }
    }
    if (!connect.status.ok()) ++listener.refused;
  }
  Schedule(core.latency(answering, connect.node), WorldEvent::kConnected, token, 0);
}

namespace {

class SimListener final : public Listener {
 public:
  SimListener(std::shared_ptr<World> world, ListenerState* state)
      : world_(std::move(world)), state_(state) {}
  ~SimListener() override {
    std::deque<std::unique_ptr<Link>> ready;  // destroyed after the lock is gone: links take it
    {
      World::Lock lock(world_->mutex);
      state_->cancelled = true;
      world_->listeners.erase(state_->address);
      ready.swap(state_->ready);
      world_->Notify(state_->changed);
      world_->Dispatch();
    }
  }
  absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) override {
    World::Lock lock(world_->mutex);
    const bool ready = world_->Wait(lock, state_->changed, world_->Until(deadline),
                                    [this] { return state_->cancelled || !state_->ready.empty(); });
    if (state_->cancelled) {
      return absl::CancelledError(
          absl::StrCat("accepting links on ", state_->address, " was cancelled"));
    }
    if (!ready) {
      return absl::DeadlineExceededError(
          absl::StrCat("no link came to ", state_->address, " in time"));
    }
    std::unique_ptr<Link> link = std::move(state_->ready.front());
    state_->ready.pop_front();
    return link;
  }
  std::string address() const override { return state_->address; }
  void Cancel() override {
    World::Lock lock(world_->mutex);
    state_->cancelled = true;
    world_->Notify(state_->changed);
    world_->Dispatch();
  }
  uint64_t refused() const override {
    World::Lock lock(world_->mutex);
    return state_->refused;
  }

 private:
  const std::shared_ptr<World> world_;
  const std::unique_ptr<ListenerState> state_;
};

class SimFabric final : public Fabric {
 public:
  SimFabric(std::shared_ptr<World> world, SimNode node) : world_(std::move(world)), node_(node) {}
  std::string_view name() const override { return "sim"; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    World::Lock lock(world_->mutex);
    auto* state = new ListenerState;
    auto listener = std::make_unique<SimListener>(world_, state);
    state->node = node_;
    state->address = address.empty() ? absl::StrCat("sim:", world_->next_token++) : address;
    state->options = options;
    if (!world_->listeners.emplace(state->address, state).second) {
      const std::string taken = std::exchange(state->address, absl::StrCat("\n", address));
      lock.unlock();  // the listener's end takes it
      return absl::UnavailableError(absl::StrCat("cannot listen on ", taken, ": already in use"));
    }
    return listener;
  }

  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    PendingConnect connect;
    connect.node = node_;
    connect.address = address;
    connect.options = options;
    {
      World::Lock lock(world_->mutex);
      const auto at = world_->listeners.find(address);
      const SimNode to = at == world_->listeners.end() ? node_ : at->second->node;
      const uint64_t token = world_->next_token++;
      world_->connects[token] = &connect;
      world_->Schedule(world_->core.latency(node_, to), WorldEvent::kSyn, token, 0);
      world_->Wait(lock, connect.changed, world_->After(options.connect_timeout),
                   [&] { return connect.done; });
      world_->connects.erase(token);
    }
    // From here on a link that came too late ends with `connect`, without the lock.
    if (!connect.done) {
      connect.status = absl::DeadlineExceededError("no answer within connect_timeout");
    }
    if (!connect.status.ok()) return Annotate(connect.status, "link to " + address);
    return std::move(connect.link);
  }

 private:
  const std::shared_ptr<World> world_;
  const SimNode node_;
};

}  // namespace
}  // namespace sim

std::unique_ptr<Fabric> MakeSimFabric(const SimNetwork& network, SimNode node) {
  return std::make_unique<sim::SimFabric>(network.world_, node);
}

}  // namespace tributary::transport
