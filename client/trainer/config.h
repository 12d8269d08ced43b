// The configuration of tributary-client: TOML, said to be wrong before anything starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tls.h"
#include "client/trainer/split.h"

namespace tributary::client::trainer {

struct ClientConfig {
  // [client]
  std::string id;                      // required; 1..256 bytes, unique in the run
  std::vector<std::string> endpoints;  // required; "host:port", in order of preference
  std::string run;                     // "": whatever run is served
  uint32_t threads = 0;                // --simulate: trainings at once, 1..1024; 0: one a core
  std::string state_directory;         // residuals of error feedback live on here; "": nowhere
  // [data]
  std::string dataset;             // required: "fashion-mnist", "digits"
  std::string directory;           // of its files; "": where the Debian package puts them
  std::string split_name = "iid";  // "iid", "shards", "dirichlet"
  SplitSpec split;                 // of it: alpha, shards_per_client, clients, seed
  uint32_t index = 0;              // which of the parts is this client's: 0..clients-1
  bool report_labels = false;      // tells the aggregator its shares of labels
  // [model]
  std::string model;  // required: a built-in model's name, or a TorchScript file's path
  // [tls]: with every endpoint; nothing: none. The texts of the files that its keys name.
  std::optional<TlsClientOptions> tls;
  // [log]
  std::string log_level = "info";    // trace, debug, info, warn, error
  std::string log_format = "human";  // or "json"
};

// From the command line; what is set replaces the file's value.
struct ConfigOverrides {
  std::optional<std::string> id = std::nullopt;
  std::optional<uint32_t> index = std::nullopt;
  std::optional<uint64_t> seed = std::nullopt;
  std::vector<std::string> endpoints = {};  // empty: the file's
  std::optional<uint32_t> threads = std::nullopt;
  // This many clients in one process: replaces `clients`, and the index is 0.
  std::optional<uint32_t> simulate = std::nullopt;
  // Only models are evaluated: no aggregator is joined, so id and endpoints are not required.
  bool evaluate = false;
};

// INVALID_ARGUMENT with every finding, one a line, as
//   configs/client.toml:9:1: unknown key "alfa" in [data]; did you mean "alpha"?
// NOT_FOUND where the file is not there. Relative paths in it are relative to the working
// directory.
absl::StatusOr<ClientConfig> LoadClientConfig(const std::string& path,
                                              const ConfigOverrides& overrides = {});
absl::StatusOr<ClientConfig> ParseClientConfig(const std::string& text,
                                               const std::string& path_for_messages,
                                               const ConfigOverrides& overrides = {});

// Every key that a file may have, as "section.key".
std::vector<std::string> ClientConfigKeys();

}  // namespace tributary::client::trainer
