// One node's machine and what drives it, as the server's collector does with real sockets.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {

using aggregation::Admission;
using aggregation::Answer;
using aggregation::ClosedBy;
using aggregation::Verdict;

void Scenario::DropRound(Node& node) {
  ++node.round_life;
  ++node.timer;
  node.machine.reset();
  for (const auto& [ticket, attempt] : node.attempts) {
    if (attempt.reserved > 0) {
      node.budget->Release(attempt.reserved);
    } else {
      node.budget->Drop(ticket);
    }
  }
  node.attempts.clear();
  node.ledger = node.first = {};
  ++node.ledger_changes;
  node.claims = {};
  node.second.reset();
  node.first_result.reset();
  node.second_result.reset();
  node.first_in = false;
  node.held_weight = node.held_clients = 0;
  node.closed = 0;
  node.armed = false;
  node.finished = false;
  node.early.reset();
  node.pending = nullptr;
}

void Scenario::Begin(Node& node, RoundPlan plan, uint64_t base) {
  DropRound(node);
  if (adaptive_) plan.soft_deadline = node.adaptive.Next();
  if (adaptive_) plan.within = node.adaptive.Within();
  node.plan = plan;
  node.base = base;
  node.deadline_at = world_.now() + plan.deadline;
  node.machine = std::make_unique<RoundMachine>(plan);
  std::vector<RoundMachine::Member> members;
  for (const auto& [id, member] : node.sessions) members.push_back(member);
  world_.Trace(node.id, absl::StrCat("begin ", plan.round));
  Act(node, node.machine->Begin(members, world_.now()));
}

void Scenario::NodeJoined(Node& node, const RoundMachine::Member& member) {
  const auto known = node.sessions.find(member.id);
  if (known != node.sessions.end() && member.epoch < known->second.epoch) {
    world_.Seen("older life refused");
    return;
  }
  node.sessions[member.id] = member;
  node.at_close.erase(member.id);
  if (node.last_round > 0) {
    const auto last = node.last_children.find(member.id);
    const bool in = last != node.last_children.end();
    const Ending how{true, in, in ? last->second : 0, false};
    if (Edge* edge = Client(member.id); edge != nullptr) {
      world_.Send(node, *edge, [this, edge, round = node.last_round, in] {
        TakeOutcome(*edge, round, true, in);
        if (edge->task != 0 && edge->task < round) TakeOutcome(*edge, edge->task, false, false);
      });
    } else {
      for (auto& child : nodes_) {
        if (child->id != member.id) continue;
        world_.Send(node, *child,
                    [this, &c = *child, process = node.process, round = node.last_round, how] {
                      if (c.stream.Outcome(process, round)) TakeNodeOutcome(c, round, how);
                    });
      }
    }
  }
  if (node.machine && !node.finished) Enter(node, member);
  TellCensus(node);
}

void Scenario::NodeLeft(Node& node, const std::string& id, uint64_t epoch, bool for_good) {
  const auto it = node.sessions.find(id);
  if (it == node.sessions.end() || it->second.epoch != epoch) return;
  node.sessions.erase(it);
  node.at_close.erase(id);
  if (node.machine && !node.finished) {
    Act(node, node.machine->Left(id, epoch, world_.now(), for_good));
  }
  TellCensus(node);
}

void Scenario::SendTask(Node& node, const std::string& member) {
  if (Edge* edge = Client(member); edge != nullptr) {
    world_.Send(node, *edge,
                [this, &node, edge, process = node.process, round = node.plan.round,
                 base = node.base] { TakeTask(*edge, node, process, round, base); });
    return;
  }
  for (auto& child : nodes_) {
    if (child->id != member) continue;
    world_.Send(
        node, *child,
        [this, &c = *child, process = node.process, plan = node.plan, base = node.base,
         deadline_at = node.deadline_at] { TakeNodeTask(c, process, plan, base, deadline_at); });
  }
}

