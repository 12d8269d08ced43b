// 2nn, cnn, logreg and mlp-digits.
#include "client/trainer/internal/network.h"

namespace tributary::client::trainer {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kFashionPixels = 784;
constexpr int64_t kDigitsPixels = 64;
constexpr int64_t kClasses = 10;

// McMahan et al.'s 2NN: two hidden layers of 200 with ReLU.
class TwoNn final : public ImageModule {
 public:
  TwoNn()
      : fc1_(register_module("fc1", nn::Linear(kFashionPixels, 200))),
        fc2_(register_module("fc2", nn::Linear(200, 200))),
        fc3_(register_module("fc3", nn::Linear(200, kClasses))) {}
  torch::Tensor forward(torch::Tensor images) override {
    torch::Tensor x = torch::relu(fc1_->forward(images.flatten(1)));
    return fc3_->forward(torch::relu(fc2_->forward(x)));
  }
  uint64_t input_pixels() const override { return kFashionPixels; }

 private:
  nn::Linear fc1_, fc2_, fc3_;
};

// McMahan et al.'s CNN: two 5x5 convolutions of 32 and 64 channels, each halved by 2x2 max pooling,
// then 512 units.
class Cnn final : public ImageModule {
 public:
  Cnn()
      : conv1_(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 32, 5).padding(2)))),
        conv2_(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(32, 64, 5).padding(2)))),
        fc1_(register_module("fc1", nn::Linear(64 * 7 * 7, 512))),
        fc2_(register_module("fc2", nn::Linear(512, kClasses))) {}
  torch::Tensor forward(torch::Tensor images) override {
    torch::Tensor x = torch::max_pool2d(torch::relu(conv1_->forward(images)), 2);
    x = torch::max_pool2d(torch::relu(conv2_->forward(x)), 2);
    return fc2_->forward(torch::relu(fc1_->forward(x.flatten(1))));
  }
  uint64_t input_pixels() const override { return kFashionPixels; }

 private:
  nn::Conv2d conv1_, conv2_;
  nn::Linear fc1_, fc2_;
};

// Multinomial logistic regression.
class LogReg final : public ImageModule {
 public:
  LogReg() : fc_(register_module("fc", nn::Linear(kFashionPixels, kClasses))) {}
  torch::Tensor forward(torch::Tensor images) override { return fc_->forward(images.flatten(1)); }
  uint64_t input_pixels() const override { return kFashionPixels; }

 private:
  nn::Linear fc_;
};

class MlpDigits final : public ImageModule {
 public:
  MlpDigits()
      : fc1_(register_module("fc1", nn::Linear(kDigitsPixels, 32))),
        fc2_(register_module("fc2", nn::Linear(32, kClasses))) {}
  torch::Tensor forward(torch::Tensor images) override {
    return fc2_->forward(torch::relu(fc1_->forward(images.flatten(1))));
  }
  uint64_t input_pixels() const override { return kDigitsPixels; }

 private:
  nn::Linear fc1_, fc2_;
};

// One hidden layer: what the codecs' accuracy is measured with.
class MlpFashion final : public ImageModule {
 public:
  MlpFashion()
      : fc1_(register_module("fc1", nn::Linear(kFashionPixels, 96))),
        fc2_(register_module("fc2", nn::Linear(96, kClasses))) {}
  torch::Tensor forward(torch::Tensor images) override {
    return fc2_->forward(torch::relu(fc1_->forward(images.flatten(1))));
  }
  uint64_t input_pixels() const override { return kFashionPixels; }

 private:
  nn::Linear fc1_, fc2_;
};

}  // namespace

std::shared_ptr<ImageModule> MakeSmallModule(const std::string& model) {
  if (model == "2nn") return std::make_shared<TwoNn>();
  if (model == "cnn") return std::make_shared<Cnn>();
  if (model == "logreg") return std::make_shared<LogReg>();
  if (model == "mlp-fashion") return std::make_shared<MlpFashion>();
  if (model == "mlp-digits") return std::make_shared<MlpDigits>();
  return nullptr;
}

}  // namespace tributary::client::trainer
