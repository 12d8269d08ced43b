// What a simulated node keeps: private to arm.cc, root.cc and racks.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "simulate/arm.h"
#include "simulate/internal/network.h"

namespace tributary::simulate {

struct Arm::Tier {
  explicit Tier(const aggregation::DeadlineOptions& options) : deadlines(options) {}
  std::unique_ptr<aggregation::RoundMachine> machine;
  aggregation::AdaptiveDeadline deadlines;
  absl::Duration started;
  absl::Duration deadline_at;
  uint64_t timer = 0;
  std::optional<absl::Duration> armed;
};

struct Arm::Rack : Arm::Tier, RackPlace {
  Rack(const aggregation::DeadlineOptions& options, const RackPlace& place)
      : Tier(options), RackPlace(place) {}
  uint32_t index = 0;
  std::string id;
  uint64_t round = 0;
  bool finished = true;
  double ingress_free = 0;  // seconds: when its door has taken in all that was sent
  double egress_free = 0;
  double fold_free = 0;
  absl::Duration forward_time = absl::Milliseconds(500);
  absl::Duration sent_at;
  uint64_t root_ticket = 0;
  aggregation::RoundResult result;
  aggregation::PaceTracker pace{{}};
  std::vector<std::pair<uint32_t, uint64_t>> held;  // clients with late updates, and their rounds
};

}  // namespace tributary::simulate
