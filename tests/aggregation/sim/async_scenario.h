// One seeded scenario of an asynchronous run: a root, perhaps racks, clients, faults, and books of
// its own by which all is checked after every event. The drivers do what server/ does.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>

#include "aggregation/async.h"
#include "tests/aggregation/sim/world.h"

namespace tributary::sim {

using aggregation::AsyncMachine;
using aggregation::Contribution;

// (client, version that it was trained from): what makes an update one.
using AsyncKey = std::pair<std::string, uint64_t>;
using AsyncSums = std::array<uint64_t, 3>;  // of a model of three elements, modulo 2^64

// A session's stream: reliable and in order until it is cut.
struct Stream {
  bool alive = true;
  uint64_t epoch = 0;
  absl::Duration down_at, up_at;  // when the last message of each direction arrives
};

struct AsyncLoad {
  std::map<AsyncKey, uint64_t> weights;  // as folded; before that, as offered
  AsyncSums sums{};
};

struct AsyncAttempt {
  std::string member;
  AsyncLoad load;
  bool aggregator = false;
  bool folding = false;
  bool waits = false;
  std::function<void(bool accepted)> reply;
};

struct AsyncNode : Peer {
  AsyncNode* parent = nullptr;
  std::shared_ptr<Stream> stream;                           // to the parent
  std::map<std::string, std::shared_ptr<Stream>> sessions;  // from below
  std::unique_ptr<AsyncMachine> machine;
  uint64_t version = 0;  // of the buffer
  uint64_t attempt = 0;  // at it
  uint64_t life = 0;     // counts buffers: what was scheduled for an earlier one is void
  bool buffering = false;
  bool waiting_outcome = false;
  std::optional<bool> early;                             // the outcome, come before it was closed
  std::optional<std::pair<uint64_t, uint64_t>> pending;  // version and attempt to begin next
  std::map<uint64_t, AsyncAttempt> attempts;
  AsyncLoad ledger;
  std::map<std::string, uint64_t> last_bases;  // of what the last version counted, by client
  uint64_t timer = 0;
};

struct AsyncEdge : Peer {
  AsyncNode* node = nullptr;
  std::shared_ptr<Stream> stream;
  uint64_t task_life = 0;
  std::optional<uint64_t> base;  // of the task or update that it has
  bool trained = false;
  bool accepted = false;
  int64_t weight = 1;
};

class AsyncScenario {
 public:
  AsyncScenario(uint64_t seed, std::map<std::string, int>* seen);
  uint64_t Run();  // the trace's hash; failures are GoogleTest's
  uint64_t events() const { return world_.events(); }

 private:
  // async_scenario.cc: the world, its faults, and what must hold
  void Build();
  void ScheduleFaults();
  void CrashNode(AsyncNode& node);
  void CrashClient(AsyncEdge& edge);
  AsyncNode& Leaf();
  Peer& AnyPeer();
  static AsyncSums ValueOf(const AsyncKey& key);
  void Check(const AsyncNode& node);
  void CheckCommit(const AsyncNode& root);
  using Then = std::function<void()>;
  void Down(AsyncNode& from, Peer& to, const std::shared_ptr<Stream>& stream, Then run);
  void Up(Peer& from, AsyncNode& to, const std::shared_ptr<Stream>& stream, Then run);
  void Cut(const std::shared_ptr<Stream>& stream, AsyncNode& up, Peer& down, bool rejoins);

  // async_clients.cc
  void JoinClient(AsyncEdge& edge);
  void JoinRack(AsyncNode& rack);
  void TakeTask(AsyncEdge& edge, uint64_t base);
  void Upload(AsyncEdge& edge, int tries);
  void TakeOutcome(AsyncEdge& edge, uint64_t base, bool included);

  // async_nodes.cc
  struct Buffer {
    uint64_t version = 0;
    uint64_t attempt = 0;
    bool operator==(const Buffer&) const = default;
  };
  void Open(AsyncNode& node, Buffer buffer);
  void Act(AsyncNode& node, const AsyncMachine::Actions& actions);
  void Rearm(AsyncNode& node);
  void Fold(AsyncNode& node, uint64_t ticket);
  void Whole(AsyncNode& node, uint64_t ticket);
  void Closed(AsyncNode& node);
  void Finish(AsyncNode& node, bool committed, bool included);
  void SendSum(AsyncNode& rack, int tries);
  void SumArrives(AsyncNode& rack, uint64_t rack_process, uint64_t rack_epoch, Buffer buffer,
                  const AsyncLoad& load, const std::vector<Contribution>& contributions);
  void Decline(AsyncNode& rack, uint64_t version);
  void TakeRackTask(AsyncNode& rack, Buffer buffer);
  void TakeCollect(AsyncNode& rack, uint64_t version);
  void TakeRackOutcome(AsyncNode& rack, uint64_t version, bool included);
  void Apply(AsyncNode& root);

  AsyncNode& root() { return *nodes_[0]; }

  const uint64_t seed_;
  World world_;
  std::vector<std::unique_ptr<AsyncNode>> nodes_;
  std::vector<std::unique_ptr<AsyncEdge>> edges_;
  std::map<std::string, AsyncEdge*> clients_;
  aggregation::AsyncPlan plan_;
  double disk_full_ = 0;
  uint64_t target_ = 12;  // versions
  uint64_t version_ = 0;  // on disk
  std::vector<Contribution> saved_counted_, saved_newest_;
  std::set<AsyncKey> counted_;  // ever
  bool done_ = false;
};

}  // namespace tributary::sim
