// Many round machines at once, in tiers, in virtual time, under faults: the promises that hold
// after every event of every seeded scenario. A failure prints its seed, and the seed repeats it
// exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <queue>

#include "absl/strings/str_cat.h"
#include "aggregation/round.h"
#include "base/philox.h"

namespace tributary::aggregation {
namespace {

using Weights = std::map<std::string, uint64_t>;  // what an update holds: client id -> weight

constexpr uint64_t kRounds = 2;
constexpr absl::Duration kForwarding = absl::Seconds(2);  // a rack's deadline is so much earlier

struct Attempt {
  std::string member;
  uint64_t weight = 0;
  Weights holds;
  bool folding = false;
};

// An aggregator: a machine, and a driver that keeps its own books to check the machine's by.
struct Node {
  std::string id;
  Node* parent = nullptr;
  uint64_t epoch = 1;
  bool alive = true;
  std::map<std::string, RoundMachine::Member> sessions;
  std::unique_ptr<RoundMachine> machine;
  RoundPlan plan;
  uint64_t life = 0;  // of the machine: what was scheduled for an earlier one is void
  uint64_t timer = 0;
  bool armed = false;
  absl::Duration deadline_at;
  std::map<uint64_t, Attempt> attempts;  // in flight
  Weights ledger;                        // committed
  uint64_t ledger_weight = 0;
  uint64_t held_weight = 0;  // in flight and committed
  uint64_t held_clients = 0;
  int closed = 0;
};

struct Edge {  // a client
  std::string id;
  Node* node = nullptr;
  uint64_t epoch = 1;
  bool alive = true;
  int64_t weight = 1;
  int tries = 0;  // joins and uploads that it has left
};

class Scenario {
 public:
  Scenario(uint64_t seed, std::map<std::string, int>* seen)
      : random_(seed, 1), seed_(seed), seen_(*seen) {}

  // Returns the hash of the trace.
  uint64_t Run() {
    Build();
    for (auto& edge : edges_) Later(Seconds(2), [this, &edge] { Join(edge); });
    for (auto& node : nodes_) {
      if (node->parent != nullptr) Later(Seconds(1), [this, &node] { JoinParent(*node); });
    }
    Later(Seconds(3), [this] { BeginRoot(1); });
    ScheduleCrashes();
    uint64_t events = 0;
    while (!queue_.empty() && !::testing::Test::HasFailure()) {
      // The largest scenario has five thousand: a timer that changes nothing would be due for ever.
      EXPECT_LT(++events, 1'000'000u) << "it spins";
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.at;
      event.run();
    }
    EXPECT_EQ(root_closed_, kRounds) << "the root hangs";
    return trace_;
  }

 private:
  struct Event {
    absl::Duration at;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& o) const { return std::tie(at, order) > std::tie(o.at, o.order); }
  };

  // ---- Chance, time, messages

  bool Chance(double p) { return random_.NextDouble() < p; }
  absl::Duration Seconds(double most) { return absl::Seconds(most * random_.NextDouble()); }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[random_.NextBelow(values.size())];
  }
  void Later(absl::Duration in, std::function<void()> run) {
    queue_.push({now_ + in, order_++, std::move(run)});
  }
  // Messages overtake each other, come late, and come twice.
  void Send(std::function<void()> run) {
    if (Chance(0.05)) Later(Seconds(15), run);
    Later(Chance(0.05) ? Seconds(15) : Seconds(0.05), std::move(run));
  }
  void Trace(const Node& node, const std::string& what) {
    for (const char c : absl::StrCat(absl::ToInt64Nanoseconds(now_), " ", node.id, " ", what)) {
      trace_ = (trace_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    }
  }
  void Seen(const std::string& what) { ++seen_[what]; }

  // ---- The tree

  Node* Add(const std::string& id, Node* parent) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->id = id;
    nodes_.back()->parent = parent;
    return nodes_.back().get();
  }

