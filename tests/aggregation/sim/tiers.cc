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
    if (node.epoch == epoch)
      NodeJoined(parent, {.id = node.id, .aggregator = true, .epoch = epoch});
  });
}

void Scenario::TakeNodeTask(Node& node, uint64_t process, RoundPlan plan, uint64_t base,
                            absl::Duration deadline_at) {
  if (!node.stream.Task(process, plan.round)) return;
  const bool running = node.machine && !node.finished;
  if (running && node.plan.round == plan.round && node.base == base) {
    Forward(node, node.round_life);  // asked again: what was collected still counts
    return;
  }
  auto begin = [this, &node, plan, base, deadline_at]() mutable {
    plan.deadline = std::max(deadline_at - world_.now() - kForwarding, absl::Seconds(1));
    Begin(node, plan, base);
  };
  if (!running) {
    begin();
    return;
  }
  world_.Seen("round given up for the next");
  if (node.machine->closed()) {
    Finish(node, false, false);
    begin();
    return;
  }
  node.pending = begin;
  Act(node, node.machine->CloseNow(world_.now()));
}

void Scenario::Forward(Node& node, uint64_t round_life) {
  if (node.round_life != round_life || node.finished || !node.machine->closed()) return;
  const aggregation::RoundResult result = node.machine->Result();
  Node& parent = *node.parent;
  world_.Send(node, parent,
              [this, &node, &parent, epoch = node.epoch, process = node.process, round_life, result,
               load = node.ledger] {
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
                Offer(parent, {.id = node.id,
                               .epoch = epoch,
                               .round = node.plan.round,
                               .weight = static_cast<int64_t>(result.weight),
                               .load = load,
                               .whole = [this, &node, &parent,
                                         still] { return still() && world_.Reaches(node, parent); },
                               .reply =
                                   [this, &node, still, round_life](Verdict, bool again) {
                                     if (!still() || !again) return;
                                     world_.At(node, world_.Seconds(3), [this, &node, round_life] {
                                       Forward(node, round_life);
                                     });
                                   }});
              });
}

void Scenario::TakeNodeOutcome(Node& node, uint64_t round, bool committed, bool included) {
  if (!node.machine || node.finished || node.plan.round != round) return;
  if (!node.machine->closed()) {
    EXPECT_FALSE(included) << "a rack that has not closed its round is told that it is in";
    if (node.early.has_value()) return;
    node.early = {committed, false};
    Act(node, node.machine->CloseNow(world_.now()));
    return;
  }
  Finish(node, committed, included);
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
    Finish(root(), false, false);
    world_.At(root(), world_.Seconds(0.3), [this] { NextRound(); });
    return;
  }
  CheckCommit(root());
  round_ = committed_round_ = version_ = root().plan.round;
  const auto children = root().machine->Result().children;
  saved_children_ = {children.begin(), children.end()};
  world_.Trace("root", absl::StrCat("committed ", version_));
  world_.Seen("committed");
  // A crash in between: committed, and nobody told.
  world_.At(root(), world_.Seconds(0.3), [this, round_life] { Saved(round_life); });
}

void Scenario::Saved(uint64_t round_life) {
  if (root().round_life != round_life) return;
  Finish(root(), true, true);
  NextRound();
}

}  // namespace tributary::sim
