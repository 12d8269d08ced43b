// Reading a simulation's TOML.
#include "simulate/config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/toml_checks.h"
#include "base/toml_reader.h"

namespace tributary::simulate {
namespace {

// A key in a unit of the file's, kept in another.
void ReadScaled(TomlReader& toml, const std::string& section, const std::string& key, double unit,
                double* out, double low, double high) {
  double value = *out / unit;
  ReadIn(toml, section, key, &value, low, high);
  *out = value * unit;
}

void ReadNames(TomlReader& toml, const std::string& key, std::vector<std::string>* out,
               const std::vector<std::string>& known) {
  toml.Read("simulate", key, out);
  toml.Require(!out->empty(), "simulate", key, absl::StrCat("[simulate] ", key, " is empty"));
  for (const std::string& name : *out) {
    toml.Require(std::find(known.begin(), known.end(), name) != known.end(), "simulate", key,
                 absl::StrCat("[simulate] ", key, ": \"", name, "\" is not one of ",
                              absl::StrJoin(known, ", ")));
  }
}

void ReadClients(TomlReader& toml, ClientModel* c) {
  const std::string s = "clients";
  ReadIn(toml, s, "count", &c->count, 1, 1e6);
  ReadIn(toml, s, "train_s", &c->train_s, 0, 1e6);
  ReadIn(toml, s, "train_sigma", &c->train_sigma, 0, 5);
  ReadIn(toml, s, "round_sigma", &c->round_sigma, 0, 5);
  if (toml.Read(s, "pareto_alpha", &c->pareto_alpha)) {
    toml.Require(c->pareto_alpha == 0 || (c->pareto_alpha > 1 && c->pareto_alpha <= 100), s,
                 "pareto_alpha",
                 absl::StrCat("[clients] pareto_alpha = ", c->pareto_alpha,
                              " must be above 1 (at 1 the mean is infinite), or 0 for none"));
  }
  ReadIn(toml, s, "slow_share", &c->slow_share, 0, 1);
  ReadIn(toml, s, "slow_factor", &c->slow_factor, 1, 1e4);
  ReadIn(toml, s, "dropout", &c->dropout, 0, 1);
  ReadIn(toml, s, "diurnal_amplitude", &c->diurnal_amplitude, 0, 1);
  ReadIn(toml, s, "diurnal_period_s", &c->diurnal_period_s, 1, 1e9);
  ReadScaled(toml, s, "up_mbit", 1.25e5, &c->up_bytes_per_s, 1e-3, 1e6);
  ReadScaled(toml, s, "down_mbit", 1.25e5, &c->down_bytes_per_s, 1e-3, 1e6);
  ReadIn(toml, s, "rate_sigma", &c->rate_sigma, 0, 5);
  ReadScaled(toml, s, "latency_ms", 1e-3, &c->latency_s, 0, 1e5);
}

void ReadMachines(TomlReader& toml, Config* c) {
  ReadIn(toml, "racks", "count", &c->racks.count, 1, 10000);
  ReadScaled(toml, "racks", "ingress_gbit", 1.25e8, &c->racks.ingress_bytes_per_s, 1e-6, 1e5);
  ReadScaled(toml, "racks", "uplink_gbit", 1.25e8, &c->racks.uplink_bytes_per_s, 1e-6, 1e5);
  ReadScaled(toml, "racks", "latency_us", 1e-6, &c->racks.latency_s, 0, 1e7);
  ReadScaled(toml, "racks", "fold_gbyte_per_s", 1e9, &c->racks.fold_bytes_per_s, 1e-6, 1e5);
  ReadScaled(toml, "root", "down_gbit", 1.25e8, &c->root.down_bytes_per_s, 1e-6, 1e5);
  if (toml.ReadBytes("root", "switch_buffer", &c->root.switch_buffer_bytes)) {
    toml.Require(c->root.switch_buffer_bytes >= 65536, "root", "switch_buffer",
                 "[root] switch_buffer must hold one segment: at least 65536 bytes");
  }
  ReadIn(toml, "root", "loss", &c->root.loss, 0, 0.5);
  ReadScaled(toml, "root", "apply_gbyte_per_s", 1e9, &c->root.apply_bytes_per_s, 1e-6, 1e5);
  ReadScaled(toml, "root", "commit_gbyte_per_s", 1e9, &c->root.commit_bytes_per_s, 1e-6, 1e5);
}

void ReadPolicy(TomlReader& toml, Config* c) {
  ReadIn(toml, "straggler", "deadline_s", &c->deadline_s, 0.05, 1e7);
  ReadIn(toml, "straggler", "deadline_floor_s", &c->deadline_floor_s, 0.05, 1e7);
  ReadIn(toml, "straggler", "deadline_quantile", &c->deadline_quantile, 1e-3, 1);
  ReadIn(toml, "straggler", "deadline_margin", &c->deadline_margin, 1, 100);
  ReadIn(toml, "straggler", "participation", &c->participation, 0, 1);
  ReadIn(toml, "straggler", "quorum", &c->quorum, 1e-9, 1);
  ReadIn(toml, "straggler", "rejoin_grace_s", &c->rejoin_grace_s, 0, 1e6);
  ReadIn(toml, "cohort", "minimum", &c->minimum, 1, 1e6);
  ReadIn(toml, "cohort", "fraction", &c->fraction, 1e-9, 1);
  ReadIn(toml, "cohort", "count", &c->count, 1, 1e6);
  ReadIn(toml, "cohort", "over_selection", &c->over_selection, 1, 10);
  ReadIn(toml, "async", "buffer", &c->buffer, 1, 1e6);
  ReadIn(toml, "async", "concurrency", &c->concurrency, 0, 1e9);
  ReadIn(toml, "async", "max_staleness", &c->max_staleness, 0, 1000);
  ReadIn(toml, "async", "flush_s", &c->flush_s, 0.05, 1e7);
}

absl::StatusOr<Config> Interpret(TomlReader& toml) {
  Config c;
  toml.Read("simulate", "seed", &c.seed);
  ReadIn(toml, "simulate", "rounds", &c.rounds, 1, 100'000);
  std::vector<std::string> policies;
  for (const Policy& policy : KnownPolicies()) policies.push_back(policy.name);
  ReadNames(toml, "policies", &c.policies, policies);
  ReadNames(toml, "transports", &c.transports, {"tcp", "roce"});
  ReadIn(toml, "simulate", "parameters", &c.parameters, 1, 1e11);
  ReadIn(toml, "simulate", "update_bytes_per_parameter", &c.update_bytes_per_parameter, 1e-4, 16);
  ReadIn(toml, "simulate", "partial_bytes_per_parameter", &c.partial_bytes_per_parameter, 1e-4, 16);
  ReadClients(toml, &c.clients);
  ReadMachines(toml, &c);
  ReadPolicy(toml, &c);
  toml.Require(c.racks.count <= c.clients.count, "racks", "count",
               absl::StrCat("[racks] count = ", c.racks.count, " passes [clients] count = ",
                            c.clients.count, ": a rack would have nobody"));
  toml.Require(c.minimum <= c.clients.count, "cohort", "minimum",
               absl::StrCat("[cohort] minimum = ", c.minimum, " passes [clients] count = ",
                            c.clients.count, ": no round could succeed"));
  if (c.count == 0) c.count = std::max<uint64_t>(1, c.clients.count / 2);
  RETURN_IF_ERROR(toml.Finish());
  return c;
}

}  // namespace

uint64_t UpdateBytes(const Config& config) {
  return static_cast<uint64_t>(static_cast<double>(config.parameters) *
                               config.update_bytes_per_parameter);
}
uint64_t PartialBytes(const Config& config) {
  return static_cast<uint64_t>(static_cast<double>(config.parameters) *
                               config.partial_bytes_per_parameter);
}
uint64_t ModelBytes(const Config& config) { return config.parameters * 4; }

std::vector<Policy> KnownPolicies() {
  return {{.name = "wait"},
          {.name = "adaptive", .adaptive = true},
          {.name = "counted", .adaptive = true, .counted = true},
          {.name = "carry", .adaptive = true, .carry = true},
          {.name = "fedbuff", .asynchronous = true}};
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Load(path));
  return Interpret(toml);
}

absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& path) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Parse(text, path));
  return Interpret(toml);
}

std::vector<std::string> ConfigKeys() {
  TomlReader toml = *TomlReader::Parse("", "");  // nothing is there, so all of it is asked for
  (void)Interpret(toml);
  return toml.KnownKeys();
}

}  // namespace tributary::simulate
