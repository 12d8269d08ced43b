// An aggregator's configuration: TOML (design: one file says who the node is; the root's also
// describes the run).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tributary::server {

struct NodeConfig {                     // [node]
  std::string name;                     // required; 1..256 bytes
  std::string listen = "0.0.0.0:7070";  // the gRPC front door for clients and child aggregators
  std::vector<std::string> parent;      // "host:port" of the parent's front door, in order of
                                        // preference; empty: this is the root
};

struct RoceConfig {            // [transport.roce]: read where kind is "roce"; see transport/roce.h
  std::string device;          // empty: by the link's address
  uint32_t port = 0;           // of the device, from 1; 0: by the route
  int gid_index = -1;          // -1: by the link's address
  uint32_t path_mtu = 0;       // 0: what both ports have
  uint32_t traffic_class = 0;  // 0..255
  uint32_t hop_limit = 64;     // 1..255
  uint32_t service_level = 0;  // 0..15: InfiniBand's
  double ack_timeout_s = 0.5;  // then a packet is sent again
  uint32_t retries = 7;        // 1..7
  uint64_t arena_bytes = uint64_t{256} << 20;
  std::string memory = "host";  // or "cuda"
};

struct FaultsConfig {  // [transport.faults]: at a rack, of each link to its parent; for trying out
  uint64_t stall_after = 0;  // chunks sent, then it sends nothing more; 0: never
  uint64_t cut_after = 0;    // chunks sent, then it is cut; 0: never
};

struct TransportConfig {  // [transport]
  // Towards the parent, and offered to children: "tcp", "shm" (one machine only), or "auto": the
  // best that both sides can do.
  std::string kind = "tcp";
  std::string listen = "0.0.0.0:0";  // where children's tcp links connect; port 0: any free one
  std::string
      advertise;  // host:port told to children; default: the host they reached the front door by
  uint32_t lanes = 2;  // 1..16
  uint32_t slots = 8;  // receive slots per link, of 1 MiB each; 2..1024
  double heartbeat_s = 1;
  int heartbeats_missed = 5;  // then the peer is dead; 1..1000
  double progress_timeout_s = 60;
  RoceConfig roce;
  FaultsConfig faults;
};

struct LimitsConfig {                           // [limits]
  uint64_t inflight_bytes = uint64_t{1} << 30;  // encoded updates and partial sums held at once
  // What gRPC may take in of an upload beyond what this node has asked for; 64 KiB..16 MiB. Each
  // upload that waits for its turn holds up to this; inflight_bytes makes room for it, up to a
  // fifth.
  uint64_t stream_window_bytes = uint64_t{128} << 10;
  uint32_t fold_workers = 0;  // 0: one a core
  uint32_t max_sessions = 20000;
  double session_timeout_s = 30;  // a session without a heartbeat for this long has ended
  double upload_progress_timeout_s =
      20;  // an upload that moves nothing for this long is broken off
  double grant_timeout_s =
      5;  // a granted upload that has not begun within this gives its place back
  double shutdown_grace_s = 10;  // SIGTERM: the running round may finish within this
};

// [tls]: of the front door, and towards the parent's. Links carry none. The texts of the files that
// the keys name, "" where one is not given.
struct TlsConfig {
  std::string cert_pem;            // cert: the front door then speaks TLS; also shown to a parent
  std::string key_pem;             // key
  std::string client_ca_pem;       // client_ca: who connects has to show a certificate of its
  std::string parent_ca_pem;       // parent_ca: the parent's front door is spoken to in TLS
  std::string parent_server_name;  // the name in its certificate; "": the host in [node] parent
};

struct LogConfig {               // [log]
  std::string level = "info";    // trace, debug, info, warn, error
  std::string format = "human";  // or "json"
  std::string file;              // default: standard error
};

struct MetricsConfig {      // [metrics]
  std::string rounds_file;  // rounds.jsonl; default: <checkpoint dir>/<run>/rounds.jsonl at the
                            // root, none elsewhere
};

// ---- The run: only in the root's file.
struct RunConfig {   // [run]
  std::string name;  // required at the root; letters, digits, '-', '_', '.'
  uint32_t rounds = 10;
  uint64_t seed = 1;
  std::string model;  // required: a built-in model's name, or a path ending in .safetensors
  double startup_limit_s = 300;    // fewer than the minimum of clients for this long: exit 1
  uint32_t evaluate_every = 1;     // an EVALUATE task after every n-th round; 0: never
  uint32_t max_failed_rounds = 5;  // in a row, then exit 1
  uint32_t rack_rounds = 1;        // that a rack runs on its own in each of the root's; 1..1000
};

struct AggregationConfig {                   // [aggregation]
  std::string mode = "sync";                 // or "async" (FedBuff), "fedasync"; see [async]
  std::string rule = "mean";                 // the only one now
  std::string optimizer = "fedavg";          // one of aggregation::ServerOptimizerNames()
  double server_learning_rate = 1;           // default with fedadagrad, fedadam and fedyogi: 0.1
  double server_momentum = 0.9;              // fedavgm
  double server_beta1 = 0.9;                 // the adaptive three
  double server_beta2 = 0.99;                // fedadam, fedyogi
  double server_tau = 1e-3;                  // the adaptive three
  std::string server_schedule = "constant";  // one of aggregation::ScheduleKinds()
  uint64_t server_schedule_rounds = 0;       // step, cosine; 0: [run] rounds
  double server_schedule_factor = 0.5;       // step, exponential; default with cosine: 0
  uint64_t server_warmup_rounds = 0;
  std::string partial_sum = "exact";    // the only one now
  int fraction_bits = 30;               // 20..44
  std::optional<double> bound;          // C; default: the largest that the proof allows
  uint64_t max_round_weight = 1 << 20;  // W_max: examples in a round
  uint64_t max_client_weight = 1 << 20;
  bool fractional_weights = false;
  std::map<std::string, std::string>
      policies;  // [aggregation.policies] tensor name (or prefix*) =
                 // "mean" | "sum" | "max" | "first" | "skip"; a name
                 // goes before a prefix, a longer one before a shorter
};

