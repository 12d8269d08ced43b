// The simulated root: rounds over its racks, partial sums over the network.
#include <algorithm>
#include <cstdlib>

#include "simulate/arm.h"
#include "simulate/internal/tier.h"

namespace tributary::simulate {

using aggregation::Action;
using aggregation::Verdict;

namespace {

constexpr uint64_t kRoot = 0xFFFFFF;

uint32_t IndexOf(const std::string& id) {
  return static_cast<uint32_t>(std::strtoul(id.c_str() + 1, nullptr, 10));
}

}  // namespace

aggregation::RoundPlan Arm::BasePlan() const {
  aggregation::RoundPlan plan;
  plan.round = round_;
  plan.seed = config_.seed;
  plan.cohort_fraction = config_.fraction;
  plan.quorum = config_.quorum;
  plan.rejoin_grace = absl::Seconds(config_.rejoin_grace_s);
  plan.max_weight = uint64_t{1} << 40;  // every example of everybody has room
  plan.max_client_weight = uint64_t{1} << 32;
  plan.late = policy_.carry ? aggregation::Late::kCarry : aggregation::Late::kDrop;
  return plan;
}

// As the root waits for [cohort] minimum clients before each round. Where they do not come within a
// day, the run ends, and what is left of it has failed.
bool Arm::EnoughPresent() {
  if (population_.Present(now()) >= config_.minimum) {
    waited_s_ = 0;
    return true;
  }
  if (waited_s_ > config_.clients.diurnal_period_s) {
    result_.failed += config_.rounds - round_;
    return false;
  }
  waited_s_ += population_.look_again_s();
  After(population_.look_again_s(), Kind::kBegin, 0, 0);
  return false;
}

void Arm::BeginRound() {
  if (!EnoughPresent()) return;
  ++round_;
  round_started_ = root_->started = now();
  aggregation::RoundPlan plan = BasePlan();
  plan.cohort_fraction = 1;
  plan.target = policy_.counted ? config_.count : 0;
  plan.minimum = static_cast<uint32_t>(config_.minimum);
  plan.enough = config_.minimum;
  plan.deadline = absl::Seconds(config_.deadline_s);
  plan.soft_deadline = root_->deadlines.Next();
  plan.within = root_->deadlines.Within();
  root_->deadline_at = now() + plan.deadline;
  root_->machine = std::make_unique<aggregation::RoundMachine>(plan);
  std::vector<aggregation::RoundMachine::Member> members;
  for (const auto& rack : racks_) {
    members.push_back({.id = rack->id, .aggregator = true, .epoch = 1});
  }
  RootAct(root_->machine->Begin(members, now()));
}

void Arm::RootAct(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kTask: {
        const uint32_t index = IndexOf(action.member);
        core_.Send(racks_[index]->down, model_bytes_, this,
                   uint64_t{static_cast<uint8_t>(Kind::kModel)} << 56 | index, round_);
        break;
      }
      case Action::Kind::kAbort:
        racks_[IndexOf(action.member)]->root_ticket = 0;
        break;
      case Action::Kind::kClaims:  // nobody claims here
      case Action::Kind::kCollect:
        break;
      case Action::Kind::kClosed:
        RootClosed();
        return;
    }
  }
  ArmTimer(*root_, kRoot);
}

void Arm::PartialStarts(uint32_t index) {
  Rack& rack = *racks_[index];
  if (rack.finished || root_->machine == nullptr) return;
  if (rack.result.clients == 0) {
    RootAct(root_->machine->Reported(rack.id, 1, 0, now()));
    return;
  }
  const auto admission =
      root_->machine->Offer(rack.id, 1, rack.round, static_cast<int64_t>(rack.result.weight),
                            rack.result.contributors, now());
  if (admission.verdict == Verdict::kAdmit) rack.root_ticket = admission.ticket;
  ArmTimer(*root_, kRoot);
}

void Arm::PartialArrives(uint32_t index, uint64_t round) {
  Rack& rack = *racks_[index];
  if (rack.round != round) return;
  // Half of it new, as the rack does.
  rack.forward_time = (rack.forward_time + 2 * (now() - rack.sent_at)) / 2;
  if (rack.root_ticket == 0 || root_->machine == nullptr) return;
  const uint64_t ticket = std::exchange(rack.root_ticket, 0);
  if (root_->machine->Commit(ticket)) RootAct(root_->machine->Folded(ticket, now()));
}

void Arm::RootClosed() {
  Learn(*root_->machine, now() - root_->started, &root_->deadlines, nullptr);
  const aggregation::RoundResult result = root_->machine->Result();
  ++root_->timer;
  root_->armed.reset();
  if (!result.success) {
    After(0, Kind::kNext, 0, 0);
    return;
  }
  result_.accepted += result.clients;
  const auto bytes = static_cast<double>(model_bytes_);
  After(bytes / config_.root.apply_bytes_per_s + bytes / config_.root.commit_bytes_per_s,
        Kind::kNext, 0, 1);
}

void Arm::Committed(bool success) {
  result_.virtual_s = now_s();
  if (success) {
    result_.round_s.push_back(absl::ToDoubleSeconds(now() - round_started_));
  } else {
    ++result_.failed;
  }
  root_->machine.reset();
  for (const auto& rack : racks_) {
    if (!rack->finished) FinishRack(*rack);
  }
  if (round_ < config_.rounds) BeginRound();
}

}  // namespace tributary::simulate
