// Reading and checking an aggregator's TOML, section by section.
#include "server/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aggregation/optimizer.h"
#include "base/status.h"
#include "base/toml_reader.h"
#include "compression/codec.h"
#include "models/builtin.h"

namespace tributary::server {
namespace {

const std::vector<std::string> kRunSections = {"run",         "aggregation", "cohort",  "straggler",
                                               "compression", "checkpoint",  "training"};

std::string KeyText(const std::string& section, const std::string& key, const std::string& value) {
  return absl::StrCat("[", section, "] ", key, " = ", value);
}

// Reads a number and checks its range, both ends included.
template <typename T>
void ReadIn(TomlReader& toml, const std::string& section, const std::string& key, T* out,
            double low, double high) {
  if (!toml.Read(section, key, out)) return;
  const auto value = static_cast<double>(*out);
  toml.Require(value >= low && value <= high, section, key,
               absl::StrCat(KeyText(section, key, absl::StrCat(*out)), " is out of range: ", low,
                            " to ", high));
}

void ReadOneOf(TomlReader& toml, const std::string& section, const std::string& key,
               std::string* out, const std::vector<std::string>& allowed,
               const std::string& why = "") {
  if (!toml.Read(section, key, out)) return;
  if (std::find(allowed.begin(), allowed.end(), *out) != allowed.end()) return;
  const std::string near = Nearest(*out, allowed);
  toml.Complain(section, key,
                absl::StrCat(KeyText(section, key, absl::StrCat("\"", *out, "\"")),
                             " is not one of ", absl::StrJoin(allowed, ", "), why,
                             near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?")));
}

bool IsHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size() ||
      text.size() - colon > 6)
    return false;
  const std::string port = text.substr(colon + 1);
  return port.find_first_not_of("0123456789") == std::string::npos && std::stoi(port) <= 65535;
}

void CheckHostPort(TomlReader& toml, const std::string& section, const std::string& key,
                   const std::string& value) {
  toml.Require(IsHostPort(value), section, key,
               absl::StrCat(KeyText(section, key, absl::StrCat("\"", value, "\"")),
                            " is not \"host:port\" with a port up to 65535"));
}

bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= 128 && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
         });
}

void ReadNode(TomlReader& toml, Config* c) {
  toml.Read("node", "name", &c->node.name);
  toml.Read("node", "listen", &c->node.listen);
  toml.Read("node", "parent", &c->node.parent);
  toml.Require(!c->node.name.empty() && c->node.name.size() <= 256, "node", "name",
               "[node] name is required: 1 to 256 bytes, unique among this aggregator's siblings");
  CheckHostPort(toml, "node", "listen", c->node.listen);
  for (const std::string& parent : c->node.parent) CheckHostPort(toml, "node", "parent", parent);
}

void ReadTransport(TomlReader& toml, TransportConfig* t) {
  ReadOneOf(toml, "transport", "kind", &t->kind, {"tcp"},
            " (shm, roce, auto and grpc are not in this build)");
  toml.Read("transport", "listen", &t->listen);
  CheckHostPort(toml, "transport", "listen", t->listen);
  if (toml.Read("transport", "advertise", &t->advertise))
    CheckHostPort(toml, "transport", "advertise", t->advertise);
  ReadIn(toml, "transport", "lanes", &t->lanes, 1, 16);
  ReadIn(toml, "transport", "slots", &t->slots, 2, 1024);
  ReadIn(toml, "transport", "heartbeat_s", &t->heartbeat_s, 0.05, 3600);
  ReadIn(toml, "transport", "progress_timeout_s", &t->progress_timeout_s, 0.1, 86400);
}

