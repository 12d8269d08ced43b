// The modelled clients: what each is like for the whole run, and what it does in a round. Pure
// functions of (seed, client, round), so that no order of events changes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "simulate/config.h"

namespace tributary::simulate {

struct ClientTraits {
  std::string id;
  float train_factor = 1;  // times the median
  float rate_factor = 1;
  float hour = 0;  // its phase of the day, [0, 1)
};

// What happens to a task that reaches the client.
struct ClientRound {
  double train_s = 0;
  bool dies = false;
  double dies_after_s = 0;  // from the task's arrival, within training and upload
};

class ClientPopulation {
 public:
  ClientPopulation(const ClientModel& model, uint64_t seed, uint64_t update_bytes,
                   uint64_t model_bytes);
  size_t size() const { return traits_.size(); }
  const ClientTraits& traits(uint32_t client) const { return traits_[client]; }
  double download_s(uint32_t client) const;  // the model at its own rate, and a way
  double upload_s(uint32_t client) const;    // the update at its own rate
  double latency_s() const { return model_.latency_s; }
  // Drawn anew each hour, the 24th part of a day: who is away stays away for a while.
  bool Available(uint32_t client, absl::Duration now) const;
  uint64_t Present(absl::Duration now) const;                           // so many are available
  double look_again_s() const { return model_.diurnal_period_s / 96; }  // a quarter of an hour
  ClientRound Draw(uint32_t client, uint64_t round) const;

 private:
  const ClientModel model_;
  const uint64_t seed_;
  const double update_bytes_;
  const double model_bytes_;
  std::vector<ClientTraits> traits_;
};

// Standard normal from two uniform words, by Box and Muller.
double NormalFrom(uint32_t a, uint32_t b);
// Pareto with minimum 1: u^(-1 / alpha), u in (0, 1].
double ParetoFrom(uint32_t a, double alpha);

}  // namespace tributary::simulate
