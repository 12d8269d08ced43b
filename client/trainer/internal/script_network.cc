// Networks from TorchScript files, as torch.jit.save writes them.
#include <torch/script.h>

#include "absl/strings/str_cat.h"
#include "client/trainer/internal/network.h"

namespace tributary::client::trainer {
namespace {

class ScriptNetwork final : public Network {
 public:
  ScriptNetwork(const std::string& path, torch::jit::Module module)
      : Network(path), module_(std::move(module)) {
    Collect(module_, "", &tensors_);
  }
  torch::Tensor Forward(const torch::Tensor& images) override {
    return module_.forward({images}).toTensor();
  }
  void SetTraining(bool on) override { module_.train(on); }

 private:
  static void Collect(const torch::jit::Module& module, const std::string& prefix,
                      std::vector<NamedTensor>* out) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      out->push_back({prefix + item.name, item.value, true});
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      out->push_back({prefix + item.name, item.value, false});
    }
    for (const auto& child : module.named_children()) {
      Collect(child.value, absl::StrCat(prefix, child.name, "."), out);
    }
  }

  torch::jit::Module module_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> LoadScriptNetwork(const std::string& path) {
  try {
    auto network = std::make_unique<ScriptNetwork>(path, torch::jit::load(path, torch::kCPU));
    if (network->tensors().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("TorchScript file ", path, " has no tensors"));
    }
    return network;
  } catch (const std::exception& error) {
    // c10's text goes on with a stack trace.
    const std::string what = error.what();
    return absl::InvalidArgumentError(absl::StrCat("cannot load the TorchScript file ", path, ": ",
                                                   what.substr(0, what.find('\n'))));
  }
}

}  // namespace tributary::client::trainer