void ReadNodeSections(TomlReader& toml, Config* c) {
  LimitsConfig& l = c->limits;
  if (toml.ReadBytes("limits", "inflight_bytes", &l.inflight_bytes)) {
    toml.Require(l.inflight_bytes >= 1 << 16, "limits", "inflight_bytes",
                 absl::StrCat("[limits] inflight_bytes = ", l.inflight_bytes,
                              " is too little: at least 65536"));
  }
  ReadIn(toml, "limits", "fold_workers", &l.fold_workers, 0, 256);
  ReadIn(toml, "limits", "max_sessions", &l.max_sessions, 1, 1e6);
  ReadIn(toml, "limits", "session_timeout_s", &l.session_timeout_s, 1, 86400);
  ReadIn(toml, "limits", "upload_progress_timeout_s", &l.upload_progress_timeout_s, 0.1, 86400);
  ReadIn(toml, "limits", "shutdown_grace_s", &l.shutdown_grace_s, 0, 86400);
  ReadOneOf(toml, "log", "level", &c->log.level, {"trace", "debug", "info", "warn", "error"});
  ReadOneOf(toml, "log", "format", &c->log.format, {"human", "json"});
  toml.Read("log", "file", &c->log.file);
  toml.Read("metrics", "rounds_file", &c->metrics.rounds_file);
}

void ReadRun(TomlReader& toml, RunConfig* r) {
  toml.Read("run", "name", &r->name);
  toml.Require(IsName(r->name), "run", "name",
               "[run] name is required: letters, digits, '-', '_' and '.', at most 128");
  ReadIn(toml, "run", "rounds", &r->rounds, 1, 1e9);
  toml.Read("run", "seed", &r->seed);
  const bool named = toml.Read("run", "model", &r->model);
  const bool file = r->model.ends_with(".safetensors");
  if (!named || (!file && !models::IsBuiltin(r->model))) {
    toml.Complain(
        "run", "model",
        absl::StrCat("[run] model ",
                     named ? absl::StrCat("\"", r->model, "\" is not known") : "is required",
                     ": a path ending in .safetensors, or one of ",
                     absl::StrJoin(models::BuiltinNames(), ", ")));
  } else if (file && !std::filesystem::exists(r->model)) {
    toml.Complain("run", "model", absl::StrCat("[run] model: no file ", r->model));
  }
  ReadIn(toml, "run", "startup_limit_s", &r->startup_limit_s, 0.1, 1e7);
  ReadIn(toml, "run", "evaluate_every", &r->evaluate_every, 0, 1e9);
  ReadIn(toml, "run", "max_failed_rounds", &r->max_failed_rounds, 1, 1e9);
}

// A key that the chosen optimizer or schedule does not look at is a mistake of the writer's.
void RequireUse(TomlReader& toml, const std::string& key, const std::string& of,
                const std::vector<std::string>& users) {
  if (!toml.Has("aggregation", key)) return;
  toml.Require(std::find(users.begin(), users.end(), of) != users.end(), "aggregation", key,
               absl::StrCat("[aggregation] ", key, " does nothing with \"", of, "\", only with ",
                            absl::StrJoin(users, ", "), ": remove it"));
}

void ReadOptimizer(TomlReader& toml, AggregationConfig* a) {
  ReadOneOf(toml, "aggregation", "optimizer", &a->optimizer, aggregation::ServerOptimizerNames());
  const bool adaptive = a->optimizer != "fedavg" && a->optimizer != "fedavgm";
  if (adaptive) a->server_learning_rate = 0.1;
  ReadIn(toml, "aggregation", "server_learning_rate", &a->server_learning_rate, 1e-9, 1e9);
  constexpr double kBelowOne = 1 - 1e-9;
  ReadIn(toml, "aggregation", "server_momentum", &a->server_momentum, 0, kBelowOne);
  ReadIn(toml, "aggregation", "server_beta1", &a->server_beta1, 0, kBelowOne);
  ReadIn(toml, "aggregation", "server_beta2", &a->server_beta2, 0, kBelowOne);
  ReadIn(toml, "aggregation", "server_tau", &a->server_tau, 1e-12, 1e9);
  ReadOneOf(toml, "aggregation", "server_schedule", &a->server_schedule,
            aggregation::ScheduleKinds());
  const bool cosine = a->server_schedule == "cosine";
  if (cosine) a->server_schedule_factor = 0;
  ReadIn(toml, "aggregation", "server_schedule_rounds", &a->server_schedule_rounds, 1, 1e9);
  ReadIn(toml, "aggregation", "server_schedule_factor", &a->server_schedule_factor,
         cosine ? 0 : 1e-9, 1);
  ReadIn(toml, "aggregation", "server_warmup_rounds", &a->server_warmup_rounds, 0, 1e9);
  RequireUse(toml, "server_momentum", a->optimizer, {"fedavgm"});
  RequireUse(toml, "server_beta1", a->optimizer, {"fedadagrad", "fedadam", "fedyogi"});
  RequireUse(toml, "server_beta2", a->optimizer, {"fedadam", "fedyogi"});
  RequireUse(toml, "server_tau", a->optimizer, {"fedadagrad", "fedadam", "fedyogi"});
  RequireUse(toml, "server_schedule_rounds", a->server_schedule, {"step", "cosine"});
  RequireUse(toml, "server_schedule_factor", a->server_schedule, {"step", "exponential", "cosine"});
}

