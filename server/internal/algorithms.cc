// SCAFFOLD's, FedDyn's and the racks' own rounds' place in a run.
#include "server/internal/algorithms.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aggregation/variates.h"
#include "base/toml_checks.h"
#include "compression/policy.h"
#include "compression/sketch.h"

namespace tributary::server {
namespace {

using aggregation::ModelLayout;
using aggregation::TensorSpec;

bool Averaged(const TensorSpec& tensor) {
  return tensor.policy == aggregation::Policy::kMean && aggregation::IsFloat(tensor.dtype);
}
bool IsVariate(const TensorSpec& tensor) {
  return tensor.name.starts_with(aggregation::kVariatePrefix);
}

// What keeps clients' memories from following what the server decodes of a tensor; "": nothing.
std::string WhyNotFollowed(const compression::TensorCodec& how, const TensorSpec& tensor,
                           bool variate) {
  if (variate && how.error_feedback)
    return "ef (what is late is in the variate's next change anyway)";
  if (how.estimate) return "ef21";
  if (how.momentum > 0) return "momentum";
  if (how.planes.Divides(tensor.shape)) return "dct";
  if (compression::SketchFormOf(*how.codec) != nullptr) return "sketch";
  return "";
}

// What to write instead, where a tensor's codec is one that cannot be followed.
std::string MendOf(const TensorSpec& tensor, bool scaffold, bool feedback_by_key) {
  const std::string rule = absl::StrCat(
      "; ", scaffold ? absl::StrCat(aggregation::kVariatePrefix, "*") : tensor.name, " = int8");
  if (!feedback_by_key) return absl::StrCat("give it a rule of its own, as in \"", rule, "\"");
  return absl::StrCat(
      "[compression] error_feedback = true gives each rule ef, so leave it out, write ef "
      "into the chains that shall have it, and give this tensor a rule without, as in "
      "\"topk(0.01) | ef",
      rule, "\"");
}

void CheckCodecs(TomlReader& toml, const Config& c, const std::string& key,
                 const ModelLayout& layout) {
  const auto codec = compression::CodecPolicy::Parse(c.compression.codec);
  if (!codec.ok()) return;  // said already
  const bool scaffold = key == "scaffold";
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    if (!Averaged(tensor) || (scaffold && !IsVariate(tensor))) continue;
    const auto& how = (*codec)->For(tensor.name, layout.TensorElements(t), tensor.shape.size());
    const std::string why = WhyNotFollowed(how, tensor, scaffold);
    if (why.empty()) continue;
    const bool by_key = scaffold && how.error_feedback && c.compression.error_feedback;
    const std::string at = by_key ? "error_feedback" : "codec";
    toml.Complain("compression", at,
                  absl::StrCat("[compression] ", at, ": clients of [training] ", key,
                               " keep what the server decodes of tensor ", Quoted(tensor.name),
                               ", which is not to be had with ", why, ": ",
                               MendOf(tensor, scaffold, by_key)));
    return;  // the others are alike
  }
}

void CheckPopulation(TomlReader& toml, const std::string& key) {
  const bool given = toml.Has("training", "population_weight");
  if (key.empty()) {
    toml.Require(!given, "training", "population_weight",
                 "[training] population_weight does nothing without scaffold or feddyn: remove it");
    return;
  }
  toml.Require(given, "training", key,
               absl::StrCat("[training] ", key,
                            " averages over all clients, those that a round "
                            "does not ask too: give population_weight, the examples of all of "
                            "them together"));
}

// FedDyn's server step is its own.
void CheckServerStep(TomlReader& toml, const AggregationConfig& a) {
  const auto own = [&toml](bool good, const char* name) {
    toml.Require(good, "aggregation", name,
                 absl::StrCat("[aggregation] ", name,
                              " does nothing with [training] feddyn, whose "
                              "server step is its own: remove it, or set feddyn = 0"));
  };
  own(a.optimizer == "fedavg", "optimizer");
  own(a.server_learning_rate == 1, "server_learning_rate");
  own(a.server_schedule == "constant", "server_schedule");
  own(a.server_warmup_rounds == 0, "server_warmup_rounds");
}

// Racks with rounds of their own apply means themselves: what only the root can take apart, or a
// client can take back, does not go with it.
void CheckRackRounds(TomlReader& toml, const Config& c, const ModelLayout* layout) {
  if (c.run->rack_rounds <= 1) return;
  const auto exclude = [&toml](bool there, const std::string& what, const std::string& why) {
    toml.Require(!there, "run", "rack_rounds",
                 absl::StrCat("[run] rack_rounds above 1 does not go with ", what, ": ", why));
  };
  for (const char* name : {"fednova", "scaffold", "feddyn"}) {
    exclude(c.training.values.at(name) > 0, absl::StrCat("[training] ", name),
            "its server step is the root's alone");
  }
  exclude(c.aggregation.mode != "sync",
          absl::StrCat("[aggregation] mode = ", Quoted(c.aggregation.mode)), "there are no rounds");
  exclude(c.straggler.late != "drop", absl::StrCat("[straggler] late = ", Quoted(c.straggler.late)),
          "a late update is of another model of its rack's");
  exclude(c.compression.downlink != kNoDownlinkCodec, "[compression] downlink",
          "racks' own models go down whole");
  const auto codec = compression::CodecPolicy::Parse(c.compression.codec);
  if (!codec.ok()) return;  // said already
  exclude((*codec)->error_feedback(),
          c.compression.error_feedback ? "[compression] error_feedback"
                                       : "ef and ef21 in [compression] codec",
          "what a client keeps could not be rolled back over several rounds");
  exclude((*codec)->transforms(), "dct in [compression] codec",
          "sums of coefficients are taken back at the root");
  for (uint32_t t = 0; layout != nullptr && t < layout->tensors().size(); ++t) {
    const TensorSpec& tensor = layout->tensors()[t];
    const auto& how = (*codec)->For(tensor.name, layout->TensorElements(t), tensor.shape.size());
    if (!Averaged(tensor) || compression::SketchFormOf(*how.codec) == nullptr) continue;
    exclude(true, "sketch in [compression] codec", "sums of cells are taken apart at the root");
    return;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelLayout>> RunLayout(
    const TrainingConfig& training, std::shared_ptr<const ModelLayout> model) {
  if (training.values.at("scaffold") == 0) return model;
  return aggregation::WithVariates(*model);
}

absl::Status CheckResumedLayout(const TrainingConfig& training, const ModelLayout& layout) {
  const bool wanted = training.values.at("scaffold") != 0;
  const bool there = aggregation::FindVariates(layout).ok();
  if (wanted == there) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint's model ", there ? "has" : "lacks",
                   " the control variates of SCAFFOLD, and the config says [training] scaffold = ",
                   wanted ? 1 : 0, "; give the run another name, or that back"));
}

aggregation::OptimizerOptions OptimizerOptionsOf(const Config& c, const aggregation::Grid& grid,
                                                 const ModelLayout& layout) {
  const AggregationConfig& a = c.aggregation;
  const uint64_t rounds = a.server_schedule_rounds;
  const uint64_t population = c.training.population_weight << grid.weight_fraction_bits;
  aggregation::OptimizerOptions options{
      .name = c.training.values.at("feddyn") > 0 ? "feddyn" : a.optimizer,
      .schedule = {.rate = a.server_learning_rate,
                   .kind = a.server_schedule,
                   .rounds = rounds > 0 ? rounds : c.run->rounds,
                   .factor = a.server_schedule_factor,
                   .warmup = a.server_warmup_rounds},
      .momentum = a.server_momentum,
      .beta1 = a.server_beta1,
      .beta2 = a.server_beta2,
      .tau = a.server_tau,
      .population_weight = population};
  if (c.training.values.at("scaffold") > 0) {
    for (const TensorSpec& tensor : layout.tensors()) {
      options.running.push_back(IsVariate(tensor) ? population : 0);
    }
  }
  return options;
}

void CheckAlgorithms(TomlReader& toml, const Config& c, const ModelLayout* layout) {
  CheckRackRounds(toml, c, layout);
  const auto& values = c.training.values;
  const bool scaffold = values.at("scaffold") > 0;
  const bool feddyn = values.at("feddyn") > 0;
  const std::string key = scaffold ? "scaffold" : feddyn ? "feddyn" : "";
  CheckPopulation(toml, key);
  toml.Require(values.at("fednova") == 0 || c.cohort.weighting != "inverse_probability", "training",
               "fednova",
               "[training] fednova = 1 weighs steps by examples, [cohort] weighting = "
               "\"inverse_probability\" weighs updates otherwise: set fednova = 0, or weighting = "
               "\"examples\"");
  if (key.empty()) return;
  for (const char* other : {"fednova", "mu", "feddyn"}) {
    if (other == key || values.at(other) == 0) continue;
    toml.Complain("training", key,
                  absl::StrCat("[training] ", key, " and ", other,
                               " above 0 exclude each other: set one of them to 0"));
  }
  toml.Require(c.straggler.late != "carry", "training", key,
               absl::StrCat("[training] ", key, " needs each client's weight to stay what it is, ",
                            "and [straggler] late = \"carry\" weighs late updates less: set late = "
                            "\"drop\""));
  toml.Require(c.aggregation.mode == "sync", "training", key,
               absl::StrCat("[training] ", key,
                            " needs rounds, whose clients start from one model "
                            "and one server state: set [aggregation] mode = \"sync\""));
  toml.Require(!scaffold || c.compression.downlink == kNoDownlinkCodec, "compression", "downlink",
               "[compression] downlink sends clients something close to the server's tensors, and "
               "[training] scaffold corrects by the difference to its control variate: remove it");
  if (feddyn) CheckServerStep(toml, c.aggregation);
  if (layout != nullptr) CheckCodecs(toml, c, key, *layout);
}

}  // namespace tributary::server
