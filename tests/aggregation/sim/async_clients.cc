// Clients of an asynchronous run, as the SDK behaves, and how racks join.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/async_scenario.h"

namespace tributary::sim {

using aggregation::Admission;

void AsyncScenario::JoinClient(AsyncEdge& edge) {
  if (done_ || !edge.alive || (edge.stream != nullptr && edge.stream->alive)) return;
  if (edge.node == nullptr || world_.Chance(0.4)) edge.node = &Leaf();
  AsyncNode& node = *edge.node;
  if (!node.alive || !world_.Reaches(edge, node)) {
    world_.At(edge, absl::Seconds(1) + world_.Seconds(1), [this, &edge] { JoinClient(edge); });
    return;
  }
  edge.stream = std::make_shared<Stream>();
  edge.stream->epoch = edge.epoch;
  const auto stream = edge.stream;
  Up(edge, node, stream, [this, &node, &edge, stream] {
    const auto old = node.sessions.find(edge.id);
    if (old != node.sessions.end()) {
      if (old->second->epoch > stream->epoch) return Cut(stream, node, edge, true);
      old->second->alive = false;
    }
    node.sessions[edge.id] = stream;
    // What joining tells: how the last that counted ended, and what is over for good.
    const auto last = node.last_bases.find(edge.id);
    const std::optional<uint64_t> counted =
        last == node.last_bases.end() ? std::nullopt : std::optional(last->second);
    Down(node, edge, stream, [this, &edge, counted] {
      if (counted.has_value() && edge.base == counted) TakeOutcome(edge, *counted, true);
    });
    Act(node, node.machine->Joined({.id = edge.id, .epoch = stream->epoch}, world_.now()));
  });
}

void AsyncScenario::JoinRack(AsyncNode& rack) {
  if (done_ || !rack.alive || (rack.stream != nullptr && rack.stream->alive)) return;
  AsyncNode& node = root();
  if (!node.alive || !world_.Reaches(rack, node)) {
    world_.At(rack, absl::Seconds(1) + world_.Seconds(1), [this, &rack] { JoinRack(rack); });
    return;
  }
  rack.stream = std::make_shared<Stream>();
  rack.stream->epoch = rack.epoch;
  const auto stream = rack.stream;
  Up(rack, node, stream, [this, &node, &rack, stream] {
    const auto old = node.sessions.find(rack.id);
    if (old != node.sessions.end()) {
      if (old->second->epoch > stream->epoch) return Cut(stream, node, rack, true);
      old->second->alive = false;
    }
    node.sessions[rack.id] = stream;
    Act(node, node.machine->Joined({.id = rack.id, .aggregator = true, .epoch = stream->epoch},
                                   world_.now()));
    // As it stands, for a root that has forgotten.
    Down(node, rack, stream, [this, &rack] {
      if (rack.buffering) Rearm(rack);
    });
  });
}

void AsyncScenario::TakeTask(AsyncEdge& edge, uint64_t base) {
  if (edge.base == base) {
    edge.accepted = false;  // by whom it was may be dead
    if (edge.trained) Upload(edge, 6);
    return;
  }
  edge.base = base;
  edge.trained = edge.accepted = false;
  world_.Trace(edge.id, absl::StrCat("trains from ", base));
  const uint64_t life = ++edge.task_life;
  const absl::Duration takes = world_.Chance(0.1) ? world_.Seconds(40) : world_.Seconds(4);
  world_.At(edge, takes, [this, &edge, life] {
    if (edge.task_life != life) return;
    edge.trained = true;
    const auto stream = edge.stream;
    if (stream == nullptr || !stream->alive) return;  // kept for the next session
    AsyncNode& node = *edge.node;
    if (world_.Chance(0.04)) {
      world_.Seen("declined");
      Up(edge, node, stream, [this, &node, &edge, stream] {
        Act(node, node.machine->Declined(edge.id, stream->epoch, world_.now()));
      });
      return;
    }
    Upload(edge, 6);
  });
}

// A call of its own: it may be lost, doubled and overtaken.
void AsyncScenario::Upload(AsyncEdge& edge, int tries) {
  const auto stream = edge.stream;
  if (done_ || stream == nullptr || !stream->alive || !edge.base.has_value() || tries == 0) return;
  AsyncNode& node = *edge.node;
  const uint64_t base = *edge.base;
  const uint64_t life = edge.task_life;
  const uint64_t process = edge.process;
  const auto still = [&edge, stream, life, process] {
    return edge.alive && edge.process == process && edge.task_life == life && stream->alive;
  };
  const auto again = [this, &edge, still, tries] {
    world_.At(edge, absl::Seconds(1) + world_.Seconds(2), [this, &edge, still, tries] {
      if (still() && !edge.accepted) Upload(edge, tries - 1);
    });
  };
  // No answer: sent once more.
  world_.At(edge, absl::Seconds(8), [this, &edge, still, tries] {
    if (still() && !edge.accepted) Upload(edge, tries - 1);
  });
  world_.Send(edge, node, [this, &node, &edge, base, stream, still, again] {
    const Admission a =
        node.machine->Offer(edge.id, stream->epoch, base, edge.weight, world_.now());
    world_.Seen(a.verdict == aggregation::Verdict::kAdmit       ? "admitted"
                : a.verdict == aggregation::Verdict::kDuplicate ? "duplicate"
                : a.verdict == aggregation::Verdict::kStale     ? "stale"
                                                                : a.reason);
    Rearm(node);
    if (a.replaces != 0) node.attempts.erase(a.replaces);
    if (a.verdict == aggregation::Verdict::kDuplicate && still()) edge.accepted = true;
    if (a.verdict != aggregation::Verdict::kAdmit) return;
    AsyncAttempt& attempt = node.attempts[a.ticket];
    attempt.member = edge.id;
    attempt.load.weights[{edge.id, base}] = static_cast<uint64_t>(edge.weight);
    attempt.load.sums = ValueOf({edge.id, base});
    attempt.reply = [&edge, still](bool accepted) {
      if (accepted && still()) edge.accepted = true;
    };
    const bool breaks = world_.Chance(0.05);
    world_.At(node, world_.Seconds(2), [this, &node, ticket = a.ticket, breaks, again] {
      if (!node.attempts.contains(ticket)) return;
      if (!breaks) return Whole(node, ticket);
      world_.Seen("broke off");
      node.attempts.erase(ticket);
      Act(node, node.machine->Aborted(ticket, world_.now()));
      again();
    });
  });
}

void AsyncScenario::TakeOutcome(AsyncEdge& edge, uint64_t base, bool included) {
  if (included) {
    EXPECT_TRUE(counted_.contains({edge.id, base}))
        << edge.id << " is told that its update from version " << base << " is in a model";
    world_.Seen("told included");
  }
  if (edge.base != base) return;
  edge.base.reset();
  edge.trained = edge.accepted = false;
  ++edge.task_life;
}

}  // namespace tributary::sim
