// The arm's clockwork: events, timers, learning.
#include "simulate/arm.h"

#include <algorithm>

#include "simulate/internal/network.h"
#include "simulate/internal/tier.h"

namespace tributary::simulate {

using aggregation::Answer;
using aggregation::ClosedBy;

namespace {

constexpr uint64_t kRoot = 0xFFFFFF;  // as a timer's owner

}  // namespace

Arm::Arm(const Config& config, const Policy& policy, const std::string& transport)
    : config_(config),
      policy_(policy),
      core_(NetworkOptions(config, transport)),
      population_(config.clients, config.seed, UpdateBytes(config), ModelBytes(config)),
      update_bytes_(UpdateBytes(config)),
      partial_bytes_(PartialBytes(config)),
      model_bytes_(ModelBytes(config)) {
  result_.policy = policy.name;
  result_.transport = transport;
  BuildRacks();
}

Arm::~Arm() = default;

ArmResult Arm::Run() {
  BeginRound();
  core_.Run();
  result_.network = core_.stats();
  result_.trace = core_.trace();
  for (const auto& rack : racks_) result_.degraded += rack->pace.Degraded().size();
  return result_;
}

void Arm::After(double seconds, Kind kind, uint64_t a, uint64_t b) {
  core_.After(absl::Seconds(seconds), this, uint64_t{static_cast<uint8_t>(kind)} << 56 | a, b);
}

void Arm::OnSimEvent(uint64_t a, uint64_t b) {
  const uint64_t low = a & 0xFFFFFFFFFFFFFF;
  const auto index = static_cast<uint32_t>(low & 0xFFFFFF);
  switch (static_cast<Kind>(a >> 56)) {
    case Kind::kTimer: {
      Tier& tier = index == kRoot ? *root_ : *racks_[index];
      if (tier.timer != b || tier.machine == nullptr) return;
      tier.armed.reset();
      const auto actions = tier.machine->Timer(now());
      return index == kRoot ? RootAct(actions) : RackAct(*racks_[index], actions);
    }
    case Kind::kModel:
      return BeginRack(index, b);
    case Kind::kOffer:
      return Offer(index, b);
    case Kind::kWhole:
      return Whole(index, b);
    case Kind::kDied:
      return Died(index, b);
    case Kind::kEmpty: {
      Rack& rack = *racks_[index];
      if (rack.round == b && !rack.finished && !rack.machine->closed()) {
        RackAct(rack, rack.machine->CloseNow(now()));
      }
      return;
    }
    case Kind::kStarts:
      if (racks_[index]->round == b) PartialStarts(index);
      return;
    case Kind::kArrives:
      return PartialArrives(index, b);
    case Kind::kNext:
      return Committed(b != 0);
    case Kind::kBegin:
      return BeginRound();
  }
}

// One timer a machine, and no new event while its time stays what it was.
void Arm::ArmTimer(Tier& tier, uint64_t which) {
  const auto next = tier.machine == nullptr ? std::nullopt : tier.machine->NextTimer();
  if (next == tier.armed) return;
  tier.armed = next;
  ++tier.timer;
  if (!next.has_value()) return;
  After(absl::ToDoubleSeconds(std::max(*next - now(), absl::ZeroDuration())), Kind::kTimer, which,
        tier.timer);
}

// As the server's Stragglers.
void Arm::Learn(const aggregation::RoundMachine& machine, absl::Duration elapsed,
                aggregation::AdaptiveDeadline* deadline, aggregation::PaceTracker* pace) const {
  const ClosedBy why = machine.Result().closed_by;
  std::vector<absl::Duration> times;
  for (const aggregation::MemberTime& member : machine.Times()) {
    if (member.answer == Answer::kAccepted) {
      times.push_back(member.took);
      if (pace != nullptr) {
        pace->Observe(member.id, aggregation::PaceMetric::kRound,
                      absl::ToDoubleSeconds(member.took));
      }
    } else if (member.answer == Answer::kAwaited) {
      const bool by_deadline = why == ClosedBy::kDeadline;
      times.push_back(by_deadline ? absl::InfiniteDuration() : elapsed);
      if (pace != nullptr) pace->Missed(member.id, absl::ToDoubleSeconds(elapsed), by_deadline);
    }
  }
  if (why != ClosedBy::kTold) deadline->Observe(times);
  if (pace != nullptr) pace->EndRound();
}

}  // namespace tributary::simulate
