// The tree of a scenario, its policies, and the faults that will happen to it.
#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {
namespace {

// When a peer notices that the other is gone: a reset comes at once, a silence takes this long.
constexpr absl::Duration kSilence = absl::Seconds(3);

}  // namespace

Node* Scenario::AddNode(const std::string& id, Node* parent) {
  nodes_.push_back(std::make_unique<Node>());
  Node* node = nodes_.back().get();
  node->id = id;
  node->parent = parent;
  node->budget = std::make_unique<server::MemoryBudget>(budget_bytes_);
  return node;
}

void Scenario::Build() {
  World& w = world_;
  const uint64_t clients = 5 + w.Below(196);
  budget_bytes_ = w.Chance(0.3) ? 2 + w.Below(10) : 1000;  // an update is 1, a partial sum 2
  Node* root = AddNode("root", nullptr);
  const uint64_t tiers = 1 + seed_ % 3;
  if (tiers == 1 || w.Chance(0.3)) leaves_.push_back(root);
  uint64_t racks = tiers == 1 ? 0 : 1 + w.Below(8);
  for (uint64_t g = 0; racks > 0; ++g) {
    Node* above = tiers == 3 ? AddNode(absl::StrCat("region-", g), root) : root;
    for (uint64_t r = std::min(racks, tiers == 3 ? 1 + w.Below(4) : racks); r > 0; --r, --racks) {
      leaves_.push_back(AddNode(absl::StrCat("rack-", racks), above));
    }
  }
  for (uint64_t i = 0; i < clients; ++i) {
    edges_.push_back(std::make_unique<Edge>());
    Edge& edge = *edges_.back();
    edge.id = absl::StrCat("client-", i);
    edge.node = leaves_[i % leaves_.size()];
    edge.weight = w.Chance(0.05) ? w.OneOf<int64_t>({0, -7, 101}) : 1 + w.Below(100);
    edge.tries = 20;
    clients_[edge.id] = &edge;
  }
  base_plan_ = {.seed = seed_,
                .cohort_fraction = w.OneOf({1.0, 1.0, 0.5, 0.1}),
                .cohort_count = w.Chance(0.3) ? 1 + clients / 3 : 0,
                .quorum = w.OneOf({1.0, 0.9, 0.5, 0.2}),
                .minimum = 1,
                .maximum = static_cast<uint32_t>(w.Chance(0.2) ? 1 + clients / 2 : 0),
                .deadline = absl::Seconds(10 + static_cast<int64_t>(w.Below(30))),
                .rejoin_grace = absl::Seconds(w.OneOf({0, 1, 5})),
                .last_call = absl::Seconds(w.OneOf({1, 5})),
                .max_weight = w.Chance(0.3) ? 200 + 20 * clients : uint64_t{1} << 20,
                .max_client_weight = 100,
                .late = w.OneOf({aggregation::Late::kCarry, aggregation::Late::kSupplement,
                                 aggregation::Late::kDrop}),
                .max_staleness = 1 + w.Below(4)};
  if (base_plan_.cohort_count > 0 && w.Chance(0.7)) {
    base_plan_.target = 1 + base_plan_.cohort_count * 3 / 4;
  }
  adaptive_ = w.Chance(0.4);
  base_plan_.enough = w.OneOf<uint64_t>({1, 1, 3, 1 + clients / 2});
  lateness_ = w.Chance(0.3) ? 2 : 0;
  disk_full_ = w.Chance(0.3) ? 0.4 : 0;
}

void Scenario::ScheduleFaults() {
  World& w = world_;
  const double share = w.OneOf({0.0, 0.1, 0.5, 1.0});
  for (auto& edge : edges_) {
    if (w.Chance(share)) w.Later(w.Seconds(60), [this, &e = *edge] { CrashClient(e); });
    if (w.Chance(0.05)) w.Later(w.Seconds(60), [this, &e = *edge] { Pause(e); });
    if (w.Chance(0.05)) w.Later(w.Seconds(60), [this, &e = *edge] { StepClock(e); });
  }
  for (auto& node : nodes_) {
    if (w.Chance(0.3)) w.Later(w.Seconds(60), [this, &n = *node] { CrashNode(n); });
    if (w.Chance(0.2)) w.Later(w.Seconds(60), [this, &n = *node] { CrashNode(n); });
    if (w.Chance(0.2)) w.Later(w.Seconds(60), [this, &n = *node] { Pause(n); });
    if (w.Chance(0.3)) w.Later(w.Seconds(60), [this, &n = *node] { StepClock(n); });
  }
  if (w.Chance(0.5)) w.Later(w.Seconds(60), [this] { Partition(); });
}