// As Collector::MayCarry: an update of a closed round that may count in the next.
bool Scenario::MayCarry(const Node& node, const Offered& offer) const {
  const auto session = node.sessions.find(offer.id);
  if (session == node.sessions.end() || session->second.epoch != offer.epoch) return false;
  if (node.machine && !node.finished) {
    return (!node.machine->open() || node.machine->part() > 0) &&
           node.machine->OwedRound(offer.id) == offer.round;
  }
  return session->second.owes != 0 && session->second.owes == offer.round;
}

void Scenario::Offer(Node& node, Offered offer) {
  if (MayCarry(node, offer)) {
    world_.Seen("held for the next round");
    world_.Later(world_.Seconds(3), [reply = offer.reply] { reply(Verdict::kStale, true); });
    return;
  }
  if (!node.machine || node.finished) return;
  if (AwaitsClaim(node, offer)) {
    world_.Seen("held for a claim");
    node.claims.held[offer.id] = std::move(offer);
    return;
  }
  std::vector<std::string> clients;
  if (Client(offer.id) == nullptr) {
    for (const auto& [key, weight] : offer.load.updates) clients.push_back(key.first);
  }
  const bool was_open = node.machine->open();
  const Admission admission = node.machine->Offer(offer.id, offer.epoch, offer.round, offer.weight,
                                                  clients, world_.now(), offer.part);
  world_.Trace(node.id, absl::StrCat("offer ", offer.id, " ", static_cast<int>(admission.verdict),
                                     admission.reason));
  world_.Seen(admission.verdict == Verdict::kDuplicate ? "duplicate" : admission.reason);
  if (admission.verdict != Verdict::kAdmit) {
    offer.reply(admission.verdict, admission.verdict == Verdict::kReject && world_.Chance(0.2));
    Act(node, {});
    return;
  }
  EXPECT_TRUE(was_open);
  if (admission.replaces != 0) {
    world_.Seen("replaced");
    Forget(node, admission.replaces);
  }
  if (admission.staleness > 0) {
    world_.Seen("carried");
    EXPECT_EQ(admission.weight, WeightOf({offer.id, offer.round}, node.plan.round));
    offer.load.updates.begin()->second = admission.weight;
  }
  offer.load.weight = admission.weight;
  const uint64_t bytes = clients.empty() ? 1 : 2;
  node.held_weight += admission.weight;
  node.held_clients += offer.load.updates.size();
  node.attempts[admission.ticket] = {.member = offer.id, .load = offer.load};
  node.budget->Reserve(
      admission.ticket, bytes,
      [this, &node, bytes, ticket = admission.ticket, life = node.round_life, offer] {
        const auto it = node.attempts.find(ticket);
        if (node.round_life != life || it == node.attempts.end()) return;
        it->second.reserved = bytes;
        world_.At(node, world_.Chance(0.1) ? world_.Seconds(20) : world_.Seconds(1),
                  [this, &node, life, ticket, offer] {
                    if (node.round_life == life) Received(node, ticket, offer);
                  });
      });
  Act(node, {});
}

void Scenario::Forget(Node& node, uint64_t ticket) {
  const auto it = node.attempts.find(ticket);
  ASSERT_NE(it, node.attempts.end()) << "no such attempt";
  ASSERT_FALSE(it->second.folding) << "a committed update was dropped";
  const uint64_t reserved = it->second.reserved;
  node.held_weight -= it->second.load.weight;
  node.held_clients -= it->second.load.updates.size();
  node.attempts.erase(it);
  if (reserved > 0) {
    node.budget->Release(reserved);
  } else {
    node.budget->Drop(ticket);
  }
}

void Scenario::Received(Node& node, uint64_t ticket, const Offered& offer) {
  const bool live = node.attempts.contains(ticket);
  const bool carry = !live && MayCarry(node, offer);
  if (!offer.whole() || world_.Chance(0.1)) {
    if (live) Forget(node, ticket);
    world_.Seen(live ? "broke off" : "broke off dead");
    offer.reply(Verdict::kStale, live || carry);
    Act(node, node.machine->Aborted(ticket, world_.now()));
  } else if (world_.Chance(0.05)) {
    if (live) Forget(node, ticket);
    world_.Seen("refused");
    offer.reply(Verdict::kReject, world_.Chance(0.3));
    Act(node, node.machine->Refused(ticket, "bound", world_.now()));
  } else {
    EXPECT_EQ(node.machine->Commit(ticket), live);
    if (live) Commit(node, ticket);
    offer.reply(live ? Verdict::kAdmit : Verdict::kStale, carry);
    Act(node, {});
  }
}