  void Build() {
    Node* root = Add("root", nullptr);
    const uint64_t tiers = 1 + seed_ % 3;
    if (tiers == 1 || Chance(0.3)) leaves_.push_back(root);
    const uint64_t regions = tiers == 3 ? 1 + random_.NextBelow(3) : 1;
    for (uint64_t g = 0; tiers > 1 && g < regions; ++g) {
      Node* above = tiers == 3 ? Add(absl::StrCat("region-", g), root) : root;
      for (uint64_t r = 1 + random_.NextBelow(4); r > 0; --r) {
        leaves_.push_back(Add(absl::StrCat("rack-", g, "-", r), above));
      }
    }
    const uint64_t clients = 5 + random_.NextBelow(196);
    edges_.resize(clients);
    for (uint64_t i = 0; i < clients; ++i) {
      Edge& edge = edges_[i];
      edge.id = absl::StrCat("client-", i);
      edge.node = leaves_[i % leaves_.size()];
      edge.weight = Chance(0.05) ? OneOf<int64_t>({0, -7, 101}) : 1 + random_.NextBelow(100);
      edge.tries = 12;
      by_id_[edge.id] = &edge;
    }
    base_ = {.seed = seed_,
             .cohort_fraction = OneOf({1.0, 1.0, 0.5, 0.1}),
             .quorum = OneOf({1.0, 0.9, 0.5, 0.2}),
             .minimum = 1,
             .maximum = static_cast<uint32_t>(Chance(0.2) ? 1 + clients / 2 : 0),
             .deadline = absl::Seconds(10 + static_cast<int64_t>(random_.NextBelow(30))),
             .rejoin_grace = absl::Seconds(OneOf({0, 1, 5})),
             .max_weight = Chance(0.3) ? 200 + 20 * clients : uint64_t{1} << 20,
             .max_client_weight = 100};
    lateness_ = Chance(0.3) ? 2 : 0;
  }

  void ScheduleCrashes() {
    const double share = OneOf({0.0, 0.1, 0.5, 1.0});
    for (auto& edge : edges_) {
      if (Chance(share)) Later(Seconds(40), [this, &edge] { Crash(edge); });
    }
    for (auto& node : nodes_) {
      if (node->parent == nullptr || !Chance(0.3)) continue;
      Later(Seconds(40), [this, &node] { Crash(*node); });
    }
  }

  // ---- Clients

  void Join(Edge& edge) {
    if (!edge.alive || edge.tries-- <= 0) return;
    if (!edge.node->alive) edge.node = leaves_[random_.NextBelow(leaves_.size())];
    Node& node = *edge.node;
    const uint64_t epoch = edge.epoch;
    if (!node.alive) {
      Later(absl::Seconds(1), [this, &edge] { Join(edge); });
      return;
    }
    Send([this, &node, &edge, epoch] {
      Joined(node, {.id = edge.id, .aggregator = false, .epoch = epoch});
    });
  }

  void Crash(Edge& edge) {
    edge.alive = false;
    Node& node = *edge.node;
    const uint64_t epoch = edge.epoch;
    Send([this, &node, &edge, epoch] { Left(node, edge.id, epoch); });
    if (Chance(0.3)) return;  // for good
    Later(Seconds(8), [this, &edge] {
      edge.alive = true;
      if (Chance(0.7)) ++edge.epoch;  // else only its session was lost
      if (Chance(0.5)) edge.node = leaves_[random_.NextBelow(leaves_.size())];
      Join(edge);
    });
  }

  void Train(Edge& edge, uint64_t round) {
    if (!edge.alive) return;
    Node& node = *edge.node;
    const uint64_t epoch = edge.epoch;
    Later(Chance(0.1) ? Seconds(40) : Seconds(5), [this, &edge, &node, epoch, round] {
      if (!edge.alive || edge.epoch != epoch) return;
      if (Chance(0.05)) {
        Send([this, &node, &edge, epoch] {
          if (!node.machine) return;
          Seen("declined");
          Act(node, node.machine->Reported(edge.id, epoch, 0, now_));
        });
        return;
      }
      Upload(edge, node, epoch, round);
    });
  }

  void Upload(Edge& edge, Node& node, uint64_t epoch, uint64_t round) {
    if (!edge.alive || edge.epoch != epoch || edge.tries-- <= 0) return;
    Send([this, &edge, &node, epoch, round] {
      const Weights holds = {{edge.id, static_cast<uint64_t>(edge.weight)}};
      Offer(
          node, edge.id, epoch, round, edge.weight, holds,
          [this, &edge, epoch] { return edge.alive && edge.epoch == epoch; },
          [this, &edge, &node, epoch, round] { Upload(edge, node, epoch, round); });
    });
  }

  // ---- Aggregators as children

