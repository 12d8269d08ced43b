// Reading and checking an aggregator's TOML, section by section.
#include "server/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aggregation/hyperparameters.h"
#include "aggregation/model_delta.h"
#include "aggregation/optimizer.h"
#include "base/status.h"
#include "base/tls_config.h"
#include "base/toml_checks.h"
#include "compression/policy.h"
#include "models/builtin.h"
#include "server/evaluator.h"
#include "server/fabrics.h"
#include "server/internal/config_checks.h"

namespace tributary::server {
namespace {

const std::vector<std::string> kRunSections = {"run",        "aggregation", "async",
                                               "cohort",     "straggler",   "compression",
                                               "checkpoint", "training",    "evaluation"};

bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= 128 && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
         });
}

// What the front doors of all tiers take for an id.
bool IsId(const std::string& text) {
  return !text.empty() && text.size() <= 256 && std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20;
  });
}

void ReadNode(TomlReader& toml, Config* c) {
  toml.Read("node", "name", &c->node.name);
  toml.Read("node", "listen", &c->node.listen);
  const bool has_parent = toml.Read("node", "parent", &c->node.parent);
  toml.Require(IsId(c->node.name), "node", "name",
               "[node] name is required: 1 to 256 bytes without control characters, unique among "
               "this aggregator's siblings");
  CheckHostPort(toml, "node", "listen", c->node.listen, PortUse::kListen);
  toml.Require(!has_parent || !c->node.parent.empty(), "node", "parent",
               "[node] parent names nobody: give it a \"host:port\", or drop it where this is the "
               "root");
  for (const std::string& parent : c->node.parent)
    CheckHostPort(toml, "node", "parent", parent, PortUse::kConnect);
}

void ReadTransport(TomlReader& toml, TransportConfig* t) {
  ReadOneOf(toml, "transport", "kind", &t->kind, TransportKinds());
  toml.Read("transport", "listen", &t->listen);
  CheckHostPort(toml, "transport", "listen", t->listen, PortUse::kListen);
  if (toml.Read("transport", "advertise", &t->advertise))
    CheckHostPort(toml, "transport", "advertise", t->advertise, PortUse::kConnect);
  ReadIn(toml, "transport", "lanes", &t->lanes, 1, 16);
  ReadIn(toml, "transport", "slots", &t->slots, 2, 1024);
  ReadIn(toml, "transport", "heartbeat_s", &t->heartbeat_s, 0.05, 3600);
  ReadIn(toml, "transport", "heartbeats_missed", &t->heartbeats_missed, 1, 1000);
  ReadIn(toml, "transport", "progress_timeout_s", &t->progress_timeout_s, 0.1, 86400);
  toml.Read("transport.roce", "device", &t->roce.device);
  ReadIn(toml, "transport.roce", "port", &t->roce.port, 0, 255);
  ReadIn(toml, "transport.roce", "gid_index", &t->roce.gid_index, -1, 255);
  ReadIn(toml, "transport.roce", "path_mtu", &t->roce.path_mtu, 0, 4096);
  const uint32_t mtu = t->roce.path_mtu;
  toml.Require(
      mtu == 0 || (mtu >= 256 && (mtu & (mtu - 1)) == 0), "transport.roce", "path_mtu",
      absl::StrCat("[transport.roce] path_mtu = ", mtu, " is not 0, 256, 512, 1024, 2048 or 4096"));
  ReadIn(toml, "transport.roce", "traffic_class", &t->roce.traffic_class, 0, 255);
  ReadIn(toml, "transport.roce", "hop_limit", &t->roce.hop_limit, 1, 255);
  ReadIn(toml, "transport.roce", "service_level", &t->roce.service_level, 0, 15);
  ReadIn(toml, "transport.roce", "ack_timeout_s", &t->roce.ack_timeout_s, 1e-5, 60);
  ReadIn(toml, "transport.roce", "retries", &t->roce.retries, 1, 7);
  toml.ReadBytes("transport.roce", "arena_bytes", &t->roce.arena_bytes);
  ReadOneOf(toml, "transport.roce", "memory", &t->roce.memory, {"host", "cuda"});
  ReadIn(toml, "transport.faults", "stall_after", &t->faults.stall_after, 0, 1e15);
  ReadIn(toml, "transport.faults", "cut_after", &t->faults.cut_after, 0, 1e15);
}

