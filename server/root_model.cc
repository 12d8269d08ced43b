// The model that a root starts with, and what it applies sums with: the optimizer and what the
// codec asks to be put around it.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "aggregation/ef21.h"
#include "aggregation/in_planes.h"
#include "base/status.h"
#include "models/builtin.h"
#include "models/safetensors.h"
#include "server/internal/algorithms.h"
#include "server/internal/config_checks.h"
#include "server/internal/policies.h"
#include "server/internal/root.h"

namespace tributary::server {
namespace {

// Protobuf messages end at 2 GiB; some of it is for the rest of the state.
constexpr uint64_t kMostStateBytes = 2'000'000'000;

}  // namespace

absl::Status Root::LoadModel() {
  auto publisher = Publisher::Create(c_.compression, c_.run->seed);
  if (!publisher.ok()) return Annotate(publisher.status(), Where("compression.downlink"));
  publisher_ = *std::move(publisher);
  std::vector<std::string> warnings;
  auto checkpoint = store_->Load(&warnings);
  for (const std::string& warning : warnings) spdlog::warn("{}", warning);
  if (checkpoint.ok()) return Resume(*std::move(checkpoint));
  if (!absl::IsNotFound(checkpoint.status())) return checkpoint.status();
  absl::StatusOr<models::Model> model = models::IsBuiltin(c_.run->model)
                                            ? models::BuiltinModel(c_.run->model, c_.run->seed)
                                            : models::ReadSafetensors(c_.run->model);
  if (!model.ok()) return Annotate(model.status(), Where("run.model"));
  ASSIGN_OR_RETURN(auto layout, WithPolicies(model->layout, c_.aggregation.policies));
  ASSIGN_OR_RETURN(layout, RunLayout(c_.training, std::move(layout)));
  model->bytes.resize(layout->model_bytes());  // what is the run's beyond the model starts at 0
  RETURN_IF_ERROR(MakeOptimizer(layout));
  RETURN_IF_ERROR(MakeSketches(layout, ""));
  published_ = model_ = ModelVersion::Make(0, std::move(layout), std::move(model->bytes));
  spdlog::info("run \"{}\" starts: model \"{}\", {} tensors, {} elements, SHA-256 {}", c_.run->name,
               c_.run->model, model_->layout->tensors().size(), model_->layout->elements(),
               absl::BytesToHexString(model_->sha256));
  return absl::OkStatus();
}

absl::Status Root::MakeOptimizer(const std::shared_ptr<const aggregation::ModelLayout>& layout) {
  aggregation::OptimizerOptions options = OptimizerOptionsOf(c_, grid_, *layout);
  options.threads = FoldWorkers(c_.limits);
  ASSIGN_OR_RETURN(auto optimizer, aggregation::MakeServerOptimizer(options, layout));
  ASSIGN_OR_RETURN(optimizer_, WithEstimates(std::move(optimizer), layout));
  if (optimizer_->state_bytes() <= kMostStateBytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the moments of the server optimizer ", std::string(optimizer_->name()), " have ",
      optimizer_->state_bytes(), " bytes for this model, a checkpoint's state holds ",
      kMostStateBytes, "; take fedavg, or a smaller model"));
}

// Around it where the codec of some tensor is with ef21.
absl::StatusOr<std::unique_ptr<aggregation::ServerOptimizer>> Root::WithEstimates(
    std::unique_ptr<aggregation::ServerOptimizer> optimizer,
    const std::shared_ptr<const aggregation::ModelLayout>& layout) {
  ASSIGN_OR_RETURN(const auto codec, compression::CodecPolicy::Parse(c_.compression.codec));
  ASSIGN_OR_RETURN(optimizer, WithPlanes(*codec, std::move(optimizer), layout));
  if (!codec->estimates()) return optimizer;
  aggregation::Ef21Options options{
      .tensors = {},
      .population_weight = c_.compression.population_weight << grid_.weight_fraction_bits,
      .fraction_bits = grid_.fraction_bits};
  for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = layout->tensors()[t];
    options.tensors.push_back(
        tensor.policy != aggregation::Policy::kSkip && aggregation::IsFloat(tensor.dtype) &&
        codec->For(tensor.name, layout->TensorElements(t), tensor.shape.size()).estimate);
  }
  return aggregation::MakeEf21(std::move(options), std::move(optimizer), layout);
}

// Around it where the codec of some tensor is with dct.
absl::StatusOr<std::unique_ptr<aggregation::ServerOptimizer>> Root::WithPlanes(
    const compression::CodecPolicy& codec, std::unique_ptr<aggregation::ServerOptimizer> optimizer,
    const std::shared_ptr<const aggregation::ModelLayout>& layout) {
  if (!codec.transforms()) return optimizer;
  std::vector<compression::PlaneShape> planes(layout->tensors().size());
  for (uint32_t t = 0; t < planes.size(); ++t) {
    const aggregation::TensorSpec& tensor = layout->tensors()[t];
    if (tensor.policy == aggregation::Policy::kSkip || !aggregation::IsFloat(tensor.dtype)) {
      continue;
    }
    const compression::PlaneShape& shape =
        codec.For(tensor.name, layout->TensorElements(t), tensor.shape.size()).planes;
    if (shape.Divides(tensor.shape)) planes[t] = shape;
  }
  return aggregation::MakeInPlanes(std::move(planes), std::move(optimizer), layout);
}

absl::Status Root::MakeSketches(const std::shared_ptr<const aggregation::ModelLayout>& layout,
                                const std::string& state) {
  auto sketched = aggregation::SketchedTensors::Create(*layout, c_.compression.codec, c_.run->seed);
  if (!sketched.ok()) return Annotate(sketched.status(), Where("compression.codec"));
  if (*sketched == nullptr) return absl::OkStatus();
  for (const auto& tensor : (*sketched)->tensors()) {
    const double safe = compression::SafelyRecovered(tensor.form);
    if (!tensor.sketched || tensor.form.recover <= safe) continue;
    spdlog::warn(
        "[compression] codec: recover = {} is more than the {} up to which sketches of {} rows "
        "of {} columns bear updates without large elements: what collisions leave over may grow "
        "from round to round; watch the accuracy, or raise the sketch's fraction",
        tensor.form.recover, safe, tensor.form.rows, tensor.form.columns);
    break;  // once: one rule mostly has them all
  }
  sketches_ = std::make_unique<aggregation::SketchRecovery>(layout, *std::move(sketched));
  RETURN_IF_ERROR(sketches_->Restore(state));
  if (sketches_->State().size() <= kMostStateBytes / 2) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the sketches' cells are too many for a checkpoint's state; take a smaller fraction");
}

}  // namespace tributary::server
