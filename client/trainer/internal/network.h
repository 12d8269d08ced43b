// Private to client/trainer: a torch module with its tensors in state_dict's order.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"
#include "client/trainer/dataset.h"

namespace tributary::client::trainer {

// Thread rule: one thread at a time. Its functions throw what torch throws.
class Network {
 public:
  struct NamedTensor {
    std::string name;
    torch::Tensor tensor;    // the module's own: written in place
    bool parameter = false;  // else a buffer
  };

  virtual ~Network() = default;
  // Images [batch, channels, height, width] to class scores [batch, classes], before softmax.
  virtual torch::Tensor Forward(const torch::Tensor& images) = 0;
  virtual void SetTraining(bool on) = 0;
  // How many pixels an image must have; 0: the network finds out by itself.
  virtual uint64_t input_pixels() const { return 0; }

  // Parameters, then buffers, of each module, then its children's: as Python's state_dict().
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  const std::string& name() const { return name_; }

 protected:
  explicit Network(std::string name) : name_(std::move(name)) {}
  std::vector<NamedTensor> tensors_;

 private:
  std::string name_;
};

// A built-in model (models/builtin.h) or the path of a TorchScript file. The weights are arbitrary:
// a round's base model overwrites them. NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const std::string& model);

// What the built-in modules have in common.
class ImageModule : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor images) = 0;
  virtual uint64_t input_pixels() const { return 0; }
};

// The pieces of MakeNetwork: null where `model` is not among theirs.
std::shared_ptr<ImageModule> MakeSmallModule(const std::string& model);
std::shared_ptr<ImageModule> MakeResNetModule(const std::string& model);
absl::StatusOr<std::unique_ptr<Network>> LoadScriptNetwork(const std::string& path);

// Names, shapes, dtypes; policies are the defaults: floats MEAN, integers MAX. UNIMPLEMENTED: a
// dtype that models cannot have on the wire.
absl::StatusOr<std::shared_ptr<const aggregation::ModelLayout>> LayoutOf(const Network& network);

}  // namespace tributary::client::trainer
