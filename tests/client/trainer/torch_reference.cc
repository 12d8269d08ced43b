// Plain training loops and hand-made TorchScript files.
#include "torch_reference.h"

#include <dlfcn.h>
#include <torch/script.h>
#include <torch/torch.h>

namespace tributary::client::trainer::testing {

Weights TrainPerceptron(const Weights& start, const std::vector<float>& images,
                        const std::vector<int64_t>& labels, const PlainSgd& how) {
  const auto examples = static_cast<int64_t>(labels.size());
  const auto x = torch::tensor(images).view({examples, 64});
  const auto y = torch::tensor(labels);
  std::vector<torch::Tensor> w = {torch::tensor(start[0]).view({32, 64}), torch::tensor(start[1]),
                                  torch::tensor(start[2]).view({10, 32}), torch::tensor(start[3])};
  std::vector<torch::Tensor> velocity;
  for (const auto& tensor : w) velocity.push_back(torch::zeros_like(tensor));
  for (const auto& batch : how.batches) {
    for (auto& tensor : w) tensor = tensor.detach().requires_grad_(true);
    const auto chosen = torch::tensor(batch);
    const auto hidden = torch::relu(x.index({chosen}).matmul(w[0].t()) + w[1]);
    const auto scores = hidden.matmul(w[2].t()) + w[3];
    const auto loss =
        -torch::log_softmax(scores, 1).gather(1, y.index({chosen}).unsqueeze(1)).sum() /
        static_cast<double>(batch.size());
    const auto gradients = torch::autograd::grad({loss}, w);
    for (size_t i = 0; i < w.size(); ++i) {
      const auto now = w[i].detach();
      velocity[i] = how.momentum * velocity[i] + gradients[i] + how.weight_decay * now;
      w[i] = now - how.lr * velocity[i];
    }
  }
  Weights result;
  for (const auto& tensor : w) {
    const auto flat = tensor.detach().contiguous();
    result.emplace_back(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  return result;
}

void SaveScript(const std::string& path, int64_t pixels, bool double_weight) {
  torch::jit::Module head("Head");
  head.register_parameter("bias", torch::zeros({10}), /*is_buffer=*/false);
  head.define("def forward(self, x):\n  return x + self.bias\n");
  torch::jit::Module net("Net");
  const auto type = double_weight ? torch::kDouble : torch::kFloat;
  net.register_parameter("weight", torch::full({10, pixels}, 0.01, type), false);
  net.register_parameter("scale", torch::ones({}).requires_grad_(false), false);
  net.register_buffer("calls", torch::zeros({}, torch::kLong));
  net.register_module("head", head);
  net.define(R"(
def forward(self, x):
  self.calls += 1
  y = torch.matmul(torch.flatten(x, 1).to(self.weight.dtype), torch.t(self.weight))
  return self.head.forward(torch.relu(y).to(x.dtype) * self.scale)
)");
  for (const auto& parameter : net.parameters()) {
    if (parameter.dim() > 0) parameter.set_requires_grad(true);
  }
  net.save(path);
}

void SaveTiedScript(const std::string& path, int64_t pixels, bool tied) {
  const torch::Tensor weight = torch::zeros({10, pixels}).set_requires_grad(true);
  torch::jit::Module head("TiedHead");
  if (tied) {
    head.register_parameter("weight", weight, /*is_buffer=*/false);
    head.define("def forward(self, x):\n  return torch.matmul(x, torch.t(self.weight))\n");
  } else {
    head.define("def forward(self, x):\n  return x\n");
  }
  torch::jit::Module net("TiedNet");
  net.register_parameter("weight", weight, /*is_buffer=*/false);
  net.register_module("head", head);
  net.define(std::string(R"(
def forward(self, x):
  x = torch.flatten(x, 1)
  y = torch.matmul(x, torch.t(self.weight))
)") + (tied ? "  return y + self.head.forward(x)\n" : "  return y + y\n"));
  net.save(path);
}

int TorchThreads() { return at::get_num_threads(); }

int BlasThreads() {
  using GetThreads = int (*)();
  void* symbol = dlsym(RTLD_DEFAULT, "openblas_get_num_threads");
  return symbol == nullptr ? 1 : reinterpret_cast<GetThreads>(symbol)();
}

}  // namespace tributary::client::trainer::testing
