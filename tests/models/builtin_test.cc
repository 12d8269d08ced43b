// Built-in models: names, shapes and counts against published numbers, weights against an
// independent Philox.
#include "models/builtin.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/safetensors.h"
#include "tests/models/python.h"

namespace tributary::models {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const ModelLayout> Layout(const std::string& name) {
  auto layout = BuiltinLayout(name);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// "name dtype [shape]" of each tensor.
std::vector<std::string> Describe(const ModelLayout& layout) {
  std::vector<std::string> lines;
  for (const aggregation::TensorSpec& spec : layout.tensors()) {
    std::string line =
        absl::StrCat(spec.name, " ", std::string(aggregation::DTypeName(spec.dtype)), " [");
    for (const uint64_t d : spec.shape) absl::StrAppend(&line, line.back() == '[' ? "" : ",", d);
    lines.push_back(line + "]");
  }
  return lines;
}

bool IsBuffer(const std::string& name) {
  return name.find(".running_") != std::string::npos || name.ends_with(".num_batches_tracked");
}

uint64_t Parameters(const ModelLayout& layout) {
  uint64_t n = 0;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    if (!IsBuffer(layout.tensors()[t].name)) n += layout.TensorElements(t);
  }
  return n;
}

TEST(BuiltinLayoutTest, SmallModelsAreTheTorchModulesStateDicts) {
  EXPECT_THAT(
      Describe(*Layout("2nn")),
      ElementsAre("fc1.weight F32 [200,784]", "fc1.bias F32 [200]", "fc2.weight F32 [200,200]",
                  "fc2.bias F32 [200]", "fc3.weight F32 [10,200]", "fc3.bias F32 [10]"));
  EXPECT_THAT(Describe(*Layout("cnn")),
              ElementsAre("conv1.weight F32 [32,1,5,5]", "conv1.bias F32 [32]",
                          "conv2.weight F32 [64,32,5,5]", "conv2.bias F32 [64]",
                          "fc1.weight F32 [512,3136]", "fc1.bias F32 [512]",
                          "fc2.weight F32 [10,512]", "fc2.bias F32 [10]"));
  EXPECT_THAT(Describe(*Layout("logreg")),
              ElementsAre("fc.weight F32 [10,784]", "fc.bias F32 [10]"));
  EXPECT_THAT(Describe(*Layout("mlp-digits")),
              ElementsAre("fc1.weight F32 [32,64]", "fc1.bias F32 [32]", "fc2.weight F32 [10,32]",
                          "fc2.bias F32 [10]"));
}

// 2NN and CNN: McMahan et al. (2017), section 3. ResNets: torchvision's model pages.
TEST(BuiltinLayoutTest, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(Parameters(*Layout("2nn")), 199'210u);
  EXPECT_EQ(Parameters(*Layout("cnn")), 1'663'370u);
  EXPECT_EQ(Parameters(*Layout("logreg")), 7'850u);
  EXPECT_EQ(Parameters(*Layout("mlp-digits")), 2'410u);
  EXPECT_EQ(Parameters(*Layout("mlp-fashion")), 76'330u);
  EXPECT_EQ(Parameters(*Layout("resnet18")), 11'689'512u);
  EXPECT_EQ(Parameters(*Layout("resnet50")), 25'557'032u);
}

TEST(BuiltinLayoutTest, ResNetsHaveTorchvisionsNamesInItsOrder) {
  const auto layout18 = Layout("resnet18");
  const std::vector<std::string> names18 = Describe(*layout18);
  ASSERT_EQ(names18.size(), 122u);  // 20 convolutions, 20 BatchNorms of 5, fc's 2
  EXPECT_THAT(std::vector<std::string>(names18.begin(), names18.begin() + 8),
              ElementsAre("conv1.weight F32 [64,3,7,7]", "bn1.weight F32 [64]", "bn1.bias F32 [64]",
                          "bn1.running_mean F32 [64]", "bn1.running_var F32 [64]",
                          "bn1.num_batches_tracked I64 []", "layer1.0.conv1.weight F32 [64,64,3,3]",
                          "layer1.0.bn1.weight F32 [64]"));
  EXPECT_THAT(names18, testing::IsSupersetOf({"layer2.0.conv1.weight F32 [128,64,3,3]",
                                              "layer2.0.downsample.0.weight F32 [128,64,1,1]",
                                              "layer2.0.downsample.1.running_var F32 [128]",
                                              "layer4.1.bn2.num_batches_tracked I64 []"}));
  EXPECT_THAT(names18, testing::Not(testing::Contains(HasSubstr("layer1.0.downsample"))));

  const std::vector<std::string> names50 = Describe(*Layout("resnet50"));
  ASSERT_EQ(names50.size(), 320u);  // 53 convolutions, 53 BatchNorms of 5, fc's 2
  EXPECT_THAT(names50, testing::IsSupersetOf({"layer1.0.conv1.weight F32 [64,64,1,1]",
                                              "layer1.0.conv3.weight F32 [256,64,1,1]",
                                              "layer1.0.downsample.0.weight F32 [256,64,1,1]",
                                              "layer3.5.conv2.weight F32 [256,256,3,3]",
                                              "layer4.0.downsample.0.weight F32 [2048,1024,1,1]"}));
  EXPECT_THAT(std::vector<std::string>(names50.end() - 2, names50.end()),
              ElementsAre("fc.weight F32 [1000,2048]", "fc.bias F32 [1000]"));
}

// A block's shortcut comes after its last BatchNorm, as torchvision registers it.
TEST(BuiltinLayoutTest, DownsampleFollowsTheLastBatchNormOfItsBlock) {
  const std::vector<std::string> names = Describe(*Layout("resnet50"));
  const auto at =
      std::find(names.begin(), names.end(), "layer2.0.downsample.0.weight F32 [512,256,1,1]");
  ASSERT_NE(at, names.end());
  EXPECT_EQ(*(at - 1), "layer2.0.bn3.num_batches_tracked I64 []");
  EXPECT_EQ(*(at + 6), "layer2.1.conv1.weight F32 [128,512,1,1]");
}

TEST(BuiltinLayoutTest, CountersTakeTheMaximumAndAllElseTheMean) {
  const auto layout = Layout("resnet18");
  for (const aggregation::TensorSpec& spec : layout->tensors()) {
    const bool counter = spec.name.ends_with(".num_batches_tracked");
    EXPECT_EQ(spec.policy, counter ? Policy::kMax : Policy::kMean) << spec.name;
    EXPECT_EQ(spec.dtype, counter ? DType::kI64 : DType::kF32) << spec.name;
  }
}

TEST(BuiltinLayoutTest, SyntheticIsOneFloatTensorOfAnySizeWithoutTakingMemory) {
  EXPECT_THAT(Describe(*Layout("synthetic:1000")), ElementsAre("weight F32 [1000]"));
  EXPECT_EQ(Layout("synthetic:1000000000")->model_bytes(), 4'000'000'000u);
}

TEST(BuiltinNamesTest, EveryListedNameIsBuiltinAndOthersAreRefusedWithTheList) {
  for (const std::string& name : BuiltinNames()) EXPECT_TRUE(IsBuiltin(name)) << name;
  EXPECT_TRUE(IsBuiltin("synthetic:5"));
  for (const char* name : {"", "3nn", "2NN", "2nn ", "synthetic", "synthetic:", "synthetic:0",
                           "synthetic:-1", "synthetic:1e6", "synthetic: 5",
                           "synthetic:1099511627777", "synthetic:99999999999999999999"}) {
    EXPECT_FALSE(IsBuiltin(name)) << name;
    const auto layout = BuiltinLayout(name);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kNotFound) << name;
    EXPECT_THAT(std::string(layout.status().message()), HasSubstr("resnet50 and synthetic:N"))
        << name;
    EXPECT_EQ(BuiltinModel(name, 1).status().code(), absl::StatusCode::kNotFound) << name;
  }
}

class InitialWeightsTest : public testing::TestWithParam<std::string> {};

// Every bit of every tensor, drawn again by numpy from the published definition of Philox.
TEST_P(InitialWeightsTest, EqualAnIndependentDrawToTheBit) {
  const uint64_t seed = 20240917;
  const auto model = BuiltinModel(GetParam(), seed);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string path = absl::StrCat(testing::TempDir(), "/weights-", getpid(), ".safetensors");
  ASSERT_TRUE(WriteSafetensors(path, *model->layout, model->bytes, {}).ok());
  EXPECT_EQ(RunPython(absl::StrCat("safetensors_check.py weights ", path, " ", seed)),
            absl::StrCat(model->layout->elements(), "\n"));
  std::filesystem::remove(path);
}
INSTANTIATE_TEST_SUITE_P(Models, InitialWeightsTest,
                         testing::Values("2nn", "cnn", "logreg", "mlp-digits", "mlp-fashion",
                                         "resnet18"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

std::vector<float> Floats(const Model& model, uint32_t tensor) {
  std::vector<float> out(model.layout->TensorElements(tensor));
  std::memcpy(out.data(), model.bytes.data() + model.layout->TensorByteOffset(tensor),
              out.size() * 4);
  return out;
}

TEST(BuiltinModelTest, WeightsFillTheTorchRangeEvenly) {
  const auto model = BuiltinModel("2nn", 3);
  ASSERT_TRUE(model.ok());
  const std::vector<float> weights = Floats(*model, 0);  // fan-in 784: U(-1/28, 1/28)
  double sum = 0, squares = 0, largest = 0;
  for (const float w : weights) {
    sum += w;
    squares += double(w) * w;
    largest = std::max(largest, std::abs(double(w)));
  }
  const double n = static_cast<double>(weights.size());
  EXPECT_LE(largest, 1.0 / 28);
  EXPECT_GT(largest, 0.999 / 28);
  // Four standard errors of the mean and of the mean square of a uniform distribution.
  EXPECT_NEAR(sum / n, 0, 4 / std::sqrt(3 * n) / 28);
  EXPECT_NEAR(squares / n * 28 * 28, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / n));
}

TEST(BuiltinModelTest, ASeedAlwaysGivesTheSameBytesAndAnotherSeedOthers) {
  const auto a = BuiltinModel("mlp-digits", 1), b = BuiltinModel("mlp-digits", 1),
             c = BuiltinModel("mlp-digits", 2);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->bytes, b->bytes);
  EXPECT_NE(a->bytes, c->bytes);
}

TEST(BuiltinModelTest, TensorsOfOneShapeAreDrawnFromStreamsOfTheirOwn) {
  const auto model = BuiltinModel("resnet18", 1);
  ASSERT_TRUE(model.ok());
  std::vector<std::vector<float>> same;
  for (uint32_t t = 0; t < model->layout->tensors().size(); ++t) {
    if (model->layout->tensors()[t].shape == std::vector<uint64_t>{64, 64, 3, 3})
      same.push_back(Floats(*model, t));
  }
  ASSERT_EQ(same.size(), 4u);
  for (size_t i = 1; i < same.size(); ++i) EXPECT_NE(same[0], same[i]);
}

}  // namespace
}  // namespace tributary::models
