// ResNet-18 and ResNet-50 as torchvision names and orders them.
#include <array>

#include "absl/strings/str_cat.h"
#include "models/builtin_layout.h"

namespace tributary::models {
namespace {

constexpr std::array<uint64_t, 4> kWidths = {64, 128, 256, 512};

// The shortcut of a block whose input and output differ in shape; torchvision registers it last.
void Downsample(ModelBuilder& model, const std::string& block, uint64_t in, uint64_t out) {
  model.ResNetConv(absl::StrCat(block, "downsample.0"), in, out, 1);
  model.BatchNorm(absl::StrCat(block, "downsample.1"), out);
}

// Two 3x3 convolutions. Returns the block's output channels.
uint64_t BasicBlock(ModelBuilder& model, const std::string& block, uint64_t in, uint64_t width) {
  model.ResNetConv(absl::StrCat(block, "conv1"), in, width, 3);
  model.BatchNorm(absl::StrCat(block, "bn1"), width);
  model.ResNetConv(absl::StrCat(block, "conv2"), width, width, 3);
  model.BatchNorm(absl::StrCat(block, "bn2"), width);
  if (in != width) Downsample(model, block, in, width);
  return width;
}

// 1x1, 3x3 and 1x1 convolutions, the last to four times the width. Returns the output channels.
uint64_t Bottleneck(ModelBuilder& model, const std::string& block, uint64_t in, uint64_t width) {
  const uint64_t out = 4 * width;
  model.ResNetConv(absl::StrCat(block, "conv1"), in, width, 1);
  model.BatchNorm(absl::StrCat(block, "bn1"), width);
  model.ResNetConv(absl::StrCat(block, "conv2"), width, width, 3);
  model.BatchNorm(absl::StrCat(block, "bn2"), width);
  model.ResNetConv(absl::StrCat(block, "conv3"), width, out, 1);
  model.BatchNorm(absl::StrCat(block, "bn3"), out);
  if (in != out) Downsample(model, block, in, out);
  return out;
}

using Block = uint64_t (*)(ModelBuilder&, const std::string&, uint64_t, uint64_t);

std::vector<TensorInit> ResNet(Block block, const std::array<int, 4>& blocks) {
  ModelBuilder model;
  model.ResNetConv("conv1", 3, 64, 7);
  model.BatchNorm("bn1", 64);
  uint64_t channels = 64;
  for (size_t layer = 0; layer < 4; ++layer) {
    for (int i = 0; i < blocks[layer]; ++i) {
      channels =
          block(model, absl::StrCat("layer", layer + 1, ".", i, "."), channels, kWidths[layer]);
    }
  }
  model.Linear("fc", channels, 1000);
  return std::move(model).Take();
}

}  // namespace

std::vector<TensorInit> ResNet18() { return ResNet(BasicBlock, {2, 2, 2, 2}); }
std::vector<TensorInit> ResNet50() { return ResNet(Bottleneck, {3, 4, 6, 3}); }

}  // namespace tributary::models
