// Clients that come to an aggregator within a round, and second sums: what the server's collector
// and rack do of it with real sockets.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "aggregation/cohort.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {

// A session is ordered: what comes out of its order, or twice, is dropped.
void Scenario::ToParent(Node& node, std::function<void(Node& parent)> run) {
  Node& parent = *node.parent;
  const std::pair number(node.process, ++node.says);
  world_.Send(node, parent, [&parent, id = node.id, number, run = std::move(run)] {
    std::pair<uint64_t, uint64_t>& heard = parent.heard[id];
    if (number <= heard) return;
    heard = number;
    run(parent);
  });
}

void Scenario::ToChild(Node& node, Node& child, std::function<void()> run) {
  const std::pair number(node.process, ++node.says);
  world_.Send(node, child, [&child, id = node.id, number, run = std::move(run)] {
    std::pair<uint64_t, uint64_t>& heard = child.heard[id];
    if (number <= heard) return;
    heard = number;
    run();
  });
}

uint64_t Scenario::CensusOf(const Node& node) const {
  uint64_t clients = 0;
  for (const auto& [id, member] : node.sessions) clients += member.aggregator ? member.clients : 1;
  return clients;
}

void Scenario::TellCensus(Node& node) {
  if (node.parent == nullptr) return;
  ToParent(node, [this, id = node.id, epoch = node.epoch, clients = CensusOf(node)](Node& parent) {
    const auto session = parent.sessions.find(id);
    if (session == parent.sessions.end() || session->second.epoch != epoch) return;
    session->second.clients = clients;
    if (parent.machine && !parent.finished) {
      Act(parent, parent.machine->Census(id, epoch, clients, world_.now()));
    }
    TellCensus(parent);
  });
}

void Scenario::Enter(Node& node, const RoundMachine::Member& member) {
  RoundMachine& machine = *node.machine;
  RoundMachine::Member entering = member;
  entering.unclaimed = node.parent != nullptr && !member.aggregator && !machine.Knows(member.id) &&
                       node.plan.cohort_count == 0 &&
                       aggregation::InCohort(node.plan.seed, node.plan.round, member.id,
                                             node.plan.cohort_fraction) &&
                       (machine.part() == 0 || machine.open());
  const uint64_t life = node.round_life;
  Act(node, machine.Joined(entering, world_.now()));
  if (node.parent == nullptr || node.round_life != life || node.finished) return;
  const bool late = !entering.unclaimed && machine.open() && machine.Unclaimed(member.id);
  if (!entering.unclaimed && !late) return;
  const auto claim = node.claims.clients.find(member.id);
  if (claim == node.claims.clients.end()) {
    Claim(node, {member.id}, late);
  } else if (claim->second == ClaimState::kGranted && machine.open()) {
    Act(node, machine.Claimed(member.id, late, world_.now()));
  }
}

void Scenario::Claim(Node& node, const std::vector<std::string>& ids, bool late) {
  for (const std::string& id : ids) {
    node.claims.clients.emplace(id, ClaimState::kAsked);
    if (late) node.claims.late.insert(id);
  }
  const aggregation::ClaimRequest request{.clients = ids,
                                          .late = late,
                                          .done = node.claims.done_told,
                                          .open = node.claims.open_told,
                                          .blank = node.machine->Blank()};
  ToParent(node, [this, id = node.id, epoch = node.epoch, round = node.plan.round,
                  request](Node& parent) {
    if (!parent.machine || parent.finished || parent.plan.round != round) return;
    Act(parent, parent.machine->Claim(id, epoch, request, world_.now()));
  });
}

void Scenario::ClaimAgain(Node& node) {
  if (node.parent == nullptr || !node.machine || node.finished) return;
  std::vector<std::string> awaited, late;
  for (auto& [id, state] : node.claims.clients) {
    if (state == ClaimState::kTaken) state = ClaimState::kAsked;
    (node.claims.late.contains(id) ? late : awaited).push_back(id);
  }
  if (!awaited.empty()) Claim(node, awaited, false);
  if (!late.empty()) Claim(node, late, true);
}

void Scenario::TellClaims(Node& node) {
  Claims& claims = node.claims;
  if (node.parent == nullptr || !node.machine || node.finished) return;
  if (claims.granted == 0 && !claims.open && !claims.open_told) return;
  const uint64_t done =
      claims.granted - std::min(claims.granted, node.machine->ClaimsOutstanding());
  if (done <= claims.done_told && claims.open == claims.open_told) return;
  claims.done_told = std::max(done, claims.done_told);
  claims.open_told = claims.open;
  Claim(node, {}, false);
}

void Scenario::AnswerClaims(Node& node, const Action& action) {
  std::vector<std::string> granted = action.granted;
  Node* child = Aggregator(action.member);
  if (node.parent != nullptr) {
    granted.clear();
    std::vector<std::string> ask;
    for (const std::string& id : action.granted) {
      node.claims.below[id] = action.member;
      const auto claim = node.claims.clients.find(id);
      if (claim == node.claims.clients.end()) {
        ask.push_back(id);
      } else if (claim->second == ClaimState::kGranted) {
        granted.push_back(id);
      }
    }
    if (!ask.empty()) Claim(node, ask, false);
  }
  if (granted.empty() && action.taken.empty()) return;
  ToChild(node, *child, [this, child, granted, taken = action.taken, round = node.plan.round] {
    if (!child->machine || child->finished || child->plan.round != round) return;
    Answered(*child, granted, taken);
  });
}