  void JoinParent(Node& node) {
    if (!node.alive) return;
    if (!node.parent->alive) {
      if (now_ < absl::Seconds(200)) Later(absl::Seconds(1), [this, &node] { JoinParent(node); });
      return;
    }
    const uint64_t epoch = node.epoch;
    Send([this, &node, epoch] {
      Joined(*node.parent, {.id = node.id, .aggregator = true, .epoch = epoch});
    });
  }

  void Crash(Node& node) {
    Seen("aggregator crashed");
    node.alive = false;
    Drop(node);
    node.sessions.clear();
    const uint64_t epoch = node.epoch;
    Send([this, &node, epoch] { Left(*node.parent, node.id, epoch); });
    for (auto& edge : edges_) {
      if (edge.node == &node) Later(Seconds(1), [this, &edge] { Join(edge); });
    }
    for (auto& child : nodes_) {
      if (child->parent == &node) Later(Seconds(1), [this, &child] { JoinParent(*child); });
    }
    if (Chance(0.3)) return;
    Later(Seconds(8), [this, &node] {
      node.alive = true;
      ++node.epoch;
      JoinParent(node);
    });
  }

  void Forward(Node& node, uint64_t life) {
    if (!node.alive || node.life != life || !node.machine->closed()) return;
    const RoundResult result = node.machine->Result();
    const uint64_t epoch = node.epoch;
    Node& parent = *node.parent;
    Send([this, &node, &parent, epoch, life, result, holds = node.ledger] {
      if (!parent.machine) return;
      if (result.clients == 0) {
        Act(parent, parent.machine->Reported(node.id, epoch, 0, now_));
        return;
      }
      Offer(
          parent, node.id, epoch, node.plan.round, static_cast<int64_t>(result.weight), holds,
          [&node, life] { return node.alive && node.life == life; },
          [this, &node, life] { Forward(node, life); });
    });
  }

  // ---- The driver of one machine

  void Drop(Node& node) {
    ++node.life;
    ++node.timer;
    node.machine.reset();
    node.attempts.clear();
    node.ledger.clear();
    node.ledger_weight = node.held_weight = node.held_clients = 0;
    node.closed = 0;
    node.armed = false;
  }

  void BeginRoot(uint64_t round) {
    RoundPlan plan = base_;
    plan.round = round;
    Begin(*nodes_[0], plan);
  }

  void Begin(Node& node, const RoundPlan& plan) {
    Drop(node);
    node.plan = plan;
    node.deadline_at = now_ + plan.deadline;
    node.machine = std::make_unique<RoundMachine>(plan);
    std::vector<RoundMachine::Member> members;
    for (const auto& [id, member] : node.sessions) members.push_back(member);
    Act(node, node.machine->Begin(members, now_));
  }

  void Joined(Node& node, const RoundMachine::Member& member) {
    if (!node.alive) return;
    RoundMachine::Member& session = node.sessions[member.id];
    if (member.epoch < session.epoch) return;
    session = member;
    if (node.machine) Act(node, node.machine->Joined(member, now_));
  }

  void Left(Node& node, const std::string& id, uint64_t epoch) {
    const auto it = node.sessions.find(id);
    if (it != node.sessions.end() && it->second.epoch == epoch) node.sessions.erase(it);
    if (node.machine) Act(node, node.machine->Left(id, epoch, now_));
  }

  void SendTask(Node& node, const std::string& member) {
    const uint64_t round = node.plan.round;
    if (const auto it = by_id_.find(member); it != by_id_.end()) {
      EXPECT_TRUE(InCohort(seed_, round, member, base_.cohort_fraction)) << member;
      Send([this, edge = it->second, round] { Train(*edge, round); });
      return;
    }
    for (auto& child : nodes_) {
      if (child->id != member) continue;
      Send([this, &child, plan = node.plan, deadline_at = node.deadline_at]() mutable {
        if (!child->alive || child->plan.round > plan.round) return;
        if (child->machine && child->plan.round == plan.round) {
          Forward(*child, child->life);  // asked again
          return;
        }
        plan.deadline = std::max(deadline_at - now_ - kForwarding, absl::Seconds(1));
        Begin(*child, plan);
      });
    }
  }