struct AsyncConfig {            // [async]: only where [aggregation] mode is not "sync"
  uint64_t buffer = 10;         // K: updates that are applied together; 1..1e6; fedasync: 1
  uint64_t concurrency = 0;     // clients that train at once; 0: all
  uint32_t max_staleness = 20;  // versions; 0..1000
  double flush_s = 60;          // a smaller buffer is applied after so long
  double collect_s = 10;        // how long a rack that is asked for its sum may be silent
  double mixing = 0.6;          // fedasync: alpha; (0, 1]
};

struct CohortConfig {    // [cohort]
  uint32_t minimum = 1;  // clients present before a round starts, and accepted before it counts
  uint32_t maximum = 0;  // 0: no limit
  double fraction = 1;   // (0, 1]; not with `count`
  uint64_t count = 0;    // clients wanted in a round; 0: `fraction` of them
  double over_selection = 1.3;         // with `count`: so many times as many are asked; 1..10
  std::string weighting = "examples";  // or "inverse_probability": aggregation/participation.h
  double most_gain = 10;  // with that: so many times more may one count than else; 1..1000
};

struct StragglerConfig {              // [straggler]
  double deadline_s = 600;            // the most
  std::string deadline = "adaptive";  // or "fixed": deadline_s
  double deadline_floor_s = 5;        // adaptive: the least
  double deadline_quantile = 0.8;     // adaptive: of the members' completion times; (0, 1]
  double deadline_margin = 2;         // adaptive: times that; 1..100
  double participation = 0.75;        // adaptive: the share wanted in; [0, 1]
  double degraded_work = 1;           // (0, 1]: of its steps, that a slow client is asked for
  bool partial_work = false;          // who is out of time sends what it has; needs fednova
  std::string late = "drop";          // or "carry", "supplement"
  uint32_t max_staleness = 4;         // carry: rounds late at most; 1..1000
  double supplement_wait_s = 1;       // racks' second partial sums are waited for: 0..3600
  double quorum = 1;                  // of the members that may still be accepted; (0, 1]
  double rejoin_grace_s = 5;          // a member that vanished is awaited this long
};

inline constexpr char kNoDownlinkCodec[] = "none";

struct CompressionConfig {     // [compression]
  std::string codec = "fp32";  // with the ef that error_feedback asks for
  bool error_feedback = false;
  bool linear = false;  // codec is to be such as adds up without being decoded
  // ef21: the examples of all clients together, those that a round does not ask among them.
  uint64_t population_weight = 0;
  std::string downlink = kNoDownlinkCodec;  // or the codec of models on their way down
  uint32_t downlink_steps = 16;             // the last steps that each tier keeps; 1..4096
};

struct EvaluationConfig {            // [evaluation]: the root's own, beside the clients'
  std::vector<std::string> command;  // program and arguments; empty: none (server/evaluator.h)
  uint32_t every = 1;                // after every n-th round, and the last; 1..1e9
  double timeout_s = 60;             // for one model; the round waits so long at most
};

struct CheckpointConfig {  // [checkpoint]
  std::string directory;   // required at the root
  int keep = 3;            // 1..1000
};

// [training]: hyperparameters handed to clients; ranges: aggregation/hyperparameters.h
struct TrainingConfig {
  std::map<std::string, double> values = {
      {"lr", 0.05}, {"momentum", 0}, {"weight_decay", 0}, {"local_epochs", 1}, {"batch_size", 32},
      {"mu", 0},    {"fednova", 0},  {"scaffold", 0},     {"feddyn", 0}};
  // scaffold, feddyn: the examples of all clients together, those that a round does not ask among
  // them.
  uint64_t population_weight = 0;
};

struct Config {
  NodeConfig node;
  TransportConfig transport;
  LimitsConfig limits;
  TlsConfig tls;
  LogConfig log;
  MetricsConfig metrics;
  // Present exactly when this is the root (no [node] parent).
  std::optional<RunConfig> run;
  AggregationConfig aggregation;
  AsyncConfig asynchronous;
  CohortConfig cohort;
  StragglerConfig straggler;
  CompressionConfig compression;
  CheckpointConfig checkpoint;
  EvaluationConfig evaluation;
  TrainingConfig training;
  // Where keys stand in the file ("path:line:column"), by "section.key": for errors found later,
  // such as a port in use.
  std::map<std::string, std::string> where;
  bool is_root() const { return node.parent.empty(); }
};

// Reads and checks a file. INVALID_ARGUMENT with every finding, one a line, as
//   configs/global.toml:12:3: unknown key "quorom" in [straggler]; did you mean "quorum"?
// NOT_FOUND where the file is not there. Relative paths in it are relative to the working
// directory. Of a model's file the header is read, to hold policies and limits against its tensors;
// certificates and keys are read whole.
absl::StatusOr<Config> LoadConfig(const std::string& path);
absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& path_for_messages);

// Every key that a file may have: "section.key", or "section.*" where any may be there.
std::vector<std::string> ConfigKeys();

}  // namespace tributary::server