void Scenario::Commit(Node& node, uint64_t ticket) {
  Attempt& attempt = node.attempts[ticket];
  attempt.folding = true;
  for (const auto& [key, weight] : attempt.load.updates) {
    EXPECT_TRUE(node.ledger.updates.emplace(key, weight).second &&
                !node.first.updates.contains(key))
        << key.first << " of round " << key.second << " is counted twice";
  }
  const bool client = Client(attempt.member) != nullptr;
  // A client's update is multiplied here; a partial sum has been.
  const uint64_t factor = client ? attempt.load.weight : 1;
  for (size_t i = 0; i < node.ledger.sums.size(); ++i) {
    node.ledger.sums[i] += factor * attempt.load.sums[i];
  }
  node.ledger.weight += attempt.load.weight;
  ++node.ledger_changes;
  if (Slips(Flaw::kAddsTwice, 5)) node.ledger.sums[0] += factor * attempt.load.sums[0];
  if (Slips(Flaw::kDropsAName, 5)) node.ledger.updates.erase(attempt.load.updates.begin()->first);
  world_.Trace(node.id, absl::StrCat("commit ", attempt.member));
  world_.At(node, world_.Seconds(0.5), [this, &node, life = node.round_life, ticket] {
    if (node.round_life != life) return;
    const auto it = node.attempts.find(ticket);
    if (!Slips(Flaw::kKeepsMemory, 5)) node.budget->Release(it->second.reserved);
    node.attempts.erase(it);
    Act(node, node.machine->Folded(ticket, world_.now()));
  });
}

void Scenario::Act(Node& node, const std::vector<Action>& actions) {
  const uint64_t life = node.round_life;
  for (const Action& action : actions) {
    world_.Trace(node.id, absl::StrCat(static_cast<int>(action.kind), " ", action.member, " ",
                                       action.ticket));
    switch (action.kind) {
      case Action::Kind::kTask:
        SendTask(node, action.member);
        break;
      case Action::Kind::kAbort:
        world_.Seen("aborted");
        Forget(node, action.ticket);
        break;
      case Action::Kind::kClaims:
        AnswerClaims(node, action);
        break;
      case Action::Kind::kCollect:
        world_.Seen("second sum called for");
        ToChild(node, *Aggregator(action.member),
                [this, &c = *Aggregator(action.member)] { CollectSecond(c); });
        break;
      case Action::Kind::kClosed:
        Closed(node);
        break;
    }
  }
  if (node.round_life != life) return;  // the next round has begun
  TellClaims(node);
  Rearm(node);
  Check(node);
}

void Scenario::Rearm(Node& node) {
  const auto next = node.finished ? std::nullopt : node.machine->NextTimer();
  // A timer that is set already is not made later by setting it again.
  if (node.armed && next == node.armed_at) return;
  const uint64_t timer = ++node.timer;
  node.armed = next.has_value() && !Slips(Flaw::kSetsNoTimer, 5);
  node.armed_at = next;
  if (!node.armed) return;
  const absl::Duration late = world_.Seconds(lateness_);
  world_.At(node, std::max(*next - world_.now(), absl::ZeroDuration()) + late,
            [this, &node, timer] {
              if (node.timer != timer) return;
              node.armed = false;
              world_.Trace(node.id, "timer");
              Act(node, node.machine->Timer(world_.now()));
            });
}