void ReadNodeSections(TomlReader& toml, Config* c) {
  LimitsConfig& l = c->limits;
  if (toml.ReadBytes("limits", "inflight_bytes", &l.inflight_bytes)) {
    toml.Require(l.inflight_bytes >= kLeastInflightBytes && l.inflight_bytes <= uint64_t{1} << 50,
                 "limits", "inflight_bytes",
                 absl::StrCat("[limits] inflight_bytes = ", l.inflight_bytes,
                              " is out of range: 64KiB to 1024TiB"));
  }
  if (toml.ReadBytes("limits", "stream_window_bytes", &l.stream_window_bytes)) {
    toml.Require(l.stream_window_bytes >= 1 << 16 && l.stream_window_bytes <= 1 << 24, "limits",
                 "stream_window_bytes",
                 absl::StrCat("[limits] stream_window_bytes = ", l.stream_window_bytes,
                              " is out of range: 64KiB to 16MiB"));
  }
  ReadIn(toml, "limits", "fold_workers", &l.fold_workers, 0, 256);
  ReadIn(toml, "limits", "max_sessions", &l.max_sessions, 1, 1e6);
  ReadIn(toml, "limits", "session_timeout_s", &l.session_timeout_s, 1, 86400);
  ReadIn(toml, "limits", "upload_progress_timeout_s", &l.upload_progress_timeout_s, 0.1, 86400);
  ReadIn(toml, "limits", "grant_timeout_s", &l.grant_timeout_s, 0.1, 3600);
  ReadIn(toml, "limits", "shutdown_grace_s", &l.shutdown_grace_s, 0, 86400);
  ReadOneOf(toml, "log", "level", &c->log.level, {"trace", "debug", "info", "warn", "error"});
  ReadOneOf(toml, "log", "format", &c->log.format, {"human", "json"});
  toml.Read("log", "file", &c->log.file);
  toml.Read("metrics", "rounds_file", &c->metrics.rounds_file);
}

void ReadTls(TomlReader& toml, TlsConfig* t) {
  ReadTlsPair(toml, TlsSide::kServer, &t->cert_pem, &t->key_pem);
  ReadTlsCa(toml, "client_ca", &t->client_ca_pem);
  RequireTlsKey(toml, "client_ca", "cert");
  ReadTlsCa(toml, "parent_ca", &t->parent_ca_pem);
  toml.Read("tls", "parent_server_name", &t->parent_server_name);
  RequireTlsKey(toml, "parent_server_name", "parent_ca");
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
    toml.Complain(
        "run", "model",
        absl::StrCat("[run] model: no file ", r->model, "; correct the path, or write one of ",
                     absl::StrJoin(models::BuiltinNames(), ", ")));
  }
  ReadIn(toml, "run", "startup_limit_s", &r->startup_limit_s, 0.1, 1e7);
  ReadIn(toml, "run", "evaluate_every", &r->evaluate_every, 0, 1e9);
  ReadIn(toml, "run", "max_failed_rounds", &r->max_failed_rounds, 1, 1e9);
  ReadIn(toml, "run", "rack_rounds", &r->rack_rounds, 1, 1000);
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
  ReadOneOf(toml, "aggregation", "mode", &a->mode, {"sync", "async", "fedasync"});
  ReadOneOf(toml, "aggregation", "rule", &a->rule, {"mean"});
  ReadOptimizer(toml, a);
  ReadOneOf(toml, "aggregation", "partial_sum", &a->partial_sum, {"exact"});
  ReadIn(toml, "aggregation", "fraction_bits", &a->fraction_bits, 20, 44);
  double bound = 0;  // how large it may be, the grid's proof says
  if (toml.Read("aggregation", "bound", &bound)) a->bound = bound;
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

