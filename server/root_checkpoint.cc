// What a commit keeps of the root, and how a root resumes from it.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "models/builtin.h"
#include "models/safetensors.h"
#include "server/internal/algorithms.h"
#include "server/internal/async_proto.h"
#include "server/internal/policies.h"
#include "server/internal/root.h"

namespace tributary::server {

absl::Status Root::Resume(Checkpoint checkpoint) {
  const v1::CheckpointState& state = checkpoint.state;
  if (state.seed() != c_.run->seed) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of run \"", c_.run->name, "\" in ", store_->path(),
                     " has seed ", state.seed(), ", the config ", c_.run->seed,
                     "; give the run another name, or its seed back"));
  }
  RETURN_IF_ERROR(CheckResumedLayout(c_.training, *checkpoint.model.layout));
  RETURN_IF_ERROR(CheckResumedModel(*checkpoint.model.layout));
  RETURN_IF_ERROR(MakeOptimizer(checkpoint.model.layout));
  RETURN_IF_ERROR(MakeSketches(checkpoint.model.layout, state.sketches()));
  RETURN_IF_ERROR(optimizer_->Restore({state.optimizer().begin(), state.optimizer().end()}));
  published_ = model_ = ModelVersion::Make(state.version(), checkpoint.model.layout,
                                           std::move(checkpoint.model.bytes));
  // Whatever the config says now: this is what clients hold, or will be given to go on from.
  if (!checkpoint.published.empty()) {
    published_ =
        ModelVersion::Make(state.version(), model_->layout, std::move(checkpoint.published));
  }
  if (state.has_codec_largest()) largest_ = state.codec_largest();
  round_ = state.round();
  finished_ = state.finished() && state.round() >= c_.run->rounds;
  std::map<std::string, uint32_t> children;
  for (const std::string& id : state.children()) children[id] = 1;
  for (const auto& [id, parts] : state.parts()) children[id] = parts;
  const std::vector<std::string> clients(state.contributors().begin(), state.contributors().end());
  collector_->SetLastOutcome(state.version(), std::move(children), clients);
  if (asynchronous()) {
    collector_->SetFates(
        state.version(),
        {FromProto(state.counted()), FromProto(state.voided()), state.counted_from()},
        FromProto(state.contributions()), c_.asynchronous.max_staleness);
  }
  spdlog::info("run \"{}\" resumes after round {} (model version {}, SHA-256 {})", c_.run->name,
               round_, model_->version, absl::BytesToHexString(model_->sha256));
  return absl::OkStatus();
}

// A checkpoint brings its own layout; a config that asks for another one must not be passed over.
absl::Status Root::CheckResumedModel(const aggregation::ModelLayout& saved) const {
  auto wanted = models::IsBuiltin(c_.run->model) ? models::BuiltinLayout(c_.run->model)
                                                 : models::ReadSafetensorsLayout(c_.run->model);
  if (wanted.ok()) wanted = WithPolicies(*wanted, c_.aggregation.policies);
  if (wanted.ok()) wanted = RunLayout(c_.training, *wanted);
  if (!wanted.ok()) return Annotate(wanted.status(), Where("run.model"));
  if ((*wanted)->hash() == saved.hash()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint of run \"", c_.run->name, "\" in ", store_->path(),
                   " has another model than the config's [run] model \"", c_.run->model,
                   "\" with its [aggregation.policies]: ", saved.DescribeDifference(**wanted),
                   "; give the run another name, or that model and those policies back"));
}

absl::Status Root::Save(const v1::RoundSpec& spec, const aggregation::RoundResult& result,
                        const Collector::AsyncFates& fates, const Applied& applied) {
  v1::CheckpointState state;
  state.set_run(spec.run());
  state.set_round(spec.round());
  state.set_version(spec.round());
  state.set_seed(spec.seed());
  *state.mutable_layout() = model_->layout->ToProto();
  *state.mutable_spec() = spec;
  state.set_model_sha256(applied.model->sha256);
  for (const std::string& id : result.children) state.add_children(id);
  state.mutable_parts()->insert(result.parts.begin(), result.parts.end());
  for (const std::string& id : result.contributors) state.add_contributors(id);
  for (const auto& [name, value] : optimizer_->State()) (*state.mutable_optimizer())[name] = value;
  *state.mutable_contributions() = ToProto(report_.collected.contributions);
  *state.mutable_counted() = ToProto(fates.counted);
  *state.mutable_voided() = ToProto(fates.voided);
  state.set_counted_from(fates.from);
  if (sketches_ != nullptr) state.set_sketches(sketches_->State());
  if (largest_.has_value()) state.set_codec_largest(*largest_);
  state.set_finished(spec.round() >= c_.run->rounds);
  std::span<const uint8_t> published;
  if (applied.published->sha256 != applied.model->sha256) {
    state.set_published_sha256(applied.published->sha256);
    published = applied.published->bytes;
  }
  return store_->Save(state, *model_->layout, applied.model->bytes, published);
}

}  // namespace tributary::server
