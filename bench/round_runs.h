// Runs of rounds by real processes that send prepared updates; what scenarios are made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process.h"

namespace tributary::bench {

struct RoundSetup {
  uint32_t clients = 1;
  std::string model;
  std::string codec;
  uint32_t racks = 0;  // 0: flat
  uint32_t rounds = 1;
  uint32_t sender_processes = 1;
  uint64_t inflight_mb = 512;
  uint32_t joins_per_s = 0;  // of all sender processes together; 0: all at once
  bool offers = true;        // false: senders open their uploads without waiting for a grant
  std::filesystem::path out{};
};

struct RawResult {
  double bytes_per_second = 0;  // best round
  double cpu_seconds_per_gb = 0;
};
// The same senders into a sink that drops the bytes.
absl::StatusOr<RawResult> RunSink(const RoundSetup& setup, bool default_windows);

struct RealResult {
  double bytes_per_second = 0;  // best round
  double cpu_seconds_per_gb = 0;
  double peak_rss = 0;      // of the largest aggregator
  double root_ingress = 0;  // bytes a round
  std::vector<double> round_seconds{};
  // Of a flat run: bytes a second of each round, from the first update ready to the last one
  // folded.
  std::vector<double> goodput{};
  uint64_t offers = 0;         // of the last round
  uint64_t unused_grants = 0;  // of all rounds
  std::string transport{};
};
absl::StatusOr<RealResult> RunReal(const RoundSetup& setup);

double Median(std::vector<double> values);  // 0 of none

}  // namespace tributary::bench
