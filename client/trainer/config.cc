// Reading and checking the client's TOML.
#include "client/trainer/config.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/tls_config.h"
#include "base/toml_checks.h"
#include "client/trainer/dataset.h"
#include "models/builtin.h"

namespace tributary::client::trainer {
namespace {

constexpr size_t kMaxIdBytes = 256;
constexpr uint32_t kMaxClients = 1'000'000;
constexpr uint32_t kMaxThreads = 1024;

void ReadClient(TomlReader& toml, const ConfigOverrides& overrides, ClientConfig* c) {
  toml.Read("client", "id", &c->id);
  toml.Read("client", "endpoints", &c->endpoints);
  toml.Read("client", "run", &c->run);
  toml.Read("client", "state_directory", &c->state_directory);
  ReadIn(toml, "client", "threads", &c->threads, 0, kMaxThreads);
  if (overrides.id) c->id = *overrides.id;
  if (!overrides.endpoints.empty()) c->endpoints = overrides.endpoints;
  if (overrides.threads) c->threads = *overrides.threads;
  if (overrides.evaluate) {
    if (c->id.empty()) c->id = "evaluator";
    return;
  }
  toml.Require(!c->id.empty() && c->id.size() <= kMaxIdBytes, "client", "id",
               "[client] id is required: 1 to 256 bytes, unique in the run");
  toml.Require(!c->endpoints.empty(), "client", "endpoints",
               "[client] endpoints is required: the aggregators' \"host:port\", best first");
  for (const std::string& endpoint : c->endpoints) {
    CheckHostPort(toml, "client", "endpoints", endpoint, PortUse::kConnect);
  }
}

// A key that another split would look at is an error here: it would silently do nothing.
void ReadSplitKey(TomlReader& toml, const ClientConfig& c, const std::string& key,
                  const std::string& split) {
  if (!toml.Has("data", key) || c.split_name == split) return;
  toml.Complain("data", key,
                absl::StrCat("[data] ", key, " is only for split = \"", split,
                             "\", and split is \"", c.split_name, "\"; remove it or change split"));
}

void ReadData(TomlReader& toml, const ConfigOverrides& overrides, ClientConfig* c) {
  ReadOneOf(toml, "data", "dataset", &c->dataset, DatasetNames());
  toml.Require(
      !c->dataset.empty(), "data", "dataset",
      absl::StrCat("[data] dataset is required: one of ", absl::StrJoin(DatasetNames(), ", ")));
  if (toml.Read("data", "directory", &c->directory)) {
    std::error_code error;
    toml.Require(std::filesystem::is_directory(c->directory, error), "data", "directory",
                 absl::StrCat("[data] directory: no directory ", c->directory));
  }
  ReadOneOf(toml, "data", "split", &c->split_name, {"iid", "shards", "dirichlet"});
  if (const auto kind = SplitKindFromName(c->split_name); kind.ok()) {
    c->split.kind = *kind;
    ReadSplitKey(toml, *c, "alpha", "dirichlet");
    ReadSplitKey(toml, *c, "shards_per_client", "shards");
  }
  ReadIn(toml, "data", "alpha", &c->split.alpha, 0.001, 1e6);
  ReadIn(toml, "data", "shards_per_client", &c->split.shards_per_client, 1, 1000);
  ReadIn(toml, "data", "clients", &c->split.clients, 1, kMaxClients);
  toml.Read("data", "index", &c->index);
  toml.Read("data", "report_labels", &c->report_labels);
  toml.Read("data", "seed", &c->split.seed);
  if (overrides.index) c->index = *overrides.index;
  if (overrides.seed) c->split.seed = *overrides.seed;
  if (overrides.simulate) {
    c->split.clients = *overrides.simulate;
    c->index = 0;
  }
  toml.Require(c->index < c->split.clients, "data", "index",
               absl::StrCat("[data] index = ", c->index, " is not below clients = ",
                            c->split.clients, ": parts are counted from 0"));
}

void ReadModel(TomlReader& toml, ClientConfig* c) {
  const bool named = toml.Read("model", "name", &c->model);
  std::error_code error;
  const std::vector<std::string> builtin = models::BuiltinNames();
  const bool known = std::find(builtin.begin(), builtin.end(), c->model) != builtin.end() ||
                     std::filesystem::is_regular_file(c->model, error);
  if (named && known) return;
  const std::string near = Nearest(c->model, builtin);
  toml.Complain(
      "model", "name",
      absl::StrCat(
          "[model] name ",
          named ? absl::StrCat("\"", c->model, "\" is neither a file nor known") : "is required",
          ": a TorchScript file's path, or one of ", absl::StrJoin(builtin, ", "),
          near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?")));
}

void ReadTls(TomlReader& toml, ClientConfig* c) {
  TlsClientOptions tls;
  ReadTlsCa(toml, "ca", &tls.ca_pem);
  ReadTlsPair(toml, TlsSide::kClient, &tls.cert_pem, &tls.key_pem);
  toml.Read("tls", "server_name", &tls.server_name);
  if (!toml.Has("tls")) return;
  toml.Require(toml.Has("tls", "ca"), "tls", "",
               "[tls] ca is required: the certificate of the CA that signed the aggregators'; or "
               "remove the section");
  c->tls = std::move(tls);
}

absl::StatusOr<ClientConfig> Interpret(TomlReader& toml, const ConfigOverrides& overrides) {
  ClientConfig config;
  ReadClient(toml, overrides, &config);
  ReadData(toml, overrides, &config);
  ReadModel(toml, &config);
  ReadTls(toml, &config);
  ReadOneOf(toml, "log", "level", &config.log_level, {"trace", "debug", "info", "warn", "error"});
  ReadOneOf(toml, "log", "format", &config.log_format, {"human", "json"});
  RETURN_IF_ERROR(toml.Finish());
  return config;
}

}  // namespace

absl::StatusOr<ClientConfig> LoadClientConfig(const std::string& path,
                                              const ConfigOverrides& overrides) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Load(path));
  return Interpret(toml, overrides);
}

absl::StatusOr<ClientConfig> ParseClientConfig(const std::string& text,
                                               const std::string& path_for_messages,
                                               const ConfigOverrides& overrides) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Parse(text, path_for_messages));
  return Interpret(toml, overrides);
}

std::vector<std::string> ClientConfigKeys() {
  TomlReader toml = *TomlReader::Parse("", "");  // nothing is there, so all of it is asked for
  (void)Interpret(toml, {});
  return toml.KnownKeys();
}

}  // namespace tributary::client::trainer
