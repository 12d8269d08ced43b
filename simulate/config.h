// What `tributary simulate FILE` reads: the modelled clients, racks and network, and which policies
// and transports to compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tributary::simulate {

// Times in seconds, rates in bytes a second after reading (the file has Mbit/s and Gbit/s).
struct ClientModel {             // [clients]
  uint32_t count = 1000;         // 1..1,000,000, spread evenly over the racks
  double train_s = 10;           // the median client's training, in a usual round
  double train_sigma = 0.3;      // log-normal, between clients: its own factor, for the whole run
  double round_sigma = 0.1;      // log-normal, between the rounds of one client
  double pareto_alpha = 0;       // above 1: each round's training is also times a Pareto draw with
                                 // minimum 1 (heavy tail); 0: none
  double slow_share = 0;         // of the clients are
  double slow_factor = 10;       // so many times slower to train and to send
  double dropout = 0;            // chance that a client dies in a round, at a uniform moment of it
  double diurnal_amplitude = 0;  // availability is 1 - amplitude * (1 + sin) / 2 over a day,
  double diurnal_period_s = 86400;   // each client at its own hour
  double up_bytes_per_s = 1.25e6;    // up_mbit = 10
  double down_bytes_per_s = 6.25e6;  // down_mbit = 50
  double rate_sigma = 0.5;           // log-normal, between clients
  double latency_s = 0.03;           // one way, latency_ms = 30
};

struct RackModel {                      // [racks]
  uint32_t count = 10;                  // 1..10,000
  double ingress_bytes_per_s = 1.25e9;  // of its door, ingress_gbit = 10
  double uplink_bytes_per_s = 1.25e9;   // to the root, uplink_gbit = 10
  double latency_s = 20e-6;             // to the switch, latency_us = 20
  double fold_bytes_per_s = 4e9;        // of updates, fold_gbyte_per_s = 4
};

struct RootModel {                                   // [root]
  double down_bytes_per_s = 1.25e9;                  // down_gbit = 10
  uint64_t switch_buffer_bytes = uint64_t{1} << 20;  // of its port
  double loss = 0;                  // chance that a segment on the tiers' network is lost
  double apply_bytes_per_s = 2e9;   // of the model, apply_gbyte_per_s = 2
  double commit_bytes_per_s = 5e8;  // commit_gbyte_per_s = 0.5
};

struct Policy {  // what a name in [simulate] policies stands for
  std::string name;
  bool adaptive = false;
  bool counted = false;  // cohort_count with over_selection
  bool carry = false;
  bool asynchronous = false;  // async_arm.h
};

struct Config {  // [simulate]
  uint64_t seed = 1;
  uint32_t rounds = 100;  // 1..100,000
  std::vector<std::string> policies = {"wait", "adaptive"};
  std::vector<std::string> transports = {"tcp", "roce"};
  uint64_t parameters = 100'000;             // of the model, fp32
  double update_bytes_per_parameter = 1.1;   // int8 with its scales
  double partial_bytes_per_parameter = 5.5;  // bit-packed exact sums
  ClientModel clients;
  RackModel racks;
  RootModel root;
  // [straggler] and [cohort], as in an aggregator's file
  double deadline_s = 600;
  double deadline_floor_s = 5;
  double deadline_quantile = 0.8;
  double deadline_margin = 2;
  double participation = 0.75;
  double quorum = 1;
  double rejoin_grace_s = 5;
  uint64_t minimum = 1;  // accepted before a round counts, and before a soft deadline closes it
  double fraction = 1;
  uint64_t count = 0;  // default: half of the clients
  double over_selection = 1.3;
  // [async], as in an aggregator's file
  uint64_t buffer = 10;
  uint64_t concurrency = 0;
  uint32_t max_staleness = 20;
  double flush_s = 60;
};

uint64_t UpdateBytes(const Config& config);   // of one client
uint64_t PartialBytes(const Config& config);  // of one rack
uint64_t ModelBytes(const Config& config);

// "wait": all, or the fixed deadline. "adaptive": the default of an aggregator. "counted":
// adaptive, a fixed count over-selected. "carry": adaptive, late updates carried. "fedbuff":
// buffers of K updates in place of rounds.
std::vector<Policy> KnownPolicies();

// INVALID_ARGUMENT with every finding, a line each; NOT_FOUND where there is no file.
absl::StatusOr<Config> LoadConfig(const std::string& path);
absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& path_for_messages);

// Every key that a file may have, as "section.key".
std::vector<std::string> ConfigKeys();

}  // namespace tributary::simulate