void Scenario::Closed(Node& node) {
  if (node.machine->Result().rejected.contains("fenced")) world_.Seen("fenced");
  ++node.closed;
  CheckClosed(node);
  const bool first = node.machine->part() == 0;
  if (first) node.at_close.clear();
  for (const auto& [id, member] : node.sessions) {
    if (first) node.at_close.insert(id);
  }
  const aggregation::RoundResult result = node.machine->Result();
  world_.Trace(node.id, absl::StrCat("closed ", result.clients, " ", result.weight));
  std::vector<absl::Duration> times;
  for (const aggregation::MemberTime& member : node.machine->Times()) {
    if (member.answer == Answer::kAccepted) times.push_back(member.took);
    if (member.answer == Answer::kAwaited) times.push_back(absl::InfiniteDuration());
  }
  if (first && result.closed_by == ClosedBy::kDeadline) node.adaptive.Observe(times);
  if (node.pending) {
    Finish(node, {});
    std::exchange(node.pending, nullptr)();
  } else if (node.early.has_value()) {
    if (first) node.early->included = false;
    Finish(node, *node.early);
  } else if (node.parent != nullptr && !first) {
    SecondClosed(node);
    for (const std::string& id : std::exchange(node.claims.grants, {})) Granted(node, id);
    TellClaims(node);
  } else if (node.parent != nullptr) {
    node.first_result = result;
    node.first = {};
    world_.At(node, world_.Seconds(0.5),
              [this, &node, life = node.round_life] { Forward(node, life); });
    if (node.plan.late == aggregation::Late::kSupplement && node.machine->CanReopen(world_.now())) {
      std::vector<std::string> late;
      for (const std::string& id : node.machine->Awaited()) {
        if (Client(id) != nullptr && node.sessions.contains(id) &&
            !node.claims.clients.contains(id)) {
          late.push_back(id);
        }
      }
      if (!late.empty()) {
        node.claims.open = node.claims.open_told = true;
        Claim(node, late, true);
      }
    }
    for (const std::string& id : std::exchange(node.claims.grants, {})) Granted(node, id);
    TellClaims(node);
  } else if (result.success) {
    world_.At(node, world_.Seconds(0.3), [this, life = node.round_life] { Apply(life); });
  } else {
    world_.Seen("root failed a round");
    round_ = node.plan.round;
    Finish(node, {});
    world_.At(node, world_.Seconds(0.3), [this] { NextRound(); });
  }
}

// Tells the members how it ended, but for those who may still be counted for it.
void Scenario::Finish(Node& node, const Ending& how) {
  const bool committed = how.committed;
  const bool included = how.included;
  node.finished = true;
  ++node.timer;
  node.armed = false;
  for (auto& [id, member] : node.sessions) {
    if (node.machine->AnswerOf(id) == Answer::kGone && node.machine->PartsOf(id, how.parts) == 0 &&
        !IsTaken(node, id)) {
      continue;
    }
    member.owes = node.machine->OwedRound(id);
    if (member.owes == 0) TellOutcome(node, member, how);
  }
  if (included) {
    for (const std::string& id : node.at_close) node.sessions[id].settled = true;
  }
  if (!committed) return;
  node.last_round = node.plan.round;
  node.last_children.clear();
  for (const std::string& id : node.machine->Result().children) {
    const uint32_t in = included ? node.machine->PartsOf(id, how.parts) : 0;
    if (in > 0) node.last_children[id] = in;
  }
  for (const auto& [id, state] : node.claims.clients) {
    if (state == ClaimState::kTaken && how.parent_included) node.last_children[id] = 1;
  }
}

void Scenario::TellOutcome(Node& node, const RoundMachine::Member& member, const Ending& how) {
  const bool committed = how.committed;
  const uint32_t parts = how.included ? node.machine->PartsOf(member.id, how.parts) : 0;
  const bool in = IsTaken(node, member.id) ? committed && how.parent_included : parts > 0;
  const Ending below{committed, in, parts, committed && how.included && how.parent_included};
  const uint64_t round = node.machine->RoundOf(member.id);
  if (Edge* edge = Client(member.id); edge != nullptr) {
    world_.Send(node, *edge, [this, &node, edge, epoch = member.epoch, round, committed, in] {
      if (edge->joined && edge->node == &node && edge->epoch == epoch) {
        TakeOutcome(*edge, round, committed, in);
      }
    });
    return;
  }
  for (auto& child : nodes_) {
    if (child->id != member.id) continue;
    world_.Send(node, *child,
                [this, &c = *child, process = node.process, epoch = member.epoch, round, below] {
                  if (c.epoch != epoch || !c.stream.Outcome(process, round)) return;
                  TakeNodeOutcome(c, round, below);
                });
  }
}

}  // namespace tributary::sim
