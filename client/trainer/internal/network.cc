// Built-in modules as networks, and the tensors of a module in state_dict's order.
#include "client/trainer/internal/network.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "models/builtin.h"

namespace tributary::client::trainer {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;
using aggregation::TensorSpec;

void Collect(const torch::nn::Module& module, const std::string& prefix,
             std::vector<Network::NamedTensor>* out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    out->push_back({prefix + item.key(), item.value(), true});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    out->push_back({prefix + item.key(), item.value(), false});
  }
  for (const auto& child : module.named_children()) {
    Collect(*child.value(), absl::StrCat(prefix, child.key(), "."), out);
  }
}

class ModuleNetwork final : public Network {
 public:
  ModuleNetwork(const std::string& name, std::shared_ptr<ImageModule> module)
      : Network(name), module_(std::move(module)) {
    Collect(*module_, "", &tensors_);
  }
  torch::Tensor Forward(const torch::Tensor& images) override { return module_->forward(images); }
  void SetTraining(bool on) override { module_->train(on); }
  uint64_t input_pixels() const override { return module_->input_pixels(); }

 private:
  const std::shared_ptr<ImageModule> module_;
};

absl::StatusOr<DType> DTypeOf(const Network::NamedTensor& tensor) {
  switch (tensor.tensor.scalar_type()) {
    case torch::kFloat:
      return DType::kF32;
    case torch::kDouble:
      return DType::kF64;
    case torch::kHalf:
      return DType::kF16;
    case torch::kBFloat16:
      return DType::kBf16;
    case torch::kLong:
      return DType::kI64;
    case torch::kInt:
      return DType::kI32;
    case torch::kByte:
      return DType::kU8;
    case torch::kBool:
      return DType::kBool;
    default:
      return absl::UnimplementedError(
          absl::StrCat("tensor \"", tensor.name, "\" has torch's type ",
                       c10::toString(tensor.tensor.scalar_type()),
                       "; models may have float, double, half, bfloat16, long, int, byte, bool"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const std::string& model) {
  std::shared_ptr<ImageModule> module = MakeSmallModule(model);
  if (module == nullptr) module = MakeResNetModule(model);
  if (module != nullptr) return std::make_unique<ModuleNetwork>(model, std::move(module));
  if (models::IsBuiltin(model)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model \"", model, "\" cannot be trained: it is for benches"));
  }
  std::error_code error;
  if (std::filesystem::exists(model, error)) return LoadScriptNetwork(model);
  return absl::NotFoundError(absl::StrCat("model \"", model,
                                          "\" is neither a TorchScript file nor one of ",
                                          absl::StrJoin(models::BuiltinNames(), ", ")));
}

absl::StatusOr<std::shared_ptr<const ModelLayout>> LayoutOf(const Network& network) {
  std::vector<TensorSpec> specs;
  for (const Network::NamedTensor& tensor : network.tensors()) {
    TensorSpec spec{.name = tensor.name, .shape = {}};
    for (const int64_t size : tensor.tensor.sizes()) {
      spec.shape.push_back(static_cast<uint64_t>(size));
    }
    ASSIGN_OR_RETURN(spec.dtype, DTypeOf(tensor));
    spec.policy = aggregation::IsFloat(spec.dtype) ? Policy::kMean : Policy::kMax;
    specs.push_back(std::move(spec));
  }
  return ModelLayout::Create(std::move(specs));
}

}  // namespace tributary::client::trainer