void ReadWeighting(TomlReader& toml, Config* c) {
  CohortConfig& cohort = c->cohort;
  ReadOneOf(toml, "cohort", "weighting", &cohort.weighting, {"examples", "inverse_probability"});
  ReadIn(toml, "cohort", "most_gain", &cohort.most_gain, 1, 1000);
  const bool inverse = cohort.weighting == "inverse_probability";
  toml.Require(inverse || !toml.Has("cohort", "most_gain"), "cohort", "most_gain",
               "[cohort] most_gain does nothing without weighting = \"inverse_probability\": "
               "remove it, or set that");
  toml.Require(!inverse || c->aggregation.fractional_weights, "cohort", "weighting",
               "[cohort] weighting = \"inverse_probability\" makes weights smaller than one: set "
               "[aggregation] fractional_weights = true");
  toml.Require(!inverse || c->aggregation.mode == "sync", "cohort", "weighting",
               "[cohort] weighting = \"inverse_probability\" needs rounds: remove it, or set "
               "[aggregation] mode = \"sync\"");
  toml.Require(!inverse || c->compression.population_weight == 0, "cohort", "weighting",
               "[cohort] weighting = \"inverse_probability\" does not go with [compression] "
               "population_weight, which counts everybody's examples once: remove one");
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
  ReadIn(toml, "straggler", "degraded_work", &s->degraded_work, 0.01, 1);
  toml.Read("straggler", "partial_work", &s->partial_work);
  ReadOneOf(toml, "straggler", "late", &s->late, {"drop", "carry", "supplement"});
  ReadIn(toml, "straggler", "max_staleness", &s->max_staleness, 1, 1000);
  ReadIn(toml, "straggler", "supplement_wait_s", &s->supplement_wait_s, 0, 3600);
  toml.Require(s->late != "carry" || config.aggregation.fractional_weights, "straggler", "late",
               "[straggler] late = \"carry\" weighs late updates in fractions of an example: set "
               "[aggregation] fractional_weights = true");
}

void ReadTraining(TomlReader& toml, const StragglerConfig& straggler, TrainingConfig* t) {
  for (auto& [name, value] : t->values) {
    if (!toml.Read("training", name, &value)) continue;
    const absl::Status status = aggregation::CheckHyperparameter(name, value);
    toml.Require(status.ok(), "training", name, absl::StrCat("[training] ", status.message()));
  }
  ReadIn(toml, "training", "population_weight", &t->population_weight, 1, 0x1p46);
  const bool nova = t->values["fednova"] > 0;
  toml.Require(nova || !straggler.partial_work, "straggler", "partial_work",
               "[straggler] partial_work = true makes the steps of a slow client fewer, and its "
               "update with them: set [training] fednova = 1, which evens that out");
  toml.Require(!nova || t->values["mu"] == 0, "training", "fednova",
               "[training] fednova = 1 and mu above 0 exclude each other: set one of them to 0");
  toml.Require(
      !nova || straggler.late != "carry", "training", "fednova",
      "[training] fednova = 1 weighs steps by examples, [straggler] late = \"carry\" weighs "
      "late ones less: set fednova = 0, or late = \"drop\"");
}