void ReadAggregation(TomlReader& toml, AggregationConfig* a) {
  ReadOneOf(toml, "aggregation", "rule", &a->rule, {"mean"});
  ReadOptimizer(toml, a);
  ReadOneOf(toml, "aggregation", "partial_sum", &a->partial_sum, {"exact"});
  ReadIn(toml, "aggregation", "fraction_bits", &a->fraction_bits, 20, 44);
  double bound = 0;
  if (toml.Read("aggregation", "bound", &bound)) {
    toml.Require(bound > 0 && std::isfinite(bound), "aggregation", "bound",
                 absl::StrCat("[aggregation] bound = ", bound, " must be positive"));
    a->bound = bound;
  }
  ReadIn(toml, "aggregation", "max_round_weight", &a->max_round_weight, 1, 0x1p50);
  if (!toml.Has("aggregation", "max_client_weight")) a->max_client_weight = a->max_round_weight;
  ReadIn(toml, "aggregation", "max_client_weight", &a->max_client_weight, 1, 0x1p50);
  toml.Require(a->max_client_weight <= a->max_round_weight, "aggregation", "max_client_weight",
               absl::StrCat("[aggregation] max_client_weight = ", a->max_client_weight,
                            " passes max_round_weight = ", a->max_round_weight,
                            ": lower the one or raise the other"));
  toml.Read("aggregation", "fractional_weights", &a->fractional_weights);
  a->policies = toml.ReadStrings("aggregation.policies");
  const std::vector<std::string> known = {"mean", "sum", "max", "first", "skip"};
  for (const auto& [tensor, policy] : a->policies) {
    toml.Require(std::find(known.begin(), known.end(), policy) != known.end(),
                 "aggregation.policies", tensor,
                 absl::StrCat("[aggregation.policies] ", tensor, " = \"", policy,
                              "\" is not one of ", absl::StrJoin(known, ", ")));
  }
}

void ReadCount(TomlReader& toml, CohortConfig* cohort) {
  ReadIn(toml, "cohort", "count", &cohort->count, 0, 1e9);
  ReadIn(toml, "cohort", "over_selection", &cohort->over_selection, 1, 10);
  const bool counted = cohort->count > 0;
  toml.Require(!counted || !toml.Has("cohort", "fraction"), "cohort", "fraction",
               "[cohort] count and fraction exclude each other: remove one");
  toml.Require(counted || !toml.Has("cohort", "over_selection"), "cohort", "over_selection",
               "[cohort] over_selection does nothing without count: remove it, or give a count");
  toml.Require(!counted || cohort->minimum <= cohort->count, "cohort", "minimum",
               absl::StrCat("[cohort] minimum = ", cohort->minimum,
                            " passes count = ", cohort->count, ": no round could succeed"));
}

