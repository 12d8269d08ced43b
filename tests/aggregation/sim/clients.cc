// Clients as the SDK behaves: join, train, send until answered, settle by the outcome.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {

using aggregation::Verdict;

void Scenario::Join(Edge& edge) {
  if (done_ || !edge.alive || edge.joined || edge.tries-- <= 0) return;
  if (!edge.node->alive && world_.Chance(0.5)) edge.node = &SomeLeaf();
  Node& node = *edge.node;
  if (!node.alive || !world_.Reaches(edge, node)) {
    ++edge.tries;  // only what reaches somebody counts
    world_.At(edge, absl::Seconds(1) + world_.Seconds(1), [this, &edge] { Join(edge); });
    return;
  }
  edge.joined = true;
  world_.Trace(edge.id, absl::StrCat("joins ", node.id));
  world_.Send(edge, node, [this, &node, &edge, epoch = edge.epoch, process = edge.process] {
    // A stream that its client has left says nothing any more.
    if (!edge.alive || edge.process != process || edge.node != &node || !edge.joined) return;
    NodeJoined(node, {.id = edge.id, .aggregator = false, .epoch = epoch});
  });
}

void Scenario::LoseSession(Edge& edge) {
  if (!edge.joined) return;
  world_.Seen("session lost");
  edge.joined = false;
  if (world_.Chance(0.5)) edge.node = &SomeLeaf();
  world_.At(edge, world_.Seconds(1), [this, &edge] { Join(edge); });
}

void Scenario::TakeTask(Edge& edge, Node& node, uint64_t process, uint64_t round, uint64_t base) {
  if (!edge.joined || edge.node != &node || !edge.streams[node.id].Task(process, round)) return;
  if (edge.task == round && edge.task_base == base) {
    if (edge.trained) Upload(edge, node);  // asked again
    return;
  }
  world_.Trace(edge.id, absl::StrCat("task ", round, " of ", node.id));
  edge.task = round;
  edge.task_base = base;
  edge.trained = false;
  const uint64_t life = ++edge.task_life;
  world_.At(edge, world_.Chance(0.1) ? world_.Seconds(40) : world_.Seconds(5),
            [this, &edge, life, round] {
              if (edge.task_life != life || edge.task != round) return;
              edge.trained = true;
              if (!edge.joined) return;  // kept for the next session
              Node& now_at = *edge.node;
              if (world_.Chance(0.05)) {
                world_.Seen("declined");
                world_.Send(edge, now_at, [this, &now_at, &edge, round, epoch = edge.epoch] {
                  if (!now_at.machine || now_at.finished || now_at.plan.round != round) return;
                  Act(now_at, now_at.machine->Reported(edge.id, epoch, 0, world_.now()));
                });
                return;
              }
              Upload(edge, now_at);
            });
}

void Scenario::Upload(Edge& edge, Node& node) {
  if (!edge.joined || edge.node != &node || edge.task == 0 || edge.tries-- <= 0) return;
  const uint64_t round = edge.task;
  // Who is at two places may be counted at one while it is carried at the other: not for kCarry.
  if (base_plan_.late != aggregation::Late::kCarry && world_.Chance(0.03)) Hedge(edge, round);
  world_.Trace(edge.id, absl::StrCat("sends ", round, " to ", node.id));
  world_.Send(
      edge, node, [this, &edge, &node, round, process = edge.process, life = edge.task_life] {
        const auto still = [&edge, &node, process, life] {
          return edge.alive && edge.process == process && edge.task_life == life && edge.joined &&
                 edge.node == &node;
        };
        if (!still()) return;  // the stream was broken off before it began
        const UpdateKey key{edge.id, round};
        Load load;
        load.updates[key] = static_cast<uint64_t>(std::max<int64_t>(edge.weight, 0));
        load.sums = ValueOf(key);
        Offer(node, {.id = edge.id,
                     .epoch = edge.epoch,
                     .round = round,
                     .weight = edge.weight,
                     .load = load,
                     .whole = still,
                     .reply = [this, &edge, &node, round, still](Verdict verdict, bool again) {
                       if (!still()) return;
                       Answered(edge, node, round, verdict, again);
                     }});
      });
}

void Scenario::Hedge(Edge& edge, uint64_t round) {
  Node& other = SomeLeaf();
  if (&other == edge.node || !other.alive) return;
  world_.Seen("hedged");
  const auto same = [&edge, process = edge.process] {
    return edge.alive && edge.process == process;
  };
  world_.Send(edge, other, [this, &edge, &other, round, same, epoch = edge.epoch] {
    if (!same() || other.sessions.contains(edge.id)) return;
    NodeJoined(other, {.id = edge.id, .aggregator = false, .epoch = epoch});
    const UpdateKey key{edge.id, round};
    Load load;
    load.updates[key] = static_cast<uint64_t>(std::max<int64_t>(edge.weight, 0));
    load.sums = ValueOf(key);
    world_.At(other, world_.Seconds(2), [this, &edge, &other, round, same, epoch, load] {
      const auto session = other.sessions.find(edge.id);
      if (!same() || session == other.sessions.end() || session->second.epoch != epoch) return;
      Offer(other, {.id = edge.id,
                    .epoch = epoch,
                    .round = round,
                    .weight = edge.weight,
                    .load = load,
                    .whole = same,
                    .reply = [](Verdict, bool) {}});
    });
    world_.At(other, world_.Seconds(20), [this, &edge, &other, epoch] {
      if (edge.node == &other && edge.joined) return;  // it has come to stay
      NodeLeft(other, edge.id, epoch);
    });
  });
}

void Scenario::Answered(Edge& edge, Node& node, uint64_t round, Verdict verdict, bool again) {
  if (again) {
    world_.At(edge, world_.Seconds(3), [this, &edge, &node, round] {
      if (edge.task == round) Upload(edge, node);
    });
    return;
  }
  if (verdict == Verdict::kAdmit && world_.Chance(0.1)) {  // its reply got lost: it sends again
    world_.Seen("reply lost");
    world_.At(edge, world_.Seconds(5), [this, &edge, &node, round] {
      if (edge.task == round) Upload(edge, node);
    });
  }
}

void Scenario::TakeOutcome(Edge& edge, uint64_t round, bool committed, bool included) {
  if (edge.task != round) return;
  if (included) {
    EXPECT_TRUE(committed);
    EXPECT_TRUE(counted_.contains({edge.id, round}))
        << edge.id << " is told that its update of round " << round << " is in the model";
    edge.told_included.insert(round);
    world_.Seen("told included");
  }
  edge.task = 0;
  ++edge.task_life;
}

}  // namespace tributary::sim
