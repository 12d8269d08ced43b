// Aggregators as children, and the root: rounds, checkpoints, resuming.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {
namespace {

constexpr uint64_t kRounds = 4;
constexpr absl::Duration kForwarding = absl::Seconds(2);  // a rack's deadline is so much earlier
constexpr absl::Duration kGiveUp = absl::Minutes(10);     // [run] startup_limit_s, in effect

}  // namespace

using aggregation::Verdict;

void Scenario::JoinParent(Node& node) {
  if (!node.alive || done_) return;
  Node& parent = *node.parent;
  if (!parent.alive || !world_.Reaches(node, parent)) {
    world_.At(node, absl::Seconds(1), [this, &node] { JoinParent(node); });
    return;
  }
  world_.Send(node, parent, [this, &node, &parent, epoch = node.epoch] {
    if (node.epoch != epoch) return;
    NodeJoined(parent,
               {.id = node.id, .aggregator = true, .epoch = epoch, .clients = CensusOf(node)});
    world_.Send(parent, node, [this, &node] { ClaimAgain(node); });
  });
}

void Scenario::TakeNodeTask(Node& node, uint64_t process, RoundPlan plan, uint64_t base,
                            absl::Duration deadline_at) {
  if (!node.stream.Task(process, plan.round)) return;
  const bool running = node.machine && !node.finished;
  if (running && node.plan.round == plan.round && node.base == base) {
    Forward(node, node.round_life);  // asked again: what was collected still counts
    ClaimAgain(node);
    return;
  }
  auto begin = [this, &node, plan, base, deadline_at]() mutable {
    plan.last_call = plan.last_call * 0.4;
    plan.reopens = true;
    plan.deadline = std::max(deadline_at - world_.now() - kForwarding, absl::Seconds(1));
    Begin(node, plan, base);
  };
  if (!running) {
    begin();
    return;
  }
  world_.Seen("round given up for the next");
  if (node.machine->closed()) {
    Finish(node, {});
    begin();
    return;
  }
  node.pending = begin;
  Act(node, node.machine->CloseNow(world_.now()));
}

// The first sum, and where there is one, the second after it.
void Scenario::Forward(Node& node, uint64_t round_life) {
  if (node.round_life != round_life || node.finished || !node.first_result.has_value()) return;
  const bool reopened = node.machine->part() > 0;
  node.first_in = false;
  if (node.first_result->clients > 0 || !node.second.has_value()) {
    Send(node, round_life, 0, reopened ? node.first : node.ledger, *node.first_result);
  } else {
    Send(node, round_life, 0, *node.second, *node.second_result);
  }
}

void Scenario::Send(Node& node, uint64_t round_life, uint32_t part, const Load& load,
                    const aggregation::RoundResult& result) {
  Node& parent = *node.parent;
  const auto send = [this, &node, &parent, epoch = node.epoch, process = node.process, round_life,
                     result, load, part] {
    const auto still = [&node, process, round_life] {
      return node.alive && node.process == process && node.round_life == round_life &&
             !node.finished;
    };
    if (!parent.machine || parent.finished || !still()) return;
    if (parent.plan.round != node.plan.round || parent.base != node.base) return;
    if (result.clients == 0) {
      Act(parent, parent.machine->Reported(node.id, epoch, 0, world_.now()));
      return;
    }
    const auto reply = [this, &node, still, round_life, part, load, result](Verdict verdict,
                                                                            bool again) {
      if (!still()) return;
      if (verdict == Verdict::kAdmit || verdict == Verdict::kDuplicate) {
        if (part > 0) world_.Seen("second sum in");
        const bool first = !node.first_in && node.first_result->clients > 0 && part == 0;
        node.first_in = true;
        if (node.second.has_value() && first) {
          Send(node, round_life, 1, *node.second, *node.second_result);
        } else if (node.second.has_value()) {
          node.claims.open = false;
          TellClaims(node);
        }
      } else if (again) {
        world_.At(node, world_.Seconds(3), [this, &node, round_life, part, load, result] {
          if (node.round_life == round_life && !node.finished) {
            Send(node, round_life, part, load, result);
          }
        });
      } else if (node.machine->part() > 0) {
        node.claims.open = false;
        TellClaims(node);
      }
    };
    Offer(parent, {.id = node.id,
                   .epoch = epoch,
                   .round = node.plan.round,
                   .weight = static_cast<int64_t>(result.weight),
                   .load = load,
                   .whole = [this, &node, &parent,
                             still] { return still() && world_.Reaches(node, parent); },
                   .reply = reply,
                   .part = part});
  };
  world_.Send(node, parent, send);
}

void Scenario::TakeNodeOutcome(Node& node, uint64_t round, const Ending& how) {
  if (!node.machine || node.finished || node.plan.round != round) return;
  Ending mine = how;
  mine.parts = how.included ? std::max(how.parts, 1u) : 0;
  if (mine.parts > 0 && node.first_result.has_value() && node.first_result->clients == 0) {
    ++mine.parts;  // the first was empty, and never sent
  }
  if (!node.machine->closed()) {
    EXPECT_FALSE(how.included && node.machine->part() == 0)
        << "a rack that has not closed its round is told that it is in";
    if (node.early.has_value()) return;
    node.early = mine;
    Act(node, node.machine->CloseNow(world_.now()));
    return;
  }
  Finish(node, mine);
}

// ---- The root

void Scenario::NextRound() {
  if (done_ || (root().machine && !root().finished)) return;
  if (round_ >= kRounds || world_.now() > kGiveUp) {
    done_ = true;
    return;
  }
  if (root().sessions.empty()) {
    world_.At(root(), absl::Seconds(1), [this] { NextRound(); });
    return;
  }
  RoundPlan plan = base_plan_;
  plan.round = round_ + 1;
  Begin(root(), plan, version_);
}

// The mean is applied and the checkpoint written; on a disk that may be full.
void Scenario::Apply(uint64_t round_life) {
  if (root().round_life != round_life) return;
  if (world_.Chance(disk_full_)) {
    world_.Seen("disk full");
    round_ = root().plan.round;
    Finish(root(), {});
    world_.At(root(), world_.Seconds(0.3), [this] { NextRound(); });
    return;
  }
  if (Slips(Flaw::kCountsAgain, 1)) counted_.insert(root().ledger.updates.begin()->first);
  CheckCommit(root());
  round_ = committed_round_ = version_ = root().plan.round;
  for (size_t i = 0; i < model_.size(); ++i) model_[i] += root().ledger.sums[i];
  if (Slips(Flaw::kPublishesOther, 1)) ++model_[0];
  if (Slips(Flaw::kGoesBack, 2)) committed_round_ = version_ = newest_version_ - 1;
  const aggregation::RoundResult result = root().machine->Result();
  saved_children_.clear();
  for (const std::string& id : result.children) saved_children_[id] = 1;
  for (const auto& [id, parts] : result.parts) saved_children_[id] = parts;
  world_.Trace("root", absl::StrCat("committed ", version_));
  world_.Seen("committed");
  // A crash in between: committed, and nobody told.
  world_.At(root(), world_.Seconds(0.3), [this, round_life] { Saved(round_life); });
}

void Scenario::Saved(uint64_t round_life) {
  if (root().round_life != round_life) return;
  Finish(root(), {true, true, aggregation::kMostParts, true});
  NextRound();
}

}  // namespace tributary::sim