void ReadAsync(TomlReader& toml, const Config& config, AsyncConfig* a) {
  const std::string& mode = config.aggregation.mode;
  ReadIn(toml, "async", "buffer", &a->buffer, 1, 1e6);
  ReadIn(toml, "async", "concurrency", &a->concurrency, 0, 1e9);
  ReadIn(toml, "async", "max_staleness", &a->max_staleness, 0, 1000);
  ReadIn(toml, "async", "flush_s", &a->flush_s, 0.05, 1e7);
  ReadIn(toml, "async", "collect_s", &a->collect_s, 0.05, 1e6);
  ReadIn(toml, "async", "mixing", &a->mixing, 1e-6, 1);
  toml.Require(mode != "sync" || !toml.Has("async"), "async", "",
               "[async] does nothing with [aggregation] mode = \"sync\": remove it, or set mode = "
               "\"async\"");
  if (mode == "sync") return;
  if (mode == "fedasync") {
    toml.Require(!toml.Has("async", "buffer"), "async", "buffer",
                 "[async] buffer does nothing with mode = \"fedasync\", which applies each update "
                 "by itself: remove it");
    a->buffer = 1;
  }
  toml.Require(a->buffer * (a->max_staleness + uint64_t{1}) <= 1'000'000, "async", "max_staleness",
               absl::StrCat("[async] max_staleness = ", a->max_staleness,
                            " versions of buffer = ", a->buffer,
                            " updates would have to be remembered, and kept in each checkpoint, so "
                            "that none counts twice; a million at most: lower one of them"));
  toml.Require(mode == "fedasync" || !toml.Has("async", "mixing"), "async", "mixing",
               "[async] mixing does nothing with mode = \"async\", only with \"fedasync\": "
               "remove it, or use [aggregation] server_learning_rate");
  toml.Require(config.aggregation.fractional_weights, "aggregation", "mode",
               absl::StrCat("[aggregation] mode = \"", mode,
                            "\" weighs old updates in fractions of an example: set "
                            "fractional_weights = true"));
  for (const char* key : {"fraction", "count", "over_selection", "maximum"}) {
    toml.Require(!toml.Has("cohort", key), "cohort", key,
                 absl::StrCat("[cohort] ", key, " does nothing with [aggregation] mode = \"", mode,
                              "\", where [async] concurrency says how many train: remove it"));
  }
  for (const char* key :
       {"deadline", "deadline_floor_s", "deadline_quantile", "deadline_margin", "participation",
        "degraded_work", "late", "max_staleness", "partial_work", "quorum", "supplement_wait_s"}) {
    toml.Require(!toml.Has("straggler", key), "straggler", key,
                 absl::StrCat("[straggler] ", key, " does nothing with [aggregation] mode = \"",
                              mode, "\", where nobody is waited for: remove it"));
  }
  toml.Require(config.training.values.at("fednova") == 0, "training", "fednova",
               absl::StrCat("[training] fednova = 1 weighs steps by examples, [aggregation] mode = "
                            "\"",
                            mode, "\" weighs old updates less: set fednova = 0"));
  toml.Require(config.compression.downlink == kNoDownlinkCodec, "compression", "downlink",
               absl::StrCat("[compression] downlink sends steps between rounds' models, and "
                            "[aggregation] mode = \"",
                            mode, "\" has no rounds: remove it"));
}

// What ef21 needs and excludes.
void ReadEf21(TomlReader& toml, bool ef21, Config* c) {
  uint64_t& population = c->compression.population_weight;
  ReadIn(toml, "compression", "population_weight", &population, 1, 0x1p50);
  const bool given = toml.Has("compression", "population_weight");
  toml.Require(ef21 || !given, "compression", "population_weight",
               "[compression] population_weight does nothing without ef21 in codec: remove it");
  if (!ef21) return;
  toml.Require(given, "compression", "codec",
               "[compression] codec: ef21 averages over all clients' estimates: give "
               "population_weight, the examples of all clients together");
  toml.Require(
      !given || population <= c->aggregation.max_round_weight, "compression", "population_weight",
      absl::StrCat("[compression] population_weight = ", population,
                   " passes [aggregation] max_round_weight = ", c->aggregation.max_round_weight,
                   ", by which sums are proved not to overflow: raise that"));
  toml.Require(c->straggler.late != "carry", "compression", "codec",
               "[compression] codec: ef21 needs each client's weight to stay what it is, and "
               "[straggler] late = \"carry\" weighs late updates less: set late = \"drop\"");
  toml.Require(c->aggregation.mode == "sync", "compression", "codec",
               "[compression] codec: ef21 needs each client's weight to stay what it is, and "
               "asynchronous rounds weigh old updates less: set [aggregation] mode = \"sync\"");
}

// The updates' codec, as the run has it: with ef where error_feedback asks for it.
void ReadCodec(TomlReader& toml, Config* c) {
  std::string& codec = c->compression.codec;
  toml.Read("compression", "codec", &codec);
  toml.Read("compression", "error_feedback", &c->compression.error_feedback);
  toml.Read("compression", "linear", &c->compression.linear);
  const auto policy = compression::CodecPolicy::Parse(codec);
  if (!policy.ok()) {
    toml.Complain("compression", "codec",
                  absl::StrCat("[compression] codec: ", policy.status().message()));
    return;
  }
  ReadEf21(toml, (*policy)->estimates(), c);
  if (c->compression.linear) {
    const absl::Status status = compression::CheckLinear(codec);
    toml.Require(status.ok(), "compression", "linear",
                 absl::StrCat("[compression] linear: ", status.message(), ", or leave linear out"));
  }
  if (!c->compression.error_feedback) return;
  auto with = compression::WithErrorFeedback(codec);
  toml.Require(with.ok(), "compression", "error_feedback",
               absl::StrCat("[compression] error_feedback: ", with.status().message()));
  if (with.ok()) codec = *std::move(with);
}

