// One seeded scenario: a tree of aggregators driving production round machines, clients, faults,
// and books of its own by which all is checked after every event.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "aggregation/deadline.h"
#include "aggregation/round.h"
#include "server/memory_budget.h"
#include "tests/aggregation/sim/world.h"

namespace tributary::sim {

using aggregation::Action;
using aggregation::RoundMachine;
using aggregation::RoundPlan;

// An update by what makes it one: its client and the round that it was trained for.
using UpdateKey = std::pair<std::string, uint64_t>;
// Sums on the grid, of a model of three elements.
using Sums = std::array<uint64_t, 3>;

// A mistake of the program's own, made once, to see that it is found: what each is, in driver.cc
// and tiers.cc.
enum class Flaw {
  kNone,
  kAddsTwice,       // an update is added twice, and named once
  kDropsAName,      // a contributor is not named
  kKeepsMemory,     // what an update took is not given back
  kSetsNoTimer,     // a round waits without one
  kCountsAgain,     // what an earlier committed model has is in the next one too
  kGoesBack,        // a commit is numbered below the one before it
  kPublishesOther,  // the model that is committed is not the sum that was closed
};

// What an update or a partial sum brings.
struct Load {
  std::map<UpdateKey, uint64_t> updates;  // and the weight that each counts with
  uint64_t weight = 0;
  Sums sums{};
};

// What an aggregator has claimed of its parent, as Collector::Claims.
enum class ClaimState { kAsked, kGranted, kTaken };

// How a round ended for a node.
struct Ending {
  bool committed = false;
  bool included = false;
  uint32_t parts = 0;
  bool parent_included = false;
};

struct Attempt {
  std::string member;
  Load load;
  uint64_t reserved = 0;
  bool folding = false;
};

struct Edge;

// How far a session's stream of tasks and outcomes has come. The world reorders and doubles
// messages; a stream does not, so what comes out of its order is dropped.
struct StreamOrder {
  uint64_t process = 0;  // of the sender
  uint64_t place = 0;
  bool Accept(uint64_t sender_process, uint64_t new_place) {
    const std::pair next(sender_process, new_place);
    if (next < std::pair(process, place)) return false;
    std::tie(process, place) = next;
    return true;
  }
  bool Task(uint64_t sender_process, uint64_t round) { return Accept(sender_process, 2 * round); }
  bool Outcome(uint64_t sender_process, uint64_t round) {
    return Accept(sender_process, 2 * round + 1);
  }
};

struct Offered {
  std::string id;
  uint64_t epoch = 0;
  uint64_t round = 0;
  int64_t weight = 0;
  Load load;
  std::function<bool()> whole;  // is its sender still there and sending?
  std::function<void(aggregation::Verdict, bool again)> reply;
  uint32_t part = 0;
};

struct Claims {
  std::map<std::string, ClaimState> clients;
  std::set<std::string> late;
  std::map<std::string, std::string> below;
  std::map<std::string, Offered> held;  // updates that wait for an answer
  std::vector<std::string> grants;
  uint64_t granted = 0;
  uint64_t done_told = 0;
  bool open = false;
  bool open_told = false;
};

// An aggregator. Life of its round and everything below it ends with its process.
struct Node : Peer {
  Node* parent = nullptr;
  StreamOrder stream;  // from its parent
  std::map<std::string, RoundMachine::Member> sessions;
  std::set<std::string> at_close;  // sessions that were there when its round closed
  std::unique_ptr<RoundMachine> machine;
  RoundPlan plan;
  uint64_t base = 0;        // model version trained from
  uint64_t round_life = 0;  // of the machine: what was scheduled for an earlier one is void
  uint64_t timer = 0;
  bool armed = false;
  std::optional<absl::Duration> armed_at;
  absl::Duration deadline_at;
  std::map<uint64_t, Attempt> attempts;  // in flight, by ticket
  Load ledger;                           // committed
  Load first;                            // of the first sum, where there is a second
  uint64_t ledger_changes = 0;           // counts them
  uint64_t ledger_checked = 0;           // at which of them its sums were worked out anew
  Claims claims;
  uint64_t says = 0;  // of its messages on claims, both ways
  std::map<std::string, std::pair<uint64_t, uint64_t>> heard;  // (process, number), by peer
  std::optional<Load> second;                                  // closed, to be forwarded
  std::optional<aggregation::RoundResult> first_result, second_result;
  bool first_in = false;     // at the parent
  uint64_t held_weight = 0;  // in flight and committed
  uint64_t held_clients = 0;
  int closed = 0;
  bool finished = false;          // its outcome is known
  std::optional<Ending> early;    // the parent's outcome, come before the round closed
  std::function<void()> pending;  // the next round, while this one still closes
  uint64_t last_round = 0;        // the last that was committed, as it knows
  std::map<std::string, uint32_t> last_children;
  std::unique_ptr<server::MemoryBudget> budget;
  aggregation::AdaptiveDeadline adaptive{{}};
};

// A client, as the SDK behaves: one task at a time, an update kept until its outcome is known.
struct Edge : Peer {
  Node* node = nullptr;  // where it has joined, or tries to
  bool joined = false;
  int64_t weight = 1;
  int tries = 0;      // joins and uploads that it has left
  uint64_t task = 0;  // round that it works on; 0: none
  uint64_t task_base = 0;
  uint64_t task_life = 0;
  std::map<std::string, StreamOrder> streams;  // by node
  bool trained = false;
  std::set<uint64_t> told_included;
};

class Scenario {
 public:
  // `failed`: whether to stop, something not being as it must; by default, whether the test that
  // runs has failed.
  Scenario(uint64_t seed, std::map<std::string, int>* seen, Flaw flaw = Flaw::kNone,
           std::function<bool()> failed = nullptr);
  // Returns the hash of the trace. Failures are GoogleTest's.
  uint64_t Run();
  uint64_t events() const { return world_.events(); }

