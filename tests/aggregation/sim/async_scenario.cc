// The tree, the faults to come, and what must hold after every event.
#include "tests/aggregation/sim/async_scenario.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tributary::sim {

AsyncScenario::AsyncScenario(uint64_t seed, std::map<std::string, int>* seen)
    : seed_(seed), world_(SeededHash(seed, "async", "scenario"), seen) {
  Build();
}

void AsyncScenario::Build() {
  const uint64_t racks = world_.Below(4);  // none: flat
  for (uint64_t i = 0; i <= racks; ++i) {
    nodes_.push_back(std::make_unique<AsyncNode>());
    AsyncNode& node = *nodes_.back();
    node.id = i == 0 ? "root" : absl::StrCat("r", i - 1);
    node.parent = i == 0 ? nullptr : nodes_[0].get();
    node.machine = std::make_unique<AsyncMachine>();
  }
  const uint64_t clients = 3 + world_.Below(28);
  for (uint64_t i = 0; i < clients; ++i) {
    edges_.push_back(std::make_unique<AsyncEdge>());
    AsyncEdge& edge = *edges_.back();
    edge.id = absl::StrCat("c", i);
    edge.weight = static_cast<int64_t>(1 + world_.Below(200'000));
    clients_[edge.id] = &edge;
  }
  plan_.buffer = 1 + world_.Below(clients);
  plan_.max_staleness = world_.OneOf<uint64_t>({0, 1, 3, 10});
  plan_.concurrency = world_.OneOf<uint64_t>({0, 0, 1, 1 + clients / 2});
  plan_.flush_after = absl::Seconds(world_.OneOf({5, 20, 60}));
  plan_.collect_within = absl::Seconds(world_.OneOf({3, 10}));
  plan_.task_limit = absl::Seconds(world_.OneOf({15, 60}));
  plan_.max_weight = world_.Chance(0.2) ? 500'000 : uint64_t{1} << 40;
  plan_.max_client_weight = 200'000;
  disk_full_ = world_.Chance(0.3) ? 0.2 : 0;
}

AsyncNode& AsyncScenario::Leaf() {
  return nodes_.size() == 1 ? root() : *nodes_[1 + world_.Below(nodes_.size() - 1)];
}

// What a client's update holds; the weights' sums are modulo 2^64 on both sides.
AsyncSums AsyncScenario::ValueOf(const AsyncKey& key) {
  AsyncSums out;
  for (uint64_t i = 0; i < out.size(); ++i) out[i] = SeededHash(key.second, "value", key.first) + i;
  return out;
}

void AsyncScenario::Down(AsyncNode& from, Peer& to, const std::shared_ptr<Stream>& stream,
                         Then run) {
  stream->down_at = std::max(stream->down_at, world_.now() + world_.Seconds(0.05));
  world_.At(to, stream->down_at - world_.now(), [this, &from, &to, stream, run] {
    if (stream->alive && world_.Reaches(from, to)) run();
  });
}

void AsyncScenario::Up(Peer& from, AsyncNode& to, const std::shared_ptr<Stream>& stream, Then run) {
  stream->up_at = std::max(stream->up_at, world_.now() + world_.Seconds(0.05));
  world_.At(to, stream->up_at - world_.now(), [this, &from, &to, stream, run] {
    if (stream->alive && world_.Reaches(from, to)) run();
  });
}

// Both sides notice, each in its own time.
void AsyncScenario::Cut(const std::shared_ptr<Stream>& stream, AsyncNode& up, Peer& down,
                        bool rejoins) {
  if (stream == nullptr || !stream->alive) return;
  stream->alive = false;
  world_.Seen("session lost");
  world_.At(up, world_.Seconds(5), [this, &up, stream, id = down.id] {
    const auto it = up.sessions.find(id);
    if (it == up.sessions.end() || it->second != stream) return;
    up.sessions.erase(it);
    Act(up, up.machine->Left(id, stream->epoch, world_.now()));
  });
  if (!rejoins) return;
  world_.At(down, world_.Seconds(3), [this, &down] {
    if (const auto it = clients_.find(down.id); it != clients_.end())
      return JoinClient(*it->second);
    JoinRack(static_cast<AsyncNode&>(down));
  });
}

void AsyncScenario::CrashClient(AsyncEdge& edge) {
  if (!edge.alive) return;
  world_.Seen("client crashed");
  edge.alive = false;
  if (edge.node != nullptr) Cut(edge.stream, *edge.node, edge, false);
  world_.Later(absl::Seconds(1) + world_.Seconds(5), [this, &edge] {
    world_.Restart(&edge);
    edge.base.reset();
    edge.trained = edge.accepted = false;
    ++edge.task_life;
    JoinClient(edge);
  });
}

void AsyncScenario::CrashNode(AsyncNode& node) {
  if (!node.alive) return;
  world_.Seen(node.parent == nullptr ? "root crashed" : "aggregator crashed");
  world_.Trace(node.id, "crashes");
  node.alive = false;
  for (const auto& [id, stream] : std::map(node.sessions)) {
    const auto client = clients_.find(id);
    Peer* down = client != clients_.end() ? static_cast<Peer*>(client->second) : nullptr;
    for (const auto& other : nodes_) {
      if (other->id == id) down = other.get();
    }
    Cut(stream, node, *down, true);
  }
  node.sessions.clear();
  // Those too whose joining it had not heard yet.
  for (const auto& edge : edges_) {
    if (edge->node == &node) Cut(edge->stream, node, *edge, true);
  }
  for (const auto& other : nodes_) {
    if (other->parent == &node) Cut(other->stream, node, *other, true);
  }
  if (node.parent != nullptr) Cut(node.stream, *node.parent, node, false);
  node.machine = std::make_unique<AsyncMachine>();
  node.attempts.clear();
  node.ledger = {};
  node.last_bases.clear();
  node.buffering = node.waiting_outcome = false;
  node.early.reset();
  node.pending.reset();
  ++node.life;
  world_.Later(absl::Seconds(1) + world_.Seconds(5), [this, &node] {
    world_.Restart(&node);
    if (node.parent != nullptr) return JoinRack(node);
    node.machine->Restore(saved_counted_, version_);
    for (const Contribution& c : saved_newest_) node.last_bases[c.id] = c.base;
    Open(node, {version_, 0});
  });
}

void AsyncScenario::ScheduleFaults() {
  const auto later = [this](auto fault) { world_.Later(world_.Seconds(120), fault); };
  for (uint64_t i = world_.Below(4); i > 0; --i) {
    later([this] { CrashNode(*nodes_[world_.Below(nodes_.size())]); });
  }
  for (uint64_t i = world_.Below(5); i > 0; --i) {
    later([this] { CrashClient(*edges_[world_.Below(edges_.size())]); });
  }
  for (uint64_t i = world_.Below(4); i > 0; --i) {
    later([this] {
      AsyncEdge& edge = *edges_[world_.Below(edges_.size())];
      if (edge.alive && edge.node != nullptr) Cut(edge.stream, *edge.node, edge, true);
    });
  }
  if (nodes_.size() > 1 && world_.Chance(0.5)) {
    later([this] {
      AsyncNode& rack = *nodes_[1 + world_.Below(nodes_.size() - 1)];
      if (rack.alive) Cut(rack.stream, root(), rack, true);
    });
  }
  for (uint64_t i = world_.Below(4); i > 0; --i) {
    later([this] {
      Peer& peer = AnyPeer();
      world_.Seen("paused");
      peer.paused_until = world_.now() + world_.Seconds(15);
    });
  }
  // Cut off for a while: sessions across the cut end, uploads get lost.
  if (nodes_.size() > 1 && world_.Chance(0.3)) {
    later([this] {
      AsyncNode& rack = *nodes_[1 + world_.Below(nodes_.size() - 1)];
      if (!rack.alive) return;
      world_.Seen("partition");
      rack.island = 1;
      Cut(rack.stream, root(), rack, true);
      for (const auto& [id, stream] : std::map(rack.sessions)) {
        Cut(stream, rack, *clients_.at(id), true);
      }
      world_.Later(absl::Seconds(2) + world_.Seconds(20), [&rack] { rack.island = 0; });
    });
  }
  // The wall clock makes epochs, and nothing else.
  for (uint64_t i = world_.Below(4); i > 0; --i) {
    later([this] {
      world_.Seen("clock stepped");
      AnyPeer().clock_step += world_.OneOf({absl::Minutes(10), -absl::Minutes(10)});
    });
  }
}

Peer& AsyncScenario::AnyPeer() {
  if (world_.Chance(0.5)) return *nodes_[world_.Below(nodes_.size())];
  return *edges_[world_.Below(edges_.size())];
}

uint64_t AsyncScenario::Run() {
  Open(root(), {0, 0});
  for (const auto& node : nodes_) {
    if (node->parent != nullptr) {
      world_.At(*node, world_.Seconds(1), [this, &rack = *node] { JoinRack(rack); });
    }
  }
  for (const auto& edge : edges_) {
    world_.At(*edge, world_.Seconds(5), [this, &e = *edge] { JoinClient(e); });
  }
  ScheduleFaults();
  const bool ended = world_.Run([this] {
    for (const auto& node : nodes_) {
      if (node->alive) Check(*node);
    }
    return done_ || ::testing::Test::HasFailure() || world_.now() > absl::Hours(2);
  });
  EXPECT_TRUE(ended) << "it spins";
  EXPECT_TRUE(done_ || ::testing::Test::HasFailure())
      << "version " << version_ << " of " << target_ << " after "
      << absl::FormatDuration(world_.now()) << ": something waits for ever";
  return world_.trace();
}

// ---- What must hold

void AsyncScenario::Check(const AsyncNode& node) {
  const AsyncMachine& machine = *node.machine;
  const aggregation::AsyncResult result = machine.Result();
  // The machine's books and the driver's.
  std::map<AsyncKey, uint64_t> named;
  uint64_t weight = 0;
  for (const Contribution& c : result.contributions) {
    named[{c.id, c.base}] = c.weight;
    weight += c.weight;
    EXPECT_LE(c.staleness, plan_.max_staleness);
    // Worked out anew: one rounding of w / sqrt(1 + tau).
    const double exact = static_cast<double>(clients_.at(c.id)->weight) /
                         std::sqrt(1.0 + static_cast<double>(c.staleness));
    EXPECT_EQ(c.weight, static_cast<uint64_t>(std::max(1.0, std::nearbyint(exact))));
  }
  EXPECT_EQ(named, node.ledger.weights) << node.id;
  EXPECT_EQ(named.size(), result.contributions.size());
  EXPECT_EQ(result.weight, weight);
  EXPECT_LE(weight, plan_.max_weight);
  AsyncSums sums{};
  for (const auto& [key, w] : named) {
    const AsyncSums value = ValueOf(key);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += w * value[i];
  }
  EXPECT_EQ(sums, node.ledger.sums) << node.id;
  if (plan_.concurrency > 0) {
    EXPECT_LE(machine.training(), plan_.concurrency);
  }
  for (const auto& [ticket, attempt] : node.attempts) {
    EXPECT_TRUE(machine.Holds(ticket)) << node.id << " keeps what the machine has given up";
  }
  if (node.parent == nullptr && node.buffering && machine.open()) {
    EXPECT_TRUE(machine.NextTimer().has_value()) << "the root waits without a timer";
  }
  EXPECT_LE(machine.Counted().size(), (plan_.max_staleness + 2) * edges_.size());
}

void AsyncScenario::CheckCommit(const AsyncNode& root) {
  for (const auto& [key, weight] : root.ledger.weights) {
    EXPECT_TRUE(counted_.insert(key).second)
        << key.first << "'s update from version " << key.second << " counts twice";
    EXPECT_LE(key.second, version_);
  }
}

}  // namespace tributary::sim
