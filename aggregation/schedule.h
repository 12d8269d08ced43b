// The server's learning rate over the rounds: a pure function of the round's number, so that it
// needs no state and goes on after a restart as if nothing had been.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tributary::aggregation {

struct Schedule {
  double rate = 1;  // > 0: at its height
  // "constant"
  // "step"         times `factor` after every `rounds` rounds
  // "exponential"  times `factor` after every round
  // "cosine"       from rate down to factor * rate in round `rounds`, along half a cosine
  //                (Loshchilov and Hutter, "SGDR", 2017, without restarts)
  std::string kind = "constant";
  uint64_t rounds = 1;  // >= 1
  double factor = 0.5;  // (0, 1]; cosine: [0, 1]
  // In its first `warmup` rounds round r has r / warmup of that.
  uint64_t warmup = 0;
};

std::vector<std::string> ScheduleKinds();
// INVALID_ARGUMENT names what cannot be.
absl::Status CheckSchedule(const Schedule& schedule);
// Of round `round`, from 1; the schedule has been checked.
double RateAt(const Schedule& schedule, uint64_t round);

}  // namespace tributary::aggregation
