// ResNet-18 and ResNet-50 (He et al., 2015) with torchvision's names, order and strides.
#include <array>

#include "client/trainer/internal/network.h"

namespace tributary::client::trainer {
namespace {

namespace nn = torch::nn;

constexpr int64_t kImageNetClasses = 1000;

nn::Conv2d Conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// What a basic block and a bottleneck share: the shortcut, and the order of registration.
class Block : public nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;

 protected:
  // Called last, as torchvision registers it last.
  void AddShortcut(int64_t in, int64_t out, int64_t stride) {
    if (in == out && stride == 1) return;
    downsample_ = register_module("downsample",
                                  nn::Sequential(Conv(in, out, 1, stride), nn::BatchNorm2d(out)));
  }
  torch::Tensor Shortcut(const torch::Tensor& x) {
    return downsample_.is_empty() ? x : downsample_->forward(x);
  }

 private:
  nn::Sequential downsample_{nullptr};
};

class BasicBlock final : public Block {
 public:
  static constexpr int64_t kExpansion = 1;
  BasicBlock(int64_t in, int64_t width, int64_t stride)
      : conv1_(register_module("conv1", Conv(in, width, 3, stride))),
        bn1_(register_module("bn1", nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", Conv(width, width, 3, 1))),
        bn2_(register_module("bn2", nn::BatchNorm2d(width))) {
    AddShortcut(in, width, stride);
  }
  torch::Tensor forward(const torch::Tensor& x) override {
    torch::Tensor y = torch::relu(bn1_->forward(conv1_->forward(x)));
    y = bn2_->forward(conv2_->forward(y));
    return torch::relu(y + Shortcut(x));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
};

// The stride is in the 3x3 convolution, as torchvision has it ("ResNet v1.5").
class Bottleneck final : public Block {
 public:
  static constexpr int64_t kExpansion = 4;
  Bottleneck(int64_t in, int64_t width, int64_t stride)
      : conv1_(register_module("conv1", Conv(in, width, 1, 1))),
        bn1_(register_module("bn1", nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", Conv(width, width, 3, stride))),
        bn2_(register_module("bn2", nn::BatchNorm2d(width))),
        conv3_(register_module("conv3", Conv(width, width * kExpansion, 1, 1))),
        bn3_(register_module("bn3", nn::BatchNorm2d(width * kExpansion))) {
    AddShortcut(in, width * kExpansion, stride);
  }
  torch::Tensor forward(const torch::Tensor& x) override {
    torch::Tensor y = torch::relu(bn1_->forward(conv1_->forward(x)));
    y = torch::relu(bn2_->forward(conv2_->forward(y)));
    y = bn3_->forward(conv3_->forward(y));
    return torch::relu(y + Shortcut(x));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
};

template <class BlockType>
class ResNet final : public ImageModule {
 public:
  explicit ResNet(const std::array<int, 4>& blocks)
      : conv1_(register_module(
            "conv1", nn::Conv2d(nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)))),
        bn1_(register_module("bn1", nn::BatchNorm2d(64))) {
    int64_t channels = 64;
    int64_t width = 64;
    for (size_t i = 0; i < layers_.size(); ++i, width *= 2) {
      nn::Sequential layer;
      for (int b = 0; b < blocks[i]; ++b) {
        layer->push_back(BlockType(channels, width, i > 0 && b == 0 ? 2 : 1));
        channels = width * BlockType::kExpansion;
      }
      layers_[i] = register_module("layer" + std::to_string(i + 1), layer);
    }
    fc_ = register_module("fc", nn::Linear(channels, kImageNetClasses));
  }

  torch::Tensor forward(torch::Tensor images) override {
    // Grey images are shown to all three channels.
    if (images.size(1) == 1) images = images.expand({-1, 3, -1, -1});
    torch::Tensor x = torch::relu(bn1_->forward(conv1_->forward(images)));
    x = torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
    for (nn::Sequential& layer : layers_) x = layer->forward(x);
    return fc_->forward(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  std::array<nn::Sequential, 4> layers_{nullptr, nullptr, nullptr, nullptr};
  nn::Linear fc_{nullptr};
};

}  // namespace

std::shared_ptr<ImageModule> MakeResNetModule(const std::string& model) {
  if (model == "resnet18") {
    return std::make_shared<ResNet<BasicBlock>>(std::array<int, 4>{2, 2, 2, 2});
  }
  if (model == "resnet50") {
    return std::make_shared<ResNet<Bottleneck>>(std::array<int, 4>{3, 4, 6, 3});
  }
  return nullptr;
}

}  // namespace tributary::client::trainer