  // `whole`: is the sender still there? `again`: it tries once more.
  void Offer(Node& node, const std::string& id, uint64_t epoch, uint64_t round, int64_t weight,
             const Weights& holds, std::function<bool()> whole, std::function<void()> again) {
    if (!node.machine) return;
    std::vector<std::string> clients;
    const bool aggregator = !by_id_.contains(id);
    for (const auto& [client, w] : holds) {
      if (aggregator) clients.push_back(client);
    }
    const bool was_open = node.machine->open();
    const Admission admission = node.machine->Offer(id, epoch, round, weight, clients, now_);
    Trace(node,
          absl::StrCat("offer ", id, " ", static_cast<int>(admission.verdict), admission.reason));
    Seen(admission.verdict == Verdict::kDuplicate ? "duplicate" : admission.reason);
    if (admission.verdict == Verdict::kAdmit) {
      EXPECT_TRUE(was_open);
      if (admission.replaces != 0) Seen("replaced");
      if (admission.replaces != 0) Forget(node, admission.replaces);
      node.attempts[admission.ticket] = {
          .member = id, .weight = static_cast<uint64_t>(weight), .holds = holds};
      node.held_weight += static_cast<uint64_t>(weight);
      node.held_clients += holds.size();
      Later(Chance(0.1) ? Seconds(20) : Seconds(1),
            [this, &node, life = node.life, ticket = admission.ticket, whole, again] {
              if (node.life == life) Received(node, ticket, whole, again);
            });
    } else if (admission.verdict == Verdict::kReject && Chance(0.2)) {
      Later(Seconds(3), again);
    }
    Act(node, {});
  }

  void Forget(Node& node, uint64_t ticket) {
    const auto it = node.attempts.find(ticket);
    ASSERT_NE(it, node.attempts.end()) << "no such attempt";
    ASSERT_FALSE(it->second.folding) << "a committed update was dropped";
    node.held_weight -= it->second.weight;
    node.held_clients -= it->second.holds.size();
    node.attempts.erase(it);
  }

  void Received(Node& node, uint64_t ticket, const std::function<bool()>& whole,
                const std::function<void()>& again) {
    const bool live = node.attempts.contains(ticket);
    if (!whole() || Chance(0.1)) {
      if (live) Forget(node, ticket);
      Seen(live ? "broke off" : "broke off dead");
      Later(Seconds(2), again);
      Act(node, node.machine->Aborted(ticket, now_));
    } else if (Chance(0.05)) {
      if (live) Forget(node, ticket);
      Seen("refused");
      if (Chance(0.3)) Later(Seconds(2), again);
      Act(node, node.machine->Refused(ticket, "bound", now_));
    } else {
      EXPECT_EQ(node.machine->Commit(ticket), live);
      if (live) Committed(node, ticket);
      if (Chance(0.1)) Later(Seconds(5), again);  // its reply got lost
      Act(node, {});
    }
  }

  void Committed(Node& node, uint64_t ticket) {
    Attempt& attempt = node.attempts[ticket];
    attempt.folding = true;
    for (const auto& [client, weight] : attempt.holds) {
      EXPECT_TRUE(node.ledger.emplace(client, weight).second) << client << " is counted twice";
      node.ledger_weight += weight;
    }
    Trace(node, absl::StrCat("commit ", attempt.member));
    Later(Seconds(0.5), [this, &node, life = node.life, ticket] {
      if (node.life != life) return;
      node.attempts.erase(ticket);
      Act(node, node.machine->Folded(ticket, now_));
    });
  }

