// The simulated racks and the modelled clients below them.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "simulate/arm.h"
#include "simulate/internal/tier.h"

namespace tributary::simulate {

using aggregation::Action;
using aggregation::Verdict;

namespace {

constexpr int64_t kExample = 65536;  // weights in 1/65,536, so that late ones can weigh less

}  // namespace

void Arm::BuildRacks() {
  aggregation::DeadlineOptions options;
  options.adaptive = policy_.adaptive;
  options.floor = absl::Seconds(config_.deadline_floor_s);
  options.ceiling = absl::InfiniteDuration();
  options.quantile = config_.deadline_quantile;
  options.margin = config_.deadline_margin;
  options.participation = config_.participation;
  root_ = std::make_unique<Tier>(options);
  clients_.resize(population_.size());
  for (const RackPlace& place : AddNodes(config_, population_.size(), &core_)) {
    const auto r = static_cast<uint32_t>(racks_.size());
    racks_.push_back(std::make_unique<Rack>(options, place));
    racks_.back()->index = r;
    racks_.back()->id = absl::StrCat("r", r);
    for (uint32_t c = place.first; c < place.end; ++c) clients_[c].rack = r;
  }
}

void Arm::BeginRack(uint32_t index, uint64_t round) {
  Rack& rack = *racks_[index];
  if (round != round_ || root_->machine == nullptr) return;  // the model came too late
  aggregation::RoundPlan plan = BasePlan();
  plan.deadline = aggregation::ChildDeadline(
      std::max(root_->deadline_at - now(), absl::ZeroDuration()), rack.forward_time);
  plan.soft_deadline = rack.deadlines.Next();
  plan.within = rack.deadlines.Within();
  const auto share = [&](uint64_t n) {
    const uint64_t all = population_.size();
    return n * rack.end / all - n * rack.first / all;
  };
  plan.enough = std::max<uint64_t>(1, share(config_.minimum));
  if (policy_.counted) {
    plan.cohort_count = share(aggregation::OverSelected(config_.count, config_.over_selection));
    plan.target = share(config_.count);
    plan.cohort_fraction = 0;
  }
  rack.round = round;
  rack.finished = false;
  rack.started = now();
  rack.machine = std::make_unique<aggregation::RoundMachine>(plan);
  std::vector<aggregation::RoundMachine::Member> members;
  members.reserve(rack.end - rack.first);
  for (uint32_t c = rack.first; c < rack.end; ++c) {
    if (!population_.Available(c, now())) continue;
    const std::string& id = population_.traits(c).id;
    members.push_back({.id = id,
                       .epoch = clients_[c].epoch,
                       .preference = policy_.counted ? rack.pace.Preference(id) : 1,
                       .owes = clients_[c].owes,
                       .settled = true});  // clients do not move between racks here
  }
  // After a restart clients may be on their way back; a rack that stays empty holds nobody up.
  if (members.empty()) After(config_.rejoin_grace_s, Kind::kEmpty, index, round);
  RackAct(rack, rack.machine->Begin(members, now()));
  const auto held = std::move(rack.held);
  rack.held.clear();
  for (const auto& [client, owed] : held) Offer(client, owed);
}

void Arm::RackAct(Rack& rack, const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kTask:
        StartClient(rack,
                    static_cast<uint32_t>(std::strtoul(action.member.c_str() + 1, nullptr, 10)));
        break;
      case Action::Kind::kAbort:   // Whole finds that its ticket counts no more
      case Action::Kind::kClaims:  // nobody claims here
      case Action::Kind::kCollect:
        break;
      case Action::Kind::kClosed:
        RackClosed(rack);
        return;
    }
  }
  ArmTimer(rack, rack.index);
}

