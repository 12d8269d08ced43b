// Layouts with and without control variates.
#include "aggregation/variates.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

bool HasVariate(const TensorSpec& tensor) {
  return tensor.policy == Policy::kMean && IsFloat(tensor.dtype);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelLayout>> WithVariates(const ModelLayout& model) {
  std::vector<TensorSpec> tensors = model.tensors();
  for (const TensorSpec& tensor : model.tensors()) {
    if (!HasVariate(tensor)) continue;
    tensors.push_back({.name = absl::StrCat(kVariatePrefix, tensor.name),
                       .shape = tensor.shape,
                       .dtype = DType::kF32,
                       .policy = Policy::kMean});
  }
  if (tensors.size() == model.tensors().size()) {
    return absl::InvalidArgumentError(
        "SCAFFOLD corrects tensors that are averaged, and the model has no such float tensor");
  }
  return ModelLayout::Create(std::move(tensors));
}

absl::StatusOr<Variates> FindVariates(const ModelLayout& layout) {
  const std::vector<TensorSpec>& all = layout.tensors();
  const auto first = std::find_if(all.begin(), all.end(), [](const TensorSpec& tensor) {
    return tensor.name.starts_with(kVariatePrefix);
  });
  const absl::Status none = absl::FailedPreconditionError(
      "the layout has no control variates of SCAFFOLD: the aggregator is of another release, or "
      "its "
      "model was made without them");
  if (first == all.begin() || first == all.end()) return none;
  Variates found;
  found.model_tensors = static_cast<uint32_t>(first - all.begin());
  uint32_t next = found.model_tensors;
  for (uint32_t t = 0; t < found.model_tensors; ++t) {
    found.of.push_back(HasVariate(all[t]) ? std::optional(next++) : std::nullopt);
  }
  ASSIGN_OR_RETURN(const auto model, ModelLayout::Create({all.begin(), first}));
  ASSIGN_OR_RETURN(const auto extended, WithVariates(*model));
  if (extended->hash() != layout.hash()) return none;
  return found;
}

}  // namespace tributary::aggregation
