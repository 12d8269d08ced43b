// For the trainer's tests: what needs torch's headers, kept in one file. No torch in this header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tributary::client::trainer::testing {

// Two-layer perceptron, as mlp-digits: weight and bias of fc1 and fc2, row-major.
using Weights = std::vector<std::vector<float>>;

struct PlainSgd {
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;
  std::vector<std::vector<int64_t>> batches;  // indices of the examples of each step
};

// SGD on the cross entropy as one would write it in a notebook: tensors, autograd, w -= lr * v; in
// single precision. `images` is examples * 64 floats.
Weights TrainPerceptron(const Weights& start, const std::vector<float>& images,
                        const std::vector<int64_t>& labels, const PlainSgd& how);

// A TorchScript file: y = relu(x.flatten(1) @ weight.T) with `weight` [10, pixels] (double, if
// asked), a frozen parameter `scale`, a long buffer `calls` that counts forward passes, and a
// submodule "head" with the parameter `bias` [10].
void SaveScript(const std::string& path, int64_t pixels, bool double_weight);

// A TorchScript file: y = x.flatten(1) @ (2 * weight).T with `weight` [10, pixels]; tied: the
// second of the two is a submodule's, "head.weight", which is the same tensor.
void SaveTiedScript(const std::string& path, int64_t pixels, bool tied);

// The number of torch's threads, and of OpenBLAS's (1 where torch uses another library).
int TorchThreads();
int BlasThreads();

}  // namespace tributary::client::trainer::testing
