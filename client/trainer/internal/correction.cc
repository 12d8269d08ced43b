// Control variates and dynamic regularisers.
#include "client/trainer/internal/correction.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "aggregation/variates.h"
#include "base/status.h"

namespace tributary::client::trainer {
namespace {

using aggregation::TensorSpec;

bool Averaged(const TensorSpec& tensor) {
  return tensor.policy == aggregation::Policy::kMean && aggregation::IsFloat(tensor.dtype);
}
bool IsTrained(const Network::NamedTensor& tensor) {
  return tensor.parameter && tensor.tensor.requires_grad();
}

// An F32 tensor's values in the base model, which need not be aligned.
std::vector<float> BaseOf(const TrainTask& task, uint32_t tensor) {
  std::vector<float> values(task.layout->TensorElements(tensor));
  if (!values.empty()) {
    std::memcpy(values.data(), task.base->data() + task.layout->TensorByteOffset(tensor),
                values.size() * sizeof(float));
  }
  return values;
}

// factor times the memory of a tensor, added to `values`.
void AddMemory(const TrainTask& task, uint32_t tensor, float factor, std::vector<float>* values) {
  if (tensor >= task.memory.size() || task.memory[tensor].size() != values->size()) return;
  for (size_t i = 0; i < values->size(); ++i) (*values)[i] += factor * task.memory[tensor][i];
}

torch::Tensor LikeTensor(const std::vector<float>& values, const torch::Tensor& like) {
  torch::Tensor out = torch::empty(like.sizes(), torch::kFloat);
  if (!values.empty()) std::memcpy(out.data_ptr(), values.data(), values.size() * sizeof(float));
  return out.to(like.scalar_type());
}

std::vector<std::optional<uint32_t>> VariatesOf(const TrainTask& task) {
  const auto found = aggregation::FindVariates(*task.layout);
  return found.ok() ? found->of : std::vector<std::optional<uint32_t>>();
}

}  // namespace

absl::StatusOr<uint32_t> ModelTensors(const TrainTask& task, const Hyperparameters& how) {
  if (!how.scaffold) return static_cast<uint32_t>(task.layout->tensors().size());
  ASSIGN_OR_RETURN(const auto found, aggregation::FindVariates(*task.layout));
  return found.model_tensors;
}

absl::StatusOr<std::vector<torch::Tensor>> GradientCorrections(const TrainTask& task,
                                                               const std::vector<size_t>& match,
                                                               const Network& network,
                                                               const Hyperparameters& how) {
  if (!how.scaffold && how.feddyn <= 0) return std::vector<torch::Tensor>();
  const auto variates = how.scaffold ? VariatesOf(task) : std::vector<std::optional<uint32_t>>();
  std::vector<torch::Tensor> corrections(network.tensors().size());
  for (uint32_t t = 0; t < match.size(); ++t) {
    const TensorSpec& spec = task.layout->tensors()[t];
    const Network::NamedTensor& tensor = network.tensors()[match[t]];
    if (!Averaged(spec)) continue;
    if (!IsTrained(tensor)) {
      if (how.scaffold) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "feddyn: tensor \"", spec.name,
          "\" is averaged and not trained, and the server would "
          "carry its drift on without end; skip it in the run's [aggregation.policies], or take "
          "another algorithm"));
    }
    if (how.scaffold) {
      std::vector<float> correction = BaseOf(task, *variates[t]);
      AddMemory(task, *variates[t], -1, &correction);
      corrections[match[t]] = LikeTensor(correction, tensor.tensor);
    } else {
      std::vector<float> correction(task.layout->TensorElements(t), 0.0f);
      AddMemory(task, t, -1, &correction);
      corrections[match[t]] = LikeTensor(correction, tensor.tensor);
    }
  }
  return corrections;
}

absl::Status CheckFedNova(const TrainTask& task, const std::vector<size_t>& match,
                          const Network& network, const TrainResult& result) {
  for (uint32_t t = 0; t < match.size(); ++t) {
    const TensorSpec& spec = task.layout->tensors()[t];
    if (!Averaged(spec) || IsTrained(network.tensors()[match[t]])) continue;
    if (std::ranges::all_of(result.floats[t], [](float delta) { return delta == 0; })) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "fednova: tensor \"", spec.name,
        "\" is averaged, moves and is not trained, and the server would carry it on by the number "
        "of steps; skip it in the run's [aggregation.policies], or take another algorithm"));
  }
  return absl::OkStatus();
}

void FinishCorrections(const TrainTask& task, const std::vector<size_t>& match,
                       const Network& network, const Hyperparameters& how, double steps,
                       TrainResult* result) {
  if (!how.scaffold && how.feddyn <= 0) return;
  const size_t tensors = task.layout->tensors().size();
  result->memory_steps.assign(tensors, 0);
  if (how.feddyn > 0) {
    for (uint32_t t = 0; t < match.size(); ++t) {
      if (Averaged(task.layout->tensors()[t])) {
        result->memory_steps[t] = static_cast<float>(-how.feddyn);
      }
    }
    return;
  }
  const auto variates = VariatesOf(task);
  result->floats.resize(tensors);
  result->ints.resize(tensors);
  const double way = steps * how.lr;
  for (uint32_t t = 0; t < match.size(); ++t) {
    if (!variates[t].has_value()) continue;
    const uint32_t variate = *variates[t];
    std::vector<float>& change = result->floats[variate];
    change = BaseOf(task, variate);  // c
    if (IsTrained(network.tensors()[match[t]])) {
      const std::vector<float>& moved = result->floats[t];  // y - x
      for (size_t i = 0; i < change.size(); ++i) {
        change[i] = static_cast<float>(-static_cast<double>(moved[i]) / way -
                                       static_cast<double>(change[i]));
      }
    } else {
      change.assign(change.size(), 0.0f);
    }
    result->memory_steps[variate] = 1;
  }
}

}  // namespace tributary::client::trainer
