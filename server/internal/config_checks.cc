// Impossible combinations, each as a finding at the key that is best mended.
#include "server/internal/config_checks.h"

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "compression/agreed.h"
#include "compression/policy.h"
#include "compression/segment.h"
#include "compression/sketch.h"
#include "models/builtin.h"
#include "models/safetensors.h"
#include "server/internal/algorithms.h"
#include "server/internal/policies.h"

namespace tributary::server {
namespace {

using aggregation::ModelLayout;
namespace fs = std::filesystem;

bool Wildcard(const std::string& host) { return host == "0.0.0.0" || host == "[::]"; }
bool Loopback(const std::string& host) {
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

// Whether connecting to `to` arrives at who listens at `listen`, as far as the text shows.
bool Reaches(const HostPort& to, const HostPort& listen) {
  if (to.port == 0 || to.port != listen.port) return false;
  return to.host == listen.host || (Loopback(to.host) && Loopback(listen.host)) ||
         (Loopback(to.host) && Wildcard(listen.host));
}

// Whether only one of the two can listen.
bool Collide(const HostPort& a, const HostPort& b) {
  if (a.port == 0 || a.port != b.port) return false;
  return a.host == b.host || Wildcard(a.host) || Wildcard(b.host);
}

void CheckAddresses(TomlReader& toml, const Config& c) {
  const auto door = ParseHostPort(c.node.listen);
  const auto links = ParseHostPort(c.transport.listen);
  if (!door.has_value()) return;  // said already
  for (const std::string& parent : c.node.parent) {
    const auto to = ParseHostPort(parent);
    toml.Require(!to.has_value() || !Reaches(*to, *door), "node", "parent",
                 absl::StrCat(KeyText("node", "parent", Quoted(parent)),
                              " is this aggregator itself, which listens on ", c.node.listen,
                              ": name the parent's front door"));
  }
  toml.Require(!links.has_value() || !Collide(*links, *door), "transport", "listen",
               absl::StrCat(KeyText("transport", "listen", Quoted(c.transport.listen)),
                            " is the port of [node] listen = ", Quoted(c.node.listen),
                            " too: give links another, or port 0"));
}

// A file that will be appended to.
void CheckFile(TomlReader& toml, const std::string& section, const std::string& key,
               const std::string& path, bool makes_directory) {
  if (path.empty()) return;
  std::error_code error;
  const fs::path directory = fs::absolute(path, error).parent_path();
  if (fs::is_directory(path, error)) {
    toml.Complain(
        section, key,
        absl::StrCat(KeyText(section, key, Quoted(path)), " is a directory: name a file"));
  } else if (!makes_directory && !fs::is_directory(directory, error)) {
    toml.Complain(section, key,
                  absl::StrCat(KeyText(section, key, Quoted(path)), ": no directory ",
                               directory.string(), "; make it, or correct the path"));
  }
}

// The run's layout, with its policies; null where that is an error, which the finding names.
std::shared_ptr<const ModelLayout> CheckModel(TomlReader& toml, const Config& c) {
  const std::string& name = c.run->model;
  std::error_code error;
  absl::StatusOr<std::shared_ptr<const ModelLayout>> layout;
  if (models::IsBuiltin(name)) {
    layout = models::BuiltinLayout(name);
  } else if (name.ends_with(".safetensors") && fs::exists(name, error)) {
    layout = models::ReadSafetensorsLayout(name);
  } else {
    return nullptr;  // said already
  }
  if (!layout.ok()) {
    toml.Complain("run", "model", absl::StrCat("[run] model: ", layout.status().message()));
    return nullptr;
  }
  bool good = true;
  for (const auto& [pattern, policy] : c.aggregation.policies) {
    const std::string wrong = WrongPattern(**layout, pattern);
    good = good && wrong.empty();
    toml.Require(wrong.empty(), "aggregation.policies", pattern, wrong);
  }
  if (!good) return nullptr;
  layout = WithPolicies(*layout, c.aggregation.policies);
  if (!layout.ok()) return nullptr;
  toml.Require((*layout)->elements() > 0, "aggregation.policies", "",
               absl::StrCat("[aggregation.policies] leave nothing of model \"", name,
                            "\" to send: every tensor is skipped or empty"));
  layout = RunLayout(c.training, *layout);
  toml.Require(layout.ok(), "training", "scaffold",
               absl::StrCat("[training] scaffold: ", layout.status().message()));
  return layout.ok() ? *layout : nullptr;
}

// The least that an update of this layout takes on the wire. Of a codec of variable rate that is
// hardly more than its headers.
uint64_t UpdateBytes(const ModelLayout& layout, const compression::CodecPolicy& policy) {
  uint64_t bytes = 0;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = layout.tensors()[t];
    const uint64_t elements = layout.TensorElements(t);
    if (tensor.policy == aggregation::Policy::kSkip || elements == 0) continue;
    bytes += compression::SegmentHeader::kBytes;
    if (!aggregation::IsFloat(tensor.dtype)) {
      bytes += elements * sizeof(int64_t);
      continue;
    }
    const auto& codec = *policy.For(tensor.name, elements, tensor.shape.size()).codec;
    if (codec.fixed_rate()) bytes += codec.EncodedBytes(elements);
  }
  return bytes;
}

void CheckBudget(TomlReader& toml, const Config& c, const ModelLayout& layout) {
  const auto codec = compression::CodecPolicy::Parse(c.compression.codec);
  if (!codec.ok() || c.limits.inflight_bytes < kLeastInflightBytes) return;  // said already
  const uint64_t bytes = UpdateBytes(layout, **codec);
  toml.Require(
      bytes <= c.limits.inflight_bytes, "limits", "inflight_bytes",
      absl::StrCat(KeyText("limits", "inflight_bytes", absl::StrCat(c.limits.inflight_bytes)),
                   " holds not one update of model \"", c.run->model, "\", ", bytes, " bytes as ",
                   c.compression.codec, ": raise it"));
}

// Whose deltas come as changes of an estimate must be floats that are averaged by examples.
void CheckEstimates(TomlReader& toml, const Config& c, const ModelLayout& layout) {
  const auto codec = compression::CodecPolicy::Parse(c.compression.codec);
  if (!codec.ok() || !(*codec)->estimates()) return;
  toml.Require(
      c.training.values.at("fednova") == 0, "compression", "codec",
      "[compression] codec: ef21 keeps sums over rounds, and [training] fednova = 1 scales "
      "each round's by its own steps: set fednova = 0, or take ef");
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = layout.tensors()[t];
    if (!aggregation::IsFloat(tensor.dtype)) continue;
    const auto& how = (*codec)->For(tensor.name, layout.TensorElements(t), tensor.shape.size());
    const bool averaged = tensor.policy == aggregation::Policy::kMean;
    toml.Require(
        !how.estimate || averaged || tensor.policy == aggregation::Policy::kSkip, "compression",
        "codec",
        absl::StrCat("[compression] codec: ef21 is for tensors that are averaged, and ",
                     "[aggregation.policies] say otherwise of ", Quoted(tensor.name),
                     ": give it a rule without ef21, as in \"; ", tensor.name, " = fp32\""));
  }
}

// dct without a tensor of such planes is a mistake; those it means must be averaged.
void CheckPlanes(TomlReader& toml, const Config& c, const ModelLayout& layout) {
  const auto codec = compression::CodecPolicy::Parse(c.compression.codec);
  if (!codec.ok() || !(*codec)->transforms()) return;
  bool any = false;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = layout.tensors()[t];
    if (!aggregation::IsFloat(tensor.dtype) || tensor.policy == aggregation::Policy::kSkip)
      continue;
    const auto& how = (*codec)->For(tensor.name, layout.TensorElements(t), tensor.shape.size());
    if (!how.planes.Divides(tensor.shape)) continue;
    any = true;
    toml.Require(tensor.policy == aggregation::Policy::kMean, "compression", "codec",
                 absl::StrCat("[compression] codec: dct is for tensors that are averaged, and "
                              "[aggregation.policies] say otherwise of ",
                              Quoted(tensor.name), ": give it a rule without dct"));
  }
  toml.Require(any, "compression", "codec",
               absl::StrCat("[compression] codec: no tensor of model \"", c.run->model,
                            "\" that has dct is made of such images: its last dimension must be a "
                            "multiple of rows times columns"));
}