  void Act(Node& node, const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      Trace(node,
            absl::StrCat(static_cast<int>(action.kind), " ", action.member, " ", action.ticket));
      switch (action.kind) {
        case Action::Kind::kTask:
          SendTask(node, action.member);
          break;
        case Action::Kind::kAbort:
          Seen("aborted");
          Forget(node, action.ticket);
          break;
        case Action::Kind::kClosed:
          Closed(node);
          break;
      }
    }
    Rearm(node);
    Check(node);
  }

  void Rearm(Node& node) {
    const uint64_t timer = ++node.timer;
    const auto next = node.machine->NextTimer();
    node.armed = next.has_value();
    if (!next.has_value()) return;
    const absl::Duration late = Seconds(lateness_);
    Later(std::max(*next - now_, absl::ZeroDuration()) + late, [this, &node, timer] {
      if (node.timer != timer) return;
      Trace(node, "timer");
      Act(node, node.machine->Timer(now_));
    });
  }

  // ---- What must hold

  void Check(const Node& node) {
    const RoundMachine& machine = *node.machine;
    EXPECT_EQ(node.armed, machine.open()) << node.id;
    EXPECT_EQ(node.closed, machine.closed() ? 1 : 0) << node.id;
    if (machine.open()) {
      EXPECT_LE(*machine.NextTimer(), std::max(node.deadline_at, now_)) << node.id;
      EXPECT_LE(now_, node.deadline_at + absl::Seconds(lateness_)) << node.id << " hangs";
    } else {
      // Only folds hold a close up, and each of them ends.
      EXPECT_EQ(machine.closed(), node.attempts.empty()) << node.id;
      for (const auto& [ticket, attempt] : node.attempts) EXPECT_TRUE(attempt.folding) << node.id;
    }
    EXPECT_EQ(machine.weight(), node.ledger_weight) << node.id;
    EXPECT_LE(node.held_weight, node.plan.max_weight) << node.id;
    if (node.plan.maximum > 0) {
      EXPECT_LE(node.held_clients, node.plan.maximum) << node.id;
    }
  }

  void Closed(Node& node) {
    ++node.closed;
    const RoundResult result = node.machine->Result();
    std::vector<std::string> contributors;
    uint64_t weight = 0;
    for (const auto& [client, w] : node.ledger) {
      contributors.push_back(client);
      weight += w;
      EXPECT_EQ(w, static_cast<uint64_t>(by_id_.at(client)->weight));
      EXPECT_TRUE(InCohort(seed_, node.plan.round, client, base_.cohort_fraction)) << client;
    }
    EXPECT_EQ(result.contributors, contributors) << node.id;
    EXPECT_EQ(result.clients, contributors.size()) << node.id;
    EXPECT_EQ(result.weight, weight) << node.id;
    EXPECT_LE(result.weight, node.plan.max_weight) << node.id;
    EXPECT_EQ(result.success, result.clients >= node.plan.minimum) << node.id;
    Trace(node, absl::StrCat("closed ", result.clients, " ", result.weight, " ", result.late));
    if (node.parent != nullptr) {
      Later(Seconds(0.5), [this, &node, life = node.life] { Forward(node, life); });
      return;
    }
    Seen(result.clients > 0 ? "root closed with clients" : "root closed empty");
    ++root_closed_;
    if (root_closed_ < kRounds) {
      Later(absl::Seconds(1), [this] { BeginRoot(root_closed_ + 1); });
    }
  }

  PhiloxStream random_;
  uint64_t seed_;
  std::map<std::string, int>& seen_;
  std::priority_queue<Event> queue_;
  absl::Duration now_ = absl::ZeroDuration();
  uint64_t order_ = 0;
  uint64_t trace_ = 0xcbf29ce484222325;
  std::vector<std::unique_ptr<Node>> nodes_;  // the root first
  std::vector<Node*> leaves_;                 // where clients join
  std::vector<Edge> edges_;
  std::map<std::string, Edge*> by_id_;
  RoundPlan base_;
  double lateness_ = 0;  // of timers, at most, in seconds
  uint64_t root_closed_ = 0;
};

TEST(RoundSimulation, CountsEachClientOnceAndEndsInTimeWhateverFails) {
  constexpr uint64_t kScenarios = 600;
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < kScenarios; ++seed) {
    Scenario(seed, &seen).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  // A simulation in which these never happen would promise nothing.
  for (const char* what :
       {"duplicate", "round", "session", "weight", "full", "duplicate_clients", "replaced",
        "declined", "refused", "broke off", "broke off dead", "aborted", "aggregator crashed",
        "root closed with clients", "root closed empty"}) {
    EXPECT_GT(seen[what], 0) << what;
  }
  for (const auto& [what, count] : seen) {
    if (!what.empty()) RecordProperty(what, count);
  }
}

TEST(RoundSimulation, LeavesTheSameTraceForTheSameSeed) {
  std::map<std::string, int> seen;
  std::map<uint64_t, int> traces;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const uint64_t trace = Scenario(seed, &seen).Run();
    EXPECT_EQ(Scenario(seed, &seen).Run(), trace) << "seed " << seed;
    ++traces[trace];
  }
  EXPECT_EQ(traces.size(), 150u);  // and another for another
}

}  // namespace
}  // namespace tributary::aggregation
