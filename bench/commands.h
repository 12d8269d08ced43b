// The subcommands of `tributary bench`. Each returns an exit code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tributary::bench {

struct KernelsOptions {
  std::string json;
  std::string codec;  // "": all
};
int Kernels(const KernelsOptions& options);

struct RoundOptions {
  // ingest, overhead, sessions, incast, stragglers, simulated, async, recovery
  std::string scenario = "ingest";
  uint32_t clients = 0;  // 0: 200, or the scenario's own number
  std::string model = "resnet50";
  std::string codec = "fp32";
  std::string topology = "flat";  // flat, two-tier
  uint32_t racks = 2;
  uint32_t rounds = 2;
  uint32_t repetitions = 3;  // ingest: sink and rounds in turn; medians are reported
  uint32_t sender_processes = 2;
  uint64_t inflight_mb = 512;
  bool memory = true;  // ingest: also with 20 clients, for the growth of memory
  std::string out = "bench-out";
  std::string json;
};
int Round(const RoundOptions& options);

struct TransportOptions {
  std::vector<std::string> transports = {"tcp", "shm"};
  std::vector<std::string> sizes = {"64", "4K", "64K", "1M", "64M"};
  std::vector<uint32_t> lanes = {2};
  std::string listen = "127.0.0.1:0";  // tcp and roce; for roce the address of an RDMA device
  std::string bytes = "1G";            // streamed in each repetition
  int repetitions = 3;                 // link and ceiling in turn; medians are reported
  uint32_t slots = 0;                  // of links and ceilings; 0: as many as hold 8 MiB
  std::string json;
};
int Transport(const TransportOptions& options);

// Internal: the process at the other end of Transport's.
struct TransportPeerOptions {
  std::string what;  // link-stream, link-ping, socket-stream, ...
  std::string kind;
  std::string address;
  uint64_t size = 0;
  uint32_t lanes = 1;
  uint32_t slots = 8;
  uint64_t bytes = 0;
  uint32_t rounds = 0;
  int send_buffer = 0;
};
int TransportPeer(const TransportPeerOptions& options);

// Internal: the processes that Round starts.
struct SinkOptions {
  int port = 0;
  uint32_t clients = 1;
  uint32_t rounds = 1;
  std::string model;
  std::string codec;
  bool default_windows = false;  // gRPC's own; else those of the front door
};
int Sink(const SinkOptions& options);

struct SendersOptions {
  std::vector<std::string> endpoints;  // client i joins endpoint i mod n
  uint32_t first = 0;
  uint32_t count = 1;
  uint32_t joins_per_s = 0;  // clients start at this pace; 0: all at once
  std::string model;
  std::string codec;
  // A simulation's file: client i takes as long to train and to send as its model of client i does,
  // bears its name, and joins the endpoint of its rack. "": they send at once.
  std::string modelled;
  bool no_offers = false;  // they open their uploads without waiting for a grant
};
int Senders(const SendersOptions& options);

}  // namespace tributary::bench