 private:
  // build.cc: the tree, the policies, the faults to come
  void Build();
  Node* AddNode(const std::string& id, Node* parent);
  void ScheduleFaults();
  void CrashClient(Edge& edge);
  void CrashNode(Node& node);
  void Pause(Peer& peer);
  void Partition();
  void SessionsCut(absl::Duration after);
  void StepClock(Peer& peer);

  // clients.cc
  void Join(Edge& edge);
  void LoseSession(Edge& edge);
  void TakeTask(Edge& edge, Node& node, uint64_t process, uint64_t round, uint64_t base);
  void Upload(Edge& edge, Node& node);
  // The same update through another aggregator as well.
  void Hedge(Edge& edge, uint64_t round);
  void Answered(Edge& edge, Node& node, uint64_t round, aggregation::Verdict verdict, bool again);
  void TakeOutcome(Edge& edge, uint64_t round, bool committed, bool included);

  // driver.cc: one node's machine and its messages
  void DropRound(Node& node);
  void Begin(Node& node, RoundPlan plan, uint64_t base);
  void NodeJoined(Node& node, const RoundMachine::Member& member);
  void NodeLeft(Node& node, const std::string& id, uint64_t epoch, bool for_good = false);
  void SendTask(Node& node, const std::string& member);
  void Offer(Node& node, Offered offer);
  bool MayCarry(const Node& node, const Offered& offer) const;
  void Received(Node& node, uint64_t ticket, const Offered& offer);
  void Forget(Node& node, uint64_t ticket);
  void Commit(Node& node, uint64_t ticket);
  void Act(Node& node, const std::vector<Action>& actions);
  void Rearm(Node& node);
  void Closed(Node& node);
  void Finish(Node& node, const Ending& how);
  void TellOutcome(Node& node, const RoundMachine::Member& member, const Ending& how);

