// The subcommands of `tributary`. Each returns the process's exit code: 0 done, 1 failed, 2 bad
// usage or config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tributary::cli {

struct ServeOptions {
  std::string file;
  std::string progress = "none";  // "human" or "json": a line a round on standard output
  // For tests of recovery: "PHASE:ROUND" kills this process, as kill -9 does, at that moment (see
  // server::Node::Options::on_phase). A node that has it started anew must not have it again.
  std::string die_after;
};
int Serve(const ServeOptions& options);

int Check(const std::vector<std::string>& files);
int ListCodecs();

struct DoctorOptions {
  std::string file;   // a config; empty: the defaults
  std::string peer;   // a host to try to reach
  bool json = false;  // on standard output, instead of text
};
int Doctor(const DoctorOptions& options);

struct DemoOptions {
  uint32_t clients = 20;
  uint32_t racks = 2;
  uint32_t rounds = 10;
  std::string topology = "two-tier";  // flat, two-tier, three-tier
  std::string codec = "int8";
  bool error_feedback = false;
  std::string model = "2nn";
  double alpha = 0.5;
  uint64_t seed = 1;
  std::string out = "demo-out";
};
int Demo(const DemoOptions& options);

struct SimulateOptions {
  std::string file;
  std::string json;
};
int Simulate(const SimulateOptions& options);

}  // namespace tributary::cli
