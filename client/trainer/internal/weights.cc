// Copies between a model's bytes and a module's tensors.
#include "client/trainer/internal/weights.h"

#include <cstring>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::client::trainer {
namespace {

using aggregation::ModelLayout;
using aggregation::Policy;

// The tensor's value in the base model. A copy: the bytes need not be aligned for their type.
torch::Tensor BaseTensor(const TrainTask& task, uint32_t tensor, const torch::Tensor& like) {
  torch::Tensor base = torch::empty(like.sizes(), torch::dtype(like.scalar_type()));
  if (base.numel() > 0) {
    std::memcpy(base.data_ptr(), task.base->data() + task.layout->TensorByteOffset(tensor),
                base.nbytes());
  }
  return base;
}

absl::Status Mismatch(const Network& network, const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("model \"", network.name(), "\": ", what,
                   "; give client and run the same model ([model] name, [run] model)"));
}

absl::Status CompareTensor(const Network& network, const ModelLayout& own, size_t own_index,
                           const ModelLayout& layout, size_t index) {
  const auto& mine = own.tensors()[own_index];
  const auto& theirs = layout.tensors()[index];
  if (mine.shape == theirs.shape && mine.dtype == theirs.dtype) return absl::OkStatus();
  // Policies are the run's to choose.
  auto described = mine;
  described.policy = theirs.policy;
  ASSIGN_OR_RETURN(const auto one, ModelLayout::Create({described}));
  ASSIGN_OR_RETURN(const auto other, ModelLayout::Create({theirs}));
  return Mismatch(network, other->DescribeDifference(*one));
}

}  // namespace

absl::StatusOr<std::vector<size_t>> MatchTensors(const Network& network, const ModelLayout& layout,
                                                 uint32_t tensors) {
  ASSIGN_OR_RETURN(const auto own, LayoutOf(network));
  std::unordered_map<std::string, size_t> by_name;
  for (size_t i = 0; i < own->tensors().size(); ++i) by_name[own->tensors()[i].name] = i;
  std::vector<size_t> match;
  for (uint32_t i = 0; i < tensors; ++i) {
    const std::string& name = layout.tensors()[i].name;
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      return Mismatch(network,
                      absl::StrCat("it has no tensor \"", name, "\", the run's layout has one"));
    }
    RETURN_IF_ERROR(CompareTensor(network, *own, found->second, layout, i));
    match.push_back(found->second);
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    return Mismatch(network, absl::StrCat("the run's layout lacks its tensor \"",
                                          by_name.begin()->first, "\""));
  }
  return match;
}

absl::Status LoadBase(const TrainTask& task, const std::vector<size_t>& match, Network* network) {
  const uint64_t bytes = task.base == nullptr ? 0 : task.base->size();
  if (bytes != task.layout->model_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the base model has ", bytes, " bytes, its layout ", task.layout->model_bytes()));
  }
  const torch::NoGradGuard no_grad;
  for (uint32_t i = 0; i < match.size(); ++i) {
    torch::Tensor to = network->tensors()[match[i]].tensor;
    to.copy_(BaseTensor(task, i, to));
  }
  return absl::OkStatus();
}

void TakeDeltas(const TrainTask& task, const std::vector<size_t>& match, const Network& network,
                TrainResult* result) {
  const torch::NoGradGuard no_grad;
  const auto& specs = task.layout->tensors();
  result->floats.resize(specs.size());
  result->ints.resize(specs.size());
  for (uint32_t i = 0; i < match.size(); ++i) {
    if (specs[i].policy == Policy::kSkip) continue;
    const torch::Tensor trained = network.tensors()[match[i]].tensor.detach().contiguous();
    const torch::Tensor base = BaseTensor(task, i, trained);
    const auto n = static_cast<size_t>(trained.numel());
    if (!aggregation::IsFloat(specs[i].dtype)) {
      const torch::Tensor delta = trained.to(torch::kLong) - base.to(torch::kLong);
      result->ints[i].assign(delta.data_ptr<int64_t>(), delta.data_ptr<int64_t>() + n);
      continue;
    }
    // Rounded once: a difference of floats is exact enough in float, of others it is not.
    const torch::Tensor delta =
        trained.scalar_type() == torch::kFloat
            ? trained - base
            : (trained.to(torch::kDouble) - base.to(torch::kDouble)).to(torch::kFloat);
    result->floats[i].assign(delta.data_ptr<float>(), delta.data_ptr<float>() + n);
  }
}

}  // namespace tributary::client::trainer
