// One node's buffers: what the server's collector, rack and root do.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/async_scenario.h"

namespace tributary::sim {

using aggregation::Admission;
using aggregation::AsyncAction;

void AsyncScenario::Open(AsyncNode& node, Buffer buffer) {
  world_.Trace(node.id, absl::StrCat("opens ", buffer.version, ", attempt ", buffer.attempt));
  node.version = buffer.version;
  node.attempt = buffer.attempt;
  node.ledger = {};
  node.buffering = true;
  node.waiting_outcome = false;
  node.early.reset();
  ++node.life;
  aggregation::AsyncPlan plan = plan_;
  plan.attempt = node.attempt;
  if (node.parent != nullptr) {
    plan.buffer = 0;
    plan.flush_after = absl::InfiniteDuration();
  }
  Act(node, node.machine->Open(plan, node.version, world_.now()));
  std::vector<uint64_t> waiting;
  for (auto& [ticket, attempt] : node.attempts) {
    if (std::exchange(attempt.waits, false)) waiting.push_back(ticket);
  }
  for (const uint64_t ticket : waiting) {
    if (node.attempts.contains(ticket)) Whole(node, ticket);
  }
}

void AsyncScenario::Act(AsyncNode& node, const AsyncMachine::Actions& actions) {
  for (const AsyncAction& action : actions) {
    const auto session = node.sessions.find(action.member);
    const auto client = clients_.find(action.member);
    AsyncNode* rack = nullptr;
    for (const auto& other : nodes_) {
      if (other->id == action.member) rack = other.get();
    }
    switch (action.kind) {
      case AsyncAction::Kind::kTask:
        if (session == node.sessions.end()) break;
        if (rack != nullptr) {
          Down(node, *rack, session->second,
               [this, rack, buffer = Buffer{node.version, node.attempt}] {
                 TakeRackTask(*rack, buffer);
               });
        } else {
          Down(node, *client->second, session->second,
               [this, &edge = *client->second, base = node.version] { TakeTask(edge, base); });
        }
        break;
      case AsyncAction::Kind::kCollect:
        if (session == node.sessions.end()) break;
        Down(node, *rack, session->second,
             [this, rack, version = node.version] { TakeCollect(*rack, version); });
        break;
      case AsyncAction::Kind::kAbort:
        node.attempts.erase(action.ticket);
        break;
      case AsyncAction::Kind::kStarved:
        world_.Seen("starved");
        break;
      case AsyncAction::Kind::kClosed:
        Closed(node);
        return;
    }
  }
  Rearm(node);
}

// The timer, and what a rack says of its buffer.
void AsyncScenario::Rearm(AsyncNode& node) {
  const uint64_t timer = ++node.timer;
  if (const auto next = node.machine->NextTimer(); next.has_value()) {
    const absl::Duration late = world_.Chance(0.2) ? world_.Seconds(0.5) : absl::ZeroDuration();
    world_.At(node, std::max(*next - world_.now(), absl::ZeroDuration()) + late,
              [this, &node, timer] {
                if (node.timer == timer) Act(node, node.machine->Timer(world_.now()));
              });
  }
  if (node.parent == nullptr || !node.buffering || node.waiting_outcome) return;
  if (node.stream == nullptr) return;
  Up(node, root(), node.stream,
     [this, &node, stream = node.stream, version = node.version, n = node.machine->buffered()] {
       Act(root(), root().machine->Buffered(node.id, stream->epoch, version, n, world_.now()));
     });
}

void AsyncScenario::Fold(AsyncNode& node, uint64_t ticket) {
  world_.At(node, world_.Seconds(0.2), [this, &node, ticket] {
    const auto it = node.attempts.find(ticket);
    if (it == node.attempts.end()) return;
    const auto reply = std::move(it->second.reply);
    node.attempts.erase(it);
    if (reply) reply(true);
    Act(node, node.machine->Folded(ticket, world_.now()));
  });
}

void AsyncScenario::Whole(AsyncNode& node, uint64_t ticket) {
  AsyncAttempt& attempt = node.attempts.at(ticket);
  const auto verdict = node.machine->Commit(ticket);
  switch (verdict.kind) {
    case AsyncMachine::Verdict::Kind::kFold:
      for (auto& [key, weight] : attempt.load.weights) {
        if (!attempt.aggregator) weight = verdict.weight;
        EXPECT_TRUE(node.ledger.weights.emplace(key, weight).second) << key.first;
        EXPECT_FALSE(counted_.contains(key) && node.parent == nullptr)
            << key.first << " from " << key.second << " is folded again";
      }
      for (size_t i = 0; i < attempt.load.sums.size(); ++i) {
        node.ledger.sums[i] += attempt.load.sums[i] * (attempt.aggregator ? 1 : verdict.weight);
      }
      Fold(node, ticket);
      break;
    case AsyncMachine::Verdict::Kind::kWait:
      world_.Seen("waits for the next buffer");
      attempt.waits = true;
      break;
    case AsyncMachine::Verdict::Kind::kStale:
    case AsyncMachine::Verdict::Kind::kDuplicate:
      world_.Seen(attempt.aggregator ? "sum dropped" : "dropped when whole");
      node.attempts.erase(ticket);
      break;
  }
  Rearm(node);
}

void AsyncScenario::Closed(AsyncNode& node) {
  Rearm(node);
  if (node.parent == nullptr) return Apply(node);
  if (node.pending.has_value()) {
    Finish(node, false, false);
    const auto [version, attempt] = *std::exchange(node.pending, std::nullopt);
    return Open(node, {version, attempt});
  }
  node.waiting_outcome = true;
  if (node.stream != nullptr) {
    Up(node, root(), node.stream, [this, &node, stream = node.stream, version = node.version] {
      Act(root(), root().machine->Buffered(node.id, stream->epoch, version, 0, world_.now()));
    });
  }
  if (node.ledger.weights.empty()) {
    Decline(node, node.version);
  } else {
    SendSum(node, 20);
  }
  if (const auto outcome = std::exchange(node.early, std::nullopt); outcome.has_value()) {
    TakeRackOutcome(node, node.version, *outcome);
  }
}

void AsyncScenario::Finish(AsyncNode& node, bool committed, bool included) {
  const aggregation::AsyncResult result = node.machine->Result();
  node.buffering = node.waiting_outcome = false;
  ++node.life;
  for (const Contribution& c : result.contributions) {
    const auto session = node.sessions.find(c.id);
    if (session == node.sessions.end()) continue;
    AsyncEdge& edge = *clients_.at(c.id);
    Down(node, edge, session->second,
         [this, &edge, base = c.base, in = committed && included] { TakeOutcome(edge, base, in); });
  }
  for (const auto& other : nodes_) {
    const auto session = node.sessions.find(other->id);
    if (session == node.sessions.end()) continue;
    const bool in =
        included && std::binary_search(result.children.begin(), result.children.end(), other->id);
    Down(node, *other, session->second, [this, &rack = *other, version = node.version, in] {
      TakeRackOutcome(rack, version, in);
    });
  }
  if (committed) {
    node.last_bases.clear();
    if (included) {
      for (const Contribution& c : result.contributions) node.last_bases[c.id] = c.base;
    }
  }
  node.ledger = {};
  node.machine->Settle(committed && included);
  Rearm(node);
}

// ---- Racks

void AsyncScenario::TakeRackTask(AsyncNode& rack, Buffer buffer) {
  if (rack.buffering && Buffer{rack.version, rack.attempt} == buffer) {
    rack.pending.reset();
    world_.Seen("buffer goes on");
    if (!rack.waiting_outcome) return Rearm(rack);
    if (!rack.ledger.weights.empty()) return SendSum(rack, 20);
    Finish(rack, false, false);  // closed with nothing in it: the parent opens it again
    return Open(rack, buffer);
  }
  const std::pair pending(buffer.version, buffer.attempt);
  rack.pending = pending;
  if (rack.buffering) {
    world_.Seen("buffer given up");
    if (rack.waiting_outcome) {
      Finish(rack, false, false);
    } else {
      return Act(rack, rack.machine->Close(world_.now()));
    }
  }
  world_.At(rack, world_.Seconds(0.5), [this, &rack, pending, buffer] {  // the model comes
    if (rack.pending != pending || rack.buffering) return;
    rack.pending.reset();
    Open(rack, buffer);
  });
}

void AsyncScenario::TakeCollect(AsyncNode& rack, uint64_t version) {
  if (rack.buffering && rack.version == version) {
    if (!rack.waiting_outcome) Act(rack, rack.machine->Close(world_.now()));
    return;
  }
  if (rack.pending.has_value() && rack.pending->first == version) rack.pending.reset();
  world_.Seen("collected before it began");
  Decline(rack, version);
}

void AsyncScenario::Decline(AsyncNode& rack, uint64_t version) {
  if (rack.stream == nullptr) return;
  Up(rack, root(), rack.stream, [this, &rack, stream = rack.stream, version] {
    if (version != root().version) return;
    Act(root(), root().machine->Declined(rack.id, stream->epoch, world_.now()));
  });
}

void AsyncScenario::TakeRackOutcome(AsyncNode& rack, uint64_t version, bool included) {
  if (!rack.buffering || rack.version != version) return;
  if (!rack.waiting_outcome) {
    rack.early = included;
    return Act(rack, rack.machine->Close(world_.now()));
  }
  if (included) {
    for (const auto& [key, weight] : rack.ledger.weights) EXPECT_TRUE(counted_.contains(key));
  } else {
    world_.Seen("sum left out");
  }
  Finish(rack, true, included);
  if (!rack.pending.has_value()) return;
  const auto [next, attempt] = *std::exchange(rack.pending, std::nullopt);
  Open(rack, {next, attempt});
}

// Over its link, again where that breaks.
void AsyncScenario::SendSum(AsyncNode& rack, int tries) {
  if (tries == 0) return;
  const aggregation::AsyncResult result = rack.machine->Result();
  world_.At(rack, absl::Seconds(6), [this, &rack, tries, life = rack.life] {
    if (rack.life == life && rack.waiting_outcome) SendSum(rack, tries - 1);
  });
  // A link ends with the process at either end, and what is on it.
  world_.Send(rack, root(),
              [this, &rack, process = rack.process, epoch = rack.epoch, parent = root().process,
               buffer = Buffer{rack.version, rack.attempt}, load = rack.ledger, result] {
                if (root().process != parent || rack.process != process) return;
                SumArrives(rack, process, epoch, buffer, load, result.contributions);
              });
}

void AsyncScenario::SumArrives(AsyncNode& rack, uint64_t rack_process, uint64_t rack_epoch,
                               Buffer buffer, const AsyncLoad& load,
                               const std::vector<Contribution>& contributions) {
  uint64_t weight = 0;
  for (const Contribution& c : contributions) weight += c.weight;
  AsyncNode& node = root();
  const Admission a = node.machine->OfferSum(rack.id, rack_epoch, buffer.version, buffer.attempt,
                                             weight, contributions, world_.now());
  if (a.replaces != 0) node.attempts.erase(a.replaces);
  if (a.verdict != aggregation::Verdict::kAdmit) {
    world_.Seen(absl::StrCat("sum refused ", a.reason));
    Rearm(node);
    if (a.verdict == aggregation::Verdict::kDuplicate) return;
    if (!node.buffering || buffer != Buffer{node.version, node.attempt}) return;
    Act(node, node.machine->Declined(rack.id, rack_epoch, world_.now()));
    return;
  }
  AsyncAttempt& attempt = node.attempts[a.ticket];
  attempt.member = rack.id;
  attempt.load = load;
  attempt.aggregator = true;
  Rearm(node);
  world_.At(node, world_.Seconds(3), [this, &node, &rack, rack_process, ticket = a.ticket] {
    if (!node.attempts.contains(ticket)) return;
    const bool there = rack.alive && rack.process == rack_process && world_.Reaches(rack, node);
    if (there && !world_.Chance(0.05)) return Whole(node, ticket);
    world_.Seen("sum broke off");
    node.attempts.erase(ticket);
    Act(node, node.machine->Aborted(ticket, world_.now()));
  });
}

// ---- The root

void AsyncScenario::Apply(AsyncNode& node) {
  world_.At(node, world_.Seconds(0.5), [this, &node, life = node.life] {
    if (node.life != life) return;
    if (node.ledger.weights.empty() || world_.Chance(disk_full_)) {
      world_.Seen(node.ledger.weights.empty() ? "empty buffer" : "disk full");
      const uint64_t again = node.attempt + 1;
      Finish(node, false, false);
      return Open(node, {version_, again});
    }
    const aggregation::AsyncResult result = node.machine->Result();
    CheckCommit(node);
    saved_counted_ = node.machine->Counted();
    saved_counted_.insert(saved_counted_.end(), result.contributions.begin(),
                          result.contributions.end());
    saved_newest_ = result.contributions;
    ++version_;
    world_.Seen("committed");
    world_.Trace(node.id, absl::StrCat("commits ", version_, " of ", result.contributions.size()));
    if (version_ >= target_) {
      done_ = true;
      return;
    }
    // A crash between the commit and its being told is one of the moments that count.
    world_.At(node, world_.Seconds(0.3), [this, &node, life] {
      if (node.life != life) return;
      Finish(node, true, true);
      Open(node, {version_, 0});
    });
  });
}

}  // namespace tributary::sim