void ReadDownlink(TomlReader& toml, CompressionConfig* c) {
  toml.Read("compression", "downlink", &c->downlink);
  const bool none = c->downlink == kNoDownlinkCodec;
  if (!none) {
    const absl::Status status = aggregation::ParseDownlinkCodec(c->downlink).status();
    toml.Require(status.ok(), "compression", "downlink",
                 absl::StrCat("[compression] downlink: ", status.message()));
  }
  ReadIn(toml, "compression", "downlink_steps", &c->downlink_steps, 1, 4096);
  toml.Require(!none || !toml.Has("compression", "downlink_steps"), "compression", "downlink_steps",
               "[compression] downlink_steps does nothing without downlink: remove it, or give a "
               "codec");
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
  ReadCodec(toml, c);
  ReadWeighting(toml, c);
  ReadDownlink(toml, &c->compression);
  toml.Read("checkpoint", "directory", &c->checkpoint.directory);
  toml.Require(!c->checkpoint.directory.empty(), "checkpoint", "directory",
               "[checkpoint] directory is required at the root: where models survive a crash");
  ReadIn(toml, "checkpoint", "keep", &c->checkpoint.keep, 1, 1000);
}

void ReadEvaluation(TomlReader& toml, EvaluationConfig* e) {
  toml.Read("evaluation", "command", &e->command);
  ReadIn(toml, "evaluation", "every", &e->every, 1, 1e9);
  ReadIn(toml, "evaluation", "timeout_s", &e->timeout_s, 0.1, 1e6);
  if (!toml.Has("evaluation")) return;
  if (e->command.empty() || e->command.front().empty()) {
    toml.Complain("evaluation", toml.Has("evaluation", "command") ? "command" : "",
                  "[evaluation] command is required: a program and its arguments, as in "
                  "[\"tributary-client\", \"--evaluate\", \"FILE\"]");
    return;
  }
  const absl::Status found = FindProgram(e->command.front()).status();
  toml.Require(found.ok(), "evaluation", "command",
               absl::StrCat("[evaluation] command: ", found.message()));
}

// A client's file, given to the wrong program: one finding says it better than a dozen.
absl::Status CheckKind(const TomlReader& toml) {
  if (!toml.Has("client") || toml.Has("node")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(toml.Where("client", ""),
                   ": this is a client's config, not an aggregator's: "
                   "start it, or check it, with tributary-client"));
}

absl::StatusOr<Config> Interpret(TomlReader& toml) {
  RETURN_IF_ERROR(CheckKind(toml));
  Config config;
  ReadNode(toml, &config);
  ReadTransport(toml, &config.transport);
  ReadNodeSections(toml, &config);
  ReadTls(toml, &config.tls);
  CheckNodeTogether(toml, config);
  if (config.is_root()) {
    config.run.emplace();
    ReadRun(toml, &*config.run);
    ReadAggregation(toml, &config.aggregation);
    ReadRoundSections(toml, &config);
    ReadTraining(toml, config.straggler, &config.training);
    ReadAsync(toml, config, &config.asynchronous);
    ReadEvaluation(toml, &config.evaluation);
    CheckRunTogether(toml, config);
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
  for (const auto& [section, key] :
       std::initializer_list<std::pair<const char*, const char*>>{{"node", "listen"},
                                                                  {"transport", "listen"},
                                                                  {"log", "file"},
                                                                  {"metrics", "rounds_file"},
                                                                  {"run", "model"},
                                                                  {"checkpoint", "directory"}}) {
    config.where[absl::StrCat(section, ".", key)] = toml.Where(section, key);
  }
  RETURN_IF_ERROR(toml.Finish());
  return config;
}

}  // namespace

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Load(path));
  return Interpret(toml);
}

absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& path) {
  ASSIGN_OR_RETURN(TomlReader toml, TomlReader::Parse(text, path));
  return Interpret(toml);
}

std::vector<std::string> ConfigKeys() {
  // Nothing is there, so all of it is asked for: without a parent it is a root's.
  TomlReader toml = *TomlReader::Parse("", "");
  (void)Interpret(toml);
  return toml.KnownKeys();
}

}  // namespace tributary::server