// A sketch tells no more elements apart than a row has columns.
void CheckSketches(TomlReader& toml, const Config& c, const ModelLayout& layout) {
  const auto codec = compression::CodecPolicy::Parse(c.compression.codec);
  if (!codec.ok()) return;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = layout.tensors()[t];
    if (!aggregation::IsFloat(tensor.dtype) || tensor.policy == aggregation::Policy::kSkip)
      continue;
    const auto& how = (*codec)->For(tensor.name, layout.TensorElements(t), tensor.shape.size());
    const compression::SketchForm* const form = compression::SketchFormOf(*how.codec);
    if (form == nullptr) continue;
    toml.Require(c.aggregation.mode == "sync", "compression", "codec",
                 absl::StrCat("[compression] codec: sums of sketches keep what was not found in "
                              "them for the next round, and with [aggregation] mode = ",
                              Quoted(c.aggregation.mode),
                              " that would be found with updates of other versions and weights: "
                              "take topk, or mode = \"sync\""));
    const double most = compression::MostRecovered(*form);
    toml.Require(
        form->recover <= most, "compression", "codec",
        absl::StrCat("[compression] codec: the sketch of ", Quoted(tensor.name), " has ",
                     form->columns, " columns a row for each ", compression::kTileElements,
                     " elements, too few to tell apart the ",
                     form->recover * static_cast<double>(compression::kTileElements),
                     " that recover = ", form->recover, " would find: the model would move by ",
                     "collisions, more each round; set recover to ", most,
                     " or less (an eighth of that is safe), or the sketch's fraction higher"));
    return;  // once will do: one rule mostly has them all
  }
}