void Scenario::Pause(Peer& peer) {
  world_.Seen("paused");
  peer.paused_until = std::max(peer.paused_until, world_.now() + world_.Seconds(12));
}

// The wall clock makes epochs, and nothing else: deadlines must not move.
void Scenario::StepClock(Peer& peer) {
  world_.Seen("clock stepped");
  peer.clock_step += world_.OneOf({absl::Minutes(10), -absl::Minutes(10)});
}

void Scenario::CrashClient(Edge& edge) {
  if (!edge.alive) return;
  world_.Seen("client crashed");
  edge.alive = false;
  const bool was_joined = edge.joined;
  Node& node = *edge.node;
  if (was_joined) {
    const bool polite = world_.Chance(0.2);
    if (polite) world_.Seen("client left for good");
    world_.At(node, polite || world_.Chance(0.5) ? world_.Seconds(0.1) : kSilence,
              [this, &node, &edge, epoch = edge.epoch, polite] {
                NodeLeft(node, edge.id, epoch, polite);
              });
  }
  if (world_.Chance(0.3)) return;  // for good
  world_.Later(world_.Seconds(8), [this, &edge] {
    world_.Restart(&edge);
    edge.joined = false;
    edge.task = 0;
    edge.trained = false;
    if (world_.Chance(0.5)) edge.node = &SomeLeaf();
    Join(edge);
  });
}

void Scenario::CrashNode(Node& node) {
  if (!node.alive || done_) return;
  world_.Seen(node.parent == nullptr ? "root crashed" : "aggregator crashed");
  world_.Trace(node.id, "crash");
  node.alive = false;
  DropRound(node);
  node.heard.clear();
  node.sessions.clear();
  node.at_close.clear();
  node.budget = std::make_unique<server::MemoryBudget>(budget_bytes_);
  if (Node* parent = node.parent; parent != nullptr) {
    world_.At(*parent, world_.Seconds(3),
              [this, parent, &node, epoch = node.epoch] { NodeLeft(*parent, node.id, epoch); });
  }
  SessionsCut(absl::ZeroDuration());
  // The root comes back always: its run is to end.
  if (node.parent != nullptr && world_.Chance(0.3)) return;
  world_.Later(world_.Seconds(8), [this, &node] {
    world_.Restart(&node);
    if (node.parent != nullptr) {
      JoinParent(node);
      return;
    }
    round_ = committed_round_;  // what the disk says
    node.last_round = committed_round_;
    node.last_children = saved_children_;
    world_.At(node, world_.Seconds(3), [this] { NextRound(); });
  });
}

// Some aggregators and clients are cut off from the rest, and later joined again.
void Scenario::Partition() {
  world_.Seen("partition");
  for (auto& edge : edges_) edge->island = world_.Chance(0.3) ? 1 : 0;
  for (auto& node : nodes_) node->island = world_.Chance(0.3) ? 1 : 0;
  SessionsCut(kSilence);
  world_.Later(world_.Seconds(15), [this] {
    for (auto& edge : edges_) edge->island = 0;
    for (auto& node : nodes_) node->island = 0;
  });
}

// Both ends of each session that is cut notice, each in its time.
void Scenario::SessionsCut(absl::Duration after) {
  world_.Later(after, [this] {
    for (auto& edge : edges_) {
      Node& node = *edge->node;
      if (!edge->joined || (node.alive && world_.Reaches(*edge, node))) continue;
      world_.At(node, world_.Seconds(1),
                [this, &node, &e = *edge, epoch = edge->epoch] { NodeLeft(node, e.id, epoch); });
      world_.At(*edge, world_.Seconds(1), [this, &e = *edge] { LoseSession(e); });
    }
    for (auto& child : nodes_) {
      Node* parent = child->parent;
      if (parent == nullptr || (parent->alive && world_.Reaches(*child, *parent))) continue;
      world_.At(*parent, world_.Seconds(1), [this, parent, &c = *child, epoch = child->epoch] {
        NodeLeft(*parent, c.id, epoch);
      });
      world_.At(*child, world_.Seconds(2), [this, &c = *child] { JoinParent(c); });
    }
  });
}

}  // namespace tributary::sim