  // claims.cc: clients that come within a round, as server/collector_supplement.cc and rack.cc
  void Enter(Node& node, const RoundMachine::Member& member);
  void Claim(Node& node, const std::vector<std::string>& ids, bool late);
  void ClaimAgain(Node& node);
  void TellClaims(Node& node);
  void ToParent(Node& node, std::function<void(Node& parent)> run);
  void ToChild(Node& node, Node& child, std::function<void()> run);
  void AnswerClaims(Node& node, const Action& action);
  void Answered(Node& node, const std::vector<std::string>& granted,
                const std::vector<std::string>& taken);
  void Granted(Node& node, const std::string& id);
  void Admit(Node& node, const std::string& id, bool late);
  void Taken(Node& node, const std::string& id);
  static bool IsTaken(const Node& node, const std::string& id) {
    const auto claim = node.claims.clients.find(id);
    return claim != node.claims.clients.end() && claim->second == ClaimState::kTaken;
  }
  bool Reopen(Node& node);
  void CollectSecond(Node& node);
  void SecondClosed(Node& node);
  bool AwaitsClaim(const Node& node, const Offered& offer) const;
  void TellCensus(Node& node);
  uint64_t CensusOf(const Node& node) const;

  // tiers.cc: children as aggregators, and the root
  void JoinParent(Node& node);
  void Forward(Node& node, uint64_t round_life);
  void Send(Node& node, uint64_t round_life, uint32_t part, const Load& load,
            const aggregation::RoundResult& result);
  void TakeNodeTask(Node& node, uint64_t process, RoundPlan plan, uint64_t base,
                    absl::Duration deadline_at);
  void TakeNodeOutcome(Node& node, uint64_t round, const Ending& how);
  void NextRound();
  void Apply(uint64_t round_life);
  void Saved(uint64_t round_life);

  // Once in a scenario, at the n-th occasion.
  bool Slips(Flaw flaw, int n) { return flaw_ == flaw && ++occasions_ == n; }

  // invariants.cc
  const Sums& ValueOf(const UpdateKey& key);
  uint64_t WeightOf(const UpdateKey& key, uint64_t round) const;
  void CheckAll();
  void Check(const Node& node);
  void CheckSums(Node& node);
  void CheckClosed(const Node& node);
  void CheckCommit(const Node& root);
  void CheckEnd();

  Edge* Client(const std::string& id) const {
    const auto it = clients_.find(id);
    return it == clients_.end() ? nullptr : it->second;
  }
  Node* Aggregator(const std::string& id) const {
    for (const auto& node : nodes_) {
      if (node->id == id) return node.get();
    }
    return nullptr;
  }
  Node& root() { return *nodes_[0]; }
  Node& SomeLeaf() { return *leaves_[world_.Below(leaves_.size())]; }

  const uint64_t seed_;
  const Flaw flaw_;
  const std::function<bool()> failed_;
  int occasions_ = 0;
  World world_;
  absl::flat_hash_map<UpdateKey, Sums> values_;
  std::vector<std::unique_ptr<Node>> nodes_;  // the root first
  std::vector<Node*> leaves_;                 // where clients join
  std::vector<std::unique_ptr<Edge>> edges_;
  std::map<std::string, Edge*> clients_;
  RoundPlan base_plan_;
  bool adaptive_ = false;
  double lateness_ = 0;   // of timers, at most, in seconds
  double disk_full_ = 0;  // chance at each checkpoint
  uint64_t budget_bytes_ = 0;

  // What the root has on disk, and what has been committed, ever.
  uint64_t committed_round_ = 0;
  uint64_t version_ = 0;
  Sums model_{};
  std::map<std::string, uint32_t> saved_children_;
  Sums model_by_books_{};        // from the contributors that the commits named
  uint64_t newest_version_ = 0;  // ever seen
  uint64_t round_ = 0;           // the last that ended in this life of the root
  std::set<UpdateKey> counted_;  // in committed models
  bool done_ = false;
};

}  // namespace tributary::sim