void Arm::StartClient(Rack& rack, uint32_t c) {
  Client& client = clients_[c];
  if (client.task != 0) ++result_.dropped;  // called away from what it did
  client.task = rack.round;
  client.owes = 0;
  client.ticket = 0;
  ++result_.asked;
  const double bytes = static_cast<double>(model_bytes_);
  rack.egress_free =
      std::max(rack.egress_free, now_s()) + bytes / config_.racks.ingress_bytes_per_s;
  const double there = std::max(now_s() + population_.download_s(c), rack.egress_free);
  const ClientRound draw = population_.Draw(c, rack.round);
  if (draw.dies) {
    After(there - now_s() + draw.dies_after_s, Kind::kDied, c, rack.round);
  } else {
    After(there - now_s() + draw.train_s + population_.latency_s(), Kind::kOffer, c, rack.round);
  }
}

void Arm::Offer(uint32_t c, uint64_t round) {
  Client& client = clients_[c];
  if (client.task != round) return;  // called away since
  Rack& rack = *racks_[client.rack];
  const bool open = rack.machine != nullptr && rack.machine->open() && !rack.finished;
  if (!open && policy_.carry) {
    const uint64_t owed = rack.machine != nullptr && !rack.finished
                              ? rack.machine->OwedRound(population_.traits(c).id)
                              : client.owes;
    if (owed == round) {
      rack.held.emplace_back(c, round);
      return;
    }
  }
  const auto admission =
      rack.machine == nullptr
          ? aggregation::Admission{.verdict = Verdict::kStale}
          : rack.machine->Offer(population_.traits(c).id, client.epoch, round, kExample, {}, now());
  if (admission.verdict != Verdict::kAdmit) {
    client.task = 0;
    ++result_.dropped;
    return;
  }
  // The slower of its own link and the rack's door, then the fold workers.
  const auto bytes = static_cast<double>(update_bytes_);
  rack.ingress_free =
      std::max(rack.ingress_free, now_s()) + bytes / config_.racks.ingress_bytes_per_s;
  const double whole = std::max(now_s() + population_.upload_s(c), rack.ingress_free);
  rack.fold_free = std::max(rack.fold_free, whole) + bytes / config_.racks.fold_bytes_per_s;
  client.ticket = admission.ticket;
  After(rack.fold_free - now_s(), Kind::kWhole, c, admission.ticket);
  ArmTimer(rack, rack.index);
}

void Arm::Whole(uint32_t c, uint64_t ticket) {
  Client& client = clients_[c];
  if (client.ticket != ticket) return;
  client.ticket = 0;
  Rack& rack = *racks_[client.rack];
  if (rack.machine != nullptr && !rack.finished && rack.machine->Commit(ticket)) {
    client.task = 0;
    RackAct(rack, rack.machine->Folded(ticket, now()));
    return;
  }
  Offer(c, client.task);  // the round has closed: late
}

void Arm::Died(uint32_t c, uint64_t round) {
  Client& client = clients_[c];
  if (client.task != round) return;
  client.task = client.owes = 0;
  Rack& rack = *racks_[client.rack];
  const uint64_t epoch = client.epoch++;  // it comes back with the next round
  if (rack.machine == nullptr || rack.finished) return;
  RackAct(rack, rack.machine->Left(population_.traits(c).id, epoch, now()));
}

void Arm::RackClosed(Rack& rack) {
  ++rack.timer;
  rack.armed.reset();
  rack.result = rack.machine->Result();
  Learn(*rack.machine, now() - rack.started, &rack.deadlines, &rack.pace);
  result_.carried += rack.result.carried;
  if (root_->machine == nullptr) return;  // nobody takes it any more
  rack.sent_at = now();
  After(config_.racks.latency_s, Kind::kStarts, rack.index, rack.round);
  if (rack.result.clients == 0) return;
  core_.Send(rack.up, partial_bytes_, this,
             uint64_t{static_cast<uint8_t>(Kind::kArrives)} << 56 | rack.index, rack.round);
}

void Arm::FinishRack(Rack& rack) {
  if (!rack.machine->closed()) RackAct(rack, rack.machine->CloseNow(now()));
  for (uint32_t c = rack.first; c < rack.end; ++c) {
    clients_[c].owes = rack.machine->OwedRound(population_.traits(c).id);
  }
  rack.finished = true;
  rack.root_ticket = 0;
  ++rack.timer;
  rack.armed.reset();
}

}  // namespace tributary::simulate
