// Private to models/: a model being listed, tensor by tensor, with how each is initialised.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aggregation/layout.h"

namespace tributary::models {

// Initial values are uniform in [-bound, bound) around zero, or one constant.
struct TensorInit {
  aggregation::TensorSpec spec;
  double bound = 0;     // above 0: uniform
  double constant = 0;  // where bound is 0
};

// Lists tensors in the order in which a torch module registers them: its state_dict().
class ModelBuilder {
 public:
  // y = Wx + b; weight [out, in] and bias [out], both U(-1/sqrt(in), 1/sqrt(in)), as torch's
  // default.
  void Linear(const std::string& name, uint64_t in, uint64_t out);
  // Weight [out, in, kernel, kernel] and bias, U(-1/sqrt(in k²), ...), as torch's default.
  void Conv(const std::string& name, uint64_t in, uint64_t out, uint64_t kernel);
  // No bias; the variance of He's normal initialisation by fan-out, 2 / (out k²), as torchvision's
  // ResNets.
  void ResNetConv(const std::string& name, uint64_t in, uint64_t out, uint64_t kernel);
  // Weight 1, bias 0; the buffers running_mean 0, running_var 1 and the int64 counter 0.
  void BatchNorm(const std::string& name, uint64_t channels);
  void Uniform(const std::string& name, std::vector<uint64_t> shape, double bound);

  std::vector<TensorInit> Take() && { return std::move(tensors_); }

 private:
  void Constant(const std::string& name, std::vector<uint64_t> shape, double value);
  std::vector<TensorInit> tensors_;
};

// torchvision's ResNet-18 and ResNet-50, 1,000 classes (He et al., 2015).
std::vector<TensorInit> ResNet18();
std::vector<TensorInit> ResNet50();

}  // namespace tributary::models
