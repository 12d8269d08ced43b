// The asynchronous arm: tasks, updates, racks' sums, versions.
#include "simulate/async_arm.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "simulate/internal/network.h"

namespace tributary::simulate {

using aggregation::AsyncAction;
using aggregation::AsyncMachine;
using aggregation::AsyncPlan;

namespace {
constexpr int64_t kExample = 65536;
}

struct AsyncArm::Node : RackPlace {
  explicit Node(const RackPlace& place) : RackPlace(place) {}
  uint32_t index = 0;
  std::string id;
  bool root = false;
  AsyncMachine machine;
  uint64_t timer = 0;
  std::optional<absl::Duration> armed;
  uint64_t version = 0;
  bool buffering = false;
  uint64_t told = 0;              // of buffered()
  uint64_t ticket = 0;            // of its sum, at the root
  std::vector<uint32_t> waiting;  // clients whose updates are whole
  double ingress_free = 0;
  double egress_free = 0;
  double fold_free = 0;
};

AsyncArm::AsyncArm(const Config& config, const std::string& transport)
    : config_(config),
      core_(NetworkOptions(config, transport)),
      population_(config.clients, config.seed, UpdateBytes(config), ModelBytes(config)) {
  result_.policy = "fedbuff";
  result_.transport = transport;
  clients_.resize(population_.size());
  std::vector<RackPlace> places = AddNodes(config, population_.size(), &core_);
  places.emplace_back();  // the root's
  for (uint32_t r = 0; r < places.size(); ++r) {
    nodes_.push_back(std::make_unique<Node>(places[r]));
    Node& node = *nodes_.back();
    node.index = r;
    node.root = r + 1 == places.size();
    node.id = node.root ? "root" : absl::StrCat("r", r);
    for (uint32_t c = node.first; c < node.end; ++c) clients_[c].rack = r;
  }
}

AsyncArm::~AsyncArm() = default;

uint32_t AsyncArm::IndexOf(const std::string& id) const {
  return static_cast<uint32_t>(std::strtoul(id.c_str() + 1, nullptr, 10));
}

void AsyncArm::After(double seconds, Kind kind, uint64_t a, uint64_t b) {
  core_.After(absl::Seconds(seconds), this, uint64_t{static_cast<uint8_t>(kind)} << 56 | a, b);
}

ArmResult AsyncArm::Run() {
  Node& root = *nodes_.back();
  for (size_t r = 0; r + 1 < nodes_.size(); ++r) {
    Node& rack = *nodes_[r];
    root.machine.Joined({.id = rack.id, .aggregator = true, .epoch = 1}, now());
    for (uint32_t c = rack.first; c < rack.end; ++c) After(0, Kind::kBack, c, 0);
  }
  Open(root, 0);
  while (!done_ && core_.Step()) {
  }
  result_.virtual_s = now_s();
  result_.network = core_.stats();
  result_.trace = core_.trace();
  if (result_.accepted > 0) {
    result_.staleness = static_cast<double>(staleness_) / static_cast<double>(result_.accepted);
  }
  return result_;
}

void AsyncArm::Rearm(Node& node) {
  const auto next = node.machine.NextTimer();
  if (next != node.armed) {
    node.armed = next;
    ++node.timer;
    if (next.has_value()) {
      After(absl::ToDoubleSeconds(std::max(*next - now(), absl::ZeroDuration())), Kind::kTimer,
            node.index, node.timer);
    }
  }
  if (node.root || !node.buffering || node.machine.buffered() == node.told) return;
  node.told = node.machine.buffered();
  After(config_.racks.latency_s, Kind::kBuffered, node.index, node.version << 32 | node.told);
}

void AsyncArm::Open(Node& node, uint64_t version) {
  AsyncPlan plan;
  plan.max_staleness = config_.max_staleness;
  plan.task_limit = absl::Seconds(config_.deadline_s);
  plan.max_weight = uint64_t{1} << 40;
  plan.max_client_weight = uint64_t{1} << 32;
  plan.buffer = node.root ? config_.buffer : 0;
  plan.flush_after = node.root ? absl::Seconds(config_.flush_s) : absl::InfiniteDuration();
  if (config_.concurrency > 0 && !node.root) {
    const uint64_t all = population_.size();
    plan.concurrency = std::max<uint64_t>(
        1, config_.concurrency * node.end / all - config_.concurrency * node.first / all);
  }
  node.version = version;
  node.buffering = true;
  node.told = 0;
  if (node.root) opened_ = now();
  Act(node, node.machine.Open(plan, version, now()));
  const auto waiting = std::exchange(node.waiting, {});
  for (const uint32_t c : waiting) Whole(c);
}

void AsyncArm::Act(Node& node, const AsyncMachine::Actions& actions) {
  for (const AsyncAction& action : actions) {
    switch (action.kind) {
      case AsyncAction::Kind::kTask:
        if (node.root) {
          const uint32_t rack = IndexOf(action.member);
          core_.Send(nodes_[rack]->down, ModelBytes(config_), this,
                     uint64_t{static_cast<uint8_t>(Kind::kModel)} << 56 | rack, node.version);
        } else {
          StartClient(node, IndexOf(action.member));
        }
        break;
      case AsyncAction::Kind::kCollect:
        After(config_.racks.latency_s, Kind::kCollect, IndexOf(action.member), node.version);
        break;
      case AsyncAction::Kind::kAbort:
        if (node.root) nodes_[IndexOf(action.member)]->ticket = 0;  // racks' clients do not rejoin
        break;
      case AsyncAction::Kind::kStarved:
        break;
      case AsyncAction::Kind::kClosed:
        return Closed(node);
    }
  }
  Rearm(node);
}

void AsyncArm::StartClient(Node& rack, uint32_t c) {
  Client& client = clients_[c];
  ++client.task;
  client.base = rack.version;
  client.ticket = 0;
  if (!population_.Available(c, now())) return After(0, Kind::kAway, c, client.task);
  ++result_.asked;
  const double bytes = static_cast<double>(ModelBytes(config_));
  rack.egress_free =
      std::max(rack.egress_free, now_s()) + bytes / config_.racks.ingress_bytes_per_s;
  const double there = std::max(now_s() + population_.download_s(c), rack.egress_free) - now_s();
  const ClientRound draw = population_.Draw(c, client.task);
  if (draw.dies) {
    After(there + draw.dies_after_s, Kind::kDied, c, client.task);
  } else {
    After(there + draw.train_s + population_.latency_s(), Kind::kOffer, c, client.task);
  }
}

void AsyncArm::Offer(uint32_t c) {
  Client& client = clients_[c];
  Node& rack = *nodes_[client.rack];
  const auto a =
      rack.machine.Offer(population_.traits(c).id, client.epoch, client.base, kExample, now());
  if (a.verdict != aggregation::Verdict::kAdmit) {
    ++result_.dropped;
    return Rearm(rack);
  }
  const auto bytes = static_cast<double>(UpdateBytes(config_));
  rack.ingress_free =
      std::max(rack.ingress_free, now_s()) + bytes / config_.racks.ingress_bytes_per_s;
  const double whole = std::max(now_s() + population_.upload_s(c), rack.ingress_free);
  rack.fold_free = std::max(rack.fold_free, whole) + bytes / config_.racks.fold_bytes_per_s;
  client.ticket = a.ticket;
  After(rack.fold_free - now_s(), Kind::kWhole, c, client.task);
  Rearm(rack);
}

// Its folding has been waited for: what is committed is folded at once.
void AsyncArm::Whole(uint32_t c) {
  Client& client = clients_[c];
  Node& rack = *nodes_[client.rack];
  const auto verdict = rack.machine.Commit(client.ticket);
  switch (verdict.kind) {
    case AsyncMachine::Verdict::Kind::kFold:
      return Act(rack, rack.machine.Folded(client.ticket, now()));
    case AsyncMachine::Verdict::Kind::kWait:
      rack.waiting.push_back(c);
      break;
    default:
      ++result_.dropped;
  }
  Rearm(rack);
}

void AsyncArm::Closed(Node& node) {
  Rearm(node);
  if (!node.root) {
    if (node.machine.Result().contributions.empty()) {
      After(config_.racks.latency_s, Kind::kSum, node.index, node.version);
    } else {
      core_.Send(node.up, PartialBytes(config_), this,
                 uint64_t{static_cast<uint8_t>(Kind::kSum)} << 56 | node.index, node.version);
    }
    return;
  }
  const auto bytes = static_cast<double>(ModelBytes(config_));
  After(bytes / config_.root.apply_bytes_per_s + bytes / config_.root.commit_bytes_per_s,
        Kind::kNext, node.index, 0);
}

void AsyncArm::SumArrives(Node& rack) {
  AsyncMachine& root = nodes_.back()->machine;
  const aggregation::AsyncResult sum = rack.machine.Result();
  if (sum.contributions.empty()) {
    return Act(*nodes_.back(), root.Declined(rack.id, 1, now()));
  }
  const auto a = root.OfferSum(rack.id, 1, rack.version, 0, sum.weight, sum.contributions, now());
  if (a.verdict != aggregation::Verdict::kAdmit ||
      root.Commit(a.ticket).kind != AsyncMachine::Verdict::Kind::kFold) {
    return Rearm(*nodes_.back());
  }
  Act(*nodes_.back(), root.Folded(a.ticket, now()));
}

void AsyncArm::Finish(Node& node, bool included) {
  node.buffering = false;
  node.machine.Settle(included);
  Rearm(node);
}

void AsyncArm::OnSimEvent(uint64_t a, uint64_t b) {
  const auto index = static_cast<uint32_t>(a & 0xFFFFFF);
  const auto current = [&](uint64_t task) { return clients_[index].task == task; };
  switch (static_cast<Kind>(a >> 56)) {
    case Kind::kTimer: {
      Node& node = *nodes_[index];
      if (node.timer != b) return;
      node.armed.reset();
      return Act(node, node.machine.Timer(now()));
    }
    case Kind::kModel:
      if (b == version_) Open(*nodes_[index], b);
      return;
    case Kind::kOffer:
      if (current(b)) Offer(index);
      return;
    case Kind::kWhole:
      if (current(b)) Whole(index);
      return;
    case Kind::kDied: {
      if (!current(b)) return;
      Node& rack = *nodes_[clients_[index].rack];
      const uint64_t epoch = clients_[index].epoch++;
      Act(rack, rack.machine.Left(population_.traits(index).id, epoch, now()));
      // Back after as long as a training takes.
      return After(config_.clients.train_s, Kind::kBack, index, b);
    }
    case Kind::kAway: {
      if (!current(b)) return;
      Node& rack = *nodes_[clients_[index].rack];
      const uint64_t epoch = clients_[index].epoch++;
      After(population_.look_again_s(), Kind::kBack, index, b);
      return Act(rack, rack.machine.Left(population_.traits(index).id, epoch, now()));
    }
    case Kind::kBack: {
      if (!population_.Available(index, now())) {
        return After(population_.look_again_s(), Kind::kBack, index, b);
      }
      Node& rack = *nodes_[clients_[index].rack];
      return Act(rack,
                 rack.machine.Joined(
                     {.id = population_.traits(index).id, .epoch = clients_[index].epoch}, now()));
    }
    case Kind::kCollect: {
      Node& rack = *nodes_[index];
      if (rack.buffering && rack.version == b) return Act(rack, rack.machine.Close(now()));
      // Its model is not there yet.
      return Act(*nodes_.back(), nodes_.back()->machine.Declined(rack.id, 1, now()));
    }
    case Kind::kBuffered:
      return Act(*nodes_.back(), nodes_.back()->machine.Buffered(nodes_[index]->id, 1, b >> 32,
                                                                 b & 0xFFFFFFFF, now()));
    case Kind::kSum:
      if (nodes_[index]->version == b && b == version_) SumArrives(*nodes_[index]);
      return;
    case Kind::kNext: {
      Node& root = *nodes_.back();
      const aggregation::AsyncResult result = root.machine.Result();
      const bool any = !result.contributions.empty();
      for (const auto& c : result.contributions) staleness_ += c.staleness;
      result_.accepted += result.contributions.size();
      if (any) {
        result_.round_s.push_back(absl::ToDoubleSeconds(now() - opened_));
        ++version_;
      } else {
        ++result_.failed;
      }
      for (size_t r = 0; r + 1 < nodes_.size(); ++r) {
        Node& rack = *nodes_[r];
        if (!rack.buffering) continue;
        const bool in = std::binary_search(result.children.begin(), result.children.end(), rack.id);
        if (!rack.machine.closed()) rack.machine.Close(now());
        Finish(rack, in);
      }
      Finish(root, any);
      if (version_ < config_.rounds && result_.failed < config_.rounds) {
        Open(root, version_);
      } else {
        done_ = true;
      }
      return;
    }
  }
}

}  // namespace tributary::simulate