void CheckAgreedStep(TomlReader& toml, const Config& c) {
  toml.Require(c.aggregation.mode == "sync" || !compression::WantsAgreedStep(c.compression.codec),
               "compression", "codec",
               absl::StrCat("[compression] codec: hq's step=auto is agreed for a round, and with "
                            "[aggregation] mode = ",
                            Quoted(c.aggregation.mode),
                            " updates of several versions, each with its own step, meet in one "
                            "buffer: give the step, as in hq(step=2^-12)"));
}

void CheckGrid(TomlReader& toml, const Config& c) {
  const AggregationConfig& a = c.aggregation;
  const auto grid = aggregation::ProveGrid(GridRequestOf(a));
  if (!grid.ok()) {
    const bool bound = toml.Has("aggregation", "bound");
    toml.Complain("aggregation", bound ? "bound" : "max_round_weight",
                  absl::StrCat("[aggregation] ", grid.status().message()));
    return;
  }
  toml.Require(c.cohort.minimum <= grid->max_weight, "cohort", "minimum",
               absl::StrCat(KeyText("cohort", "minimum", absl::StrCat(c.cohort.minimum)),
                            " clients weigh more than [aggregation] max_round_weight = ",
                            a.max_round_weight, " lets in: no round could succeed"));
}

// What [tls] is for: the front door, or a parent.
void CheckTlsUse(TomlReader& toml, const Config& c) {
  if (!toml.Has("tls")) return;
  toml.Require(!c.is_root() || !toml.Has("tls", "parent_ca"), "tls", "parent_ca",
               "[tls] parent_ca is about a parent, and a root has none: remove it; client_ca is "
               "what clients and racks are held against");
  toml.Require(toml.Has("tls", "cert") || toml.Has("tls", "key") || toml.Has("tls", "client_ca") ||
                   toml.Has("tls", "parent_ca") || toml.Has("tls", "parent_server_name"),
               "tls", "",
               "[tls] turns nothing on: give cert and key for the front door, parent_ca for the "
               "way to the parent, or remove it");
}

}  // namespace

aggregation::GridRequest GridRequestOf(const AggregationConfig& config) {
  aggregation::GridRequest request;
  request.fraction_bits = config.fraction_bits;
  request.bound = config.bound;
  request.max_weight = config.max_round_weight;
  request.fractional_weights = config.fractional_weights;
  return request;
}

void CheckNodeTogether(TomlReader& toml, const Config& c) {
  CheckAddresses(toml, c);
  const FaultsConfig& faults = c.transport.faults;
  toml.Require(!c.is_root() || (faults.stall_after == 0 && faults.cut_after == 0),
               "transport.faults", faults.stall_after > 0 ? "stall_after" : "cut_after",
               "[transport.faults] is about links to a parent, and a root has none: remove it");
  toml.Require(c.transport.heartbeat_s < c.transport.progress_timeout_s, "transport",
               toml.Has("transport", "progress_timeout_s") ? "progress_timeout_s" : "heartbeat_s",
               absl::StrCat("[transport] heartbeat_s = ", c.transport.heartbeat_s,
                            " is not below progress_timeout_s = ", c.transport.progress_timeout_s,
                            ": an idle link would count as dead"));
  CheckTlsUse(toml, c);
  CheckFile(toml, "log", "file", c.log.file, false);
  CheckFile(toml, "metrics", "rounds_file", c.metrics.rounds_file, true);
}

void CheckRunTogether(TomlReader& toml, const Config& c) {
  CheckGrid(toml, c);
  const auto layout = CheckModel(toml, c);
  CheckAlgorithms(toml, c, layout.get());
  if (layout != nullptr) {
    CheckBudget(toml, c, *layout);
    CheckEstimates(toml, c, *layout);
    CheckPlanes(toml, c, *layout);
    CheckSketches(toml, c, *layout);
  }
  CheckAgreedStep(toml, c);
  std::error_code error;
  const std::string& directory = c.checkpoint.directory;
  toml.Require(!fs::exists(directory, error) || fs::is_directory(directory, error), "checkpoint",
               "directory",
               absl::StrCat(KeyText("checkpoint", "directory", Quoted(directory)),
                            " is a file: name a directory, which is made where it is not there"));
}

}  // namespace tributary::server