void ReadStraggler(TomlReader& toml, const Config& config, StragglerConfig* s) {
  ReadIn(toml, "straggler", "deadline_s", &s->deadline_s, 0.05, 1e7);
  ReadOneOf(toml, "straggler", "deadline", &s->deadline, {"fixed", "adaptive"});
  ReadIn(toml, "straggler", "deadline_floor_s", &s->deadline_floor_s, 0.05, 1e7);
  ReadIn(toml, "straggler", "deadline_quantile", &s->deadline_quantile, 1e-3, 1);
  ReadIn(toml, "straggler", "deadline_margin", &s->deadline_margin, 1, 100);
  ReadIn(toml, "straggler", "participation", &s->participation, 0, 1);
  ReadIn(toml, "straggler", "quorum", &s->quorum, 1e-9, 1);
  ReadIn(toml, "straggler", "rejoin_grace_s", &s->rejoin_grace_s, 0, 1e6);
  ReadOneOf(toml, "straggler", "late", &s->late, {"drop", "carry"});
  ReadIn(toml, "straggler", "max_staleness", &s->max_staleness, 1, 1000);
  toml.Require(s->late != "carry" || config.aggregation.fractional_weights, "straggler", "late",
               "[straggler] late = \"carry\" weighs late updates in fractions of an example: set "
               "[aggregation] fractional_weights = true");
}

void ReadRoundSections(TomlReader& toml, Config* c) {
  ReadIn(toml, "cohort", "minimum", &c->cohort.minimum, 1, 1e9);
  ReadIn(toml, "cohort", "maximum", &c->cohort.maximum, 0, 1e9);
  ReadIn(toml, "cohort", "fraction", &c->cohort.fraction, 1e-9, 1);
  ReadCount(toml, &c->cohort);
  toml.Require(c->cohort.maximum == 0 || c->cohort.minimum <= c->cohort.maximum, "cohort",
               "minimum",
               absl::StrCat("[cohort] minimum = ", c->cohort.minimum,
                            " passes maximum = ", c->cohort.maximum, ": no round could succeed"));
  ReadStraggler(toml, *c, &c->straggler);
  toml.Read("compression", "codec", &c->compression.codec);
  if (const auto codec = compression::MakeCodec(c->compression.codec); !codec.ok()) {
    toml.Complain("compression", "codec",
                  absl::StrCat("[compression] codec: ", codec.status().message()));
  }
  toml.Read("checkpoint", "directory", &c->checkpoint.directory);
  toml.Require(!c->checkpoint.directory.empty(), "checkpoint", "directory",
               "[checkpoint] directory is required at the root: where models survive a crash");
  ReadIn(toml, "checkpoint", "keep", &c->checkpoint.keep, 1, 1000);
  for (auto& [name, value] : c->training.values) toml.Read("training", name, &value);
  toml.Require(c->training.values["lr"] > 0, "training", "lr", "[training] lr must be positive");
  toml.Require(c->training.values["local_epochs"] >= 1, "training", "local_epochs",
               "[training] local_epochs must be at least 1");
}

absl::StatusOr<Config> Interpret(TomlReader toml) {
  Config config;
  ReadNode(toml, &config);
  ReadTransport(toml, &config.transport);
  ReadNodeSections(toml, &config);
  if (config.is_root()) {
    config.run.emplace();
    ReadRun(toml, &*config.run);
    ReadAggregation(toml, &config.aggregation);
    ReadRoundSections(toml, &config);
  } else {
    for (const std::string& section : kRunSections) {
      if (!toml.Has(section)) continue;
      toml.Complain(
          section, "",
          absl::StrCat("[", section, "] describes the run, but this aggregator has a parent (",
                       toml.Where("node", "parent"),
                       "): move it to the root's file, or drop [node] parent"));
      toml.Ignore(section);
    }
  }
  config.where["node.listen"] = toml.Where("node", "listen");
  config.where["transport.listen"] = toml.Where("transport", "listen");
  RETURN_IF_ERROR(toml.Finish());
  return config;
}

}  // namespace

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Load(path));
  return Interpret(std::move(toml));
}

absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& path) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Parse(text, path));
  return Interpret(std::move(toml));
}

}  // namespace tributary::server