void Scenario::Answered(Node& node, const std::vector<std::string>& granted,
                        const std::vector<std::string>& taken) {
  const uint64_t life = node.round_life;
  for (const std::string& id : granted) {
    if (node.round_life != life || node.finished) return;
    const auto claim = node.claims.clients.find(id);
    if (claim != node.claims.clients.end() && claim->second != ClaimState::kGranted) {
      Granted(node, id);
    }
  }
  for (const std::string& id : taken) {
    if (node.round_life == life && !node.finished) Taken(node, id);
  }
  if (node.round_life == life) TellClaims(node);
}

void Scenario::Granted(Node& node, const std::string& id) {
  RoundMachine& machine = *node.machine;
  const auto claim = node.claims.clients.find(id);
  if (claim == node.claims.clients.end()) return;
  if (!machine.open() && !machine.closed()) {
    node.claims.grants.push_back(id);
    return;
  }
  world_.Seen("claim granted");
  const bool late = node.claims.late.contains(id);
  claim->second = ClaimState::kGranted;
  const uint64_t life = node.round_life;
  Admit(node, id, late);
  if (node.round_life == life) node.claims.granted += late ? 0 : 1;
}

void Scenario::Admit(Node& node, const std::string& id, bool late) {
  RoundMachine& machine = *node.machine;
  if (!machine.open() && !Reopen(node)) return;
  if (const auto below = node.claims.below.find(id); below != node.claims.below.end()) {
    Node* child = Aggregator(below->second);
    ToChild(node, *child, [this, child, id, round = node.plan.round] {
      if (!child->machine || child->finished || child->plan.round != round) return;
      Answered(*child, {id}, {});
    });
    return;
  }
  const auto session = node.sessions.find(id);
  if (session == node.sessions.end()) return;
  const uint64_t life = node.round_life;
  if (!machine.Knows(id) || machine.CountedElsewhere(id)) {
    RoundMachine::Member member = session->second;
    member.unclaimed = true;
    Act(node, machine.Joined(member, world_.now()));
  }
  if (node.round_life != life) return;
  Act(node, machine.Claimed(id, late, world_.now()));
  if (node.round_life != life) return;
  const auto held = node.claims.held.find(id);
  if (held == node.claims.held.end()) return;
  Offered offer = std::move(held->second);
  node.claims.held.erase(held);
  Offer(node, std::move(offer));
}

void Scenario::Taken(Node& node, const std::string& id) {
  const auto claim = node.claims.clients.find(id);
  if (claim == node.claims.clients.end() || claim->second == ClaimState::kGranted) return;
  world_.Seen("claim taken");
  claim->second = ClaimState::kTaken;
  if (const auto below = node.claims.below.find(id); below != node.claims.below.end()) {
    Node* child = Aggregator(below->second);
    ToChild(node, *child, [this, child, id, round = node.plan.round] {
      if (!child->machine || child->finished || child->plan.round != round) return;
      Answered(*child, {}, {id});
    });
    Act(node, node.machine->Ungrant(id, world_.now()));
    return;
  }
  const uint64_t life = node.round_life;
  Act(node, node.machine->Elsewhere(id, world_.now()));
  const auto held = node.claims.held.find(id);
  if (node.round_life != life || held == node.claims.held.end()) return;
  Offered offer = std::move(held->second);
  node.claims.held.erase(held);
  Offer(node, std::move(offer));
}

bool Scenario::Reopen(Node& node) {
  if (!node.machine->Reopen(world_.now())) return false;
  world_.Seen("second sum");
  world_.Trace(node.id, "reopened");
  node.first = std::exchange(node.ledger, {});
  ++node.ledger_changes;
  node.closed = 0;
  node.claims.open = true;
  Act(node, {});
  return true;
}

void Scenario::CollectSecond(Node& node) {
  if (!node.machine || node.finished) return;
  if (node.machine->part() > 0) {
    Act(node, node.machine->Call(world_.now()));
  } else if (node.machine->closed()) {
    node.claims.open = false;
    TellClaims(node);
  }
}

void Scenario::SecondClosed(Node& node) {
  const aggregation::RoundResult result = node.machine->Result();
  if (result.clients == 0) {
    node.claims.open = false;
    TellClaims(node);
    return;
  }
  node.second = node.ledger;
  node.second_result = result;
  const bool first_empty = node.first_result->clients == 0;
  if (!node.first_in && !first_empty) return;
  Send(node, node.round_life, first_empty ? 0 : 1, *node.second, result);
}

bool Scenario::AwaitsClaim(const Node& node, const Offered& offer) const {
  if (offer.round != node.plan.round) return false;
  const auto claim = node.claims.clients.find(offer.id);
  if (claim == node.claims.clients.end()) return false;
  return claim->second == ClaimState::kAsked;
}

}  // namespace tributary::sim
