// Networks: the built-in ones agree with models/ tensor by tensor, TorchScript files bring their
// own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "torch_reference.h"
#include "training_fixture.h"

namespace tributary::client::trainer {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MakePool;
using testing::MakeTask;
using testing::MakeTrainer;
using testing::PatternData;

// Not the running statistics of batch normalisation, which papers do not count.
uint64_t TrainableParameters(const ModelLayout& layout) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < layout.tensors().size(); ++i) {
    const auto& spec = layout.tensors()[i];
    const bool statistic = spec.name.find("running_") != std::string::npos;
    if (aggregation::IsFloat(spec.dtype) && !statistic) count += layout.TensorElements(i);
  }
  return count;
}

class BuiltinNetwork : public ::testing::TestWithParam<std::pair<const char*, uint64_t>> {};

TEST_P(BuiltinNetwork, HasTheLayoutOfModels) {
  const auto expected = models::BuiltinLayout(GetParam().first);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto pool = MakePool(GetParam().first);
  EXPECT_EQ(pool->layout()->hash(), (*expected)->hash())
      << pool->layout()->DescribeDifference(**expected);
}

TEST_P(BuiltinNetwork, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(TrainableParameters(*MakePool(GetParam().first)->layout()), GetParam().second);
}

// 2nn and cnn: McMahan et al., 2017; ResNets: torchvision's documentation; the others by hand.
INSTANTIATE_TEST_SUITE_P(All, BuiltinNetwork,
                         ::testing::Values(std::pair{"2nn", 199210}, std::pair{"cnn", 1663370},
                                           std::pair{"logreg", 7850},
                                           std::pair{"mlp-digits", 64 * 32 + 32 + 320 + 10},
                                           std::pair{"resnet18", 11689512},
                                           std::pair{"resnet50", 25557032}));

TEST(NetworkPool, RefusesModelsThatCannotBeTrained) {
  EXPECT_EQ(NetworkPool::Create("synthetic:10", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto unknown = NetworkPool::Create("3nn", 1);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(unknown.status()), AllOf(HasSubstr("\"3nn\""), HasSubstr("2nn")));
  EXPECT_FALSE(NetworkPool::Create("2nn", 0).ok());
}

TEST(NetworkPool, RefusesImagesOfAnotherSize) {
  auto refused = TorchTrainer::Create(MakePool("2nn"), "a", PatternData(8, 8, 4, 0));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(refused.status()), AllOf(HasSubstr("784"), HasSubstr("64")));
  EXPECT_FALSE(TorchTrainer::Create(MakePool("2nn"), "a", PatternData(28, 28, 0, 4)).ok());
}

TEST(TorchThreads, AreOneAlsoInBlas) {
  UseOneTorchThread();
  EXPECT_EQ(testing::TorchThreads(), 1);
  EXPECT_EQ(testing::BlasThreads(), 1);
}

TEST(ResNet, CountsItsBatchesInAnIntegerTensorAndShowsGreyImagesToItsThreeChannels) {
  const auto trainer = MakeTrainer(MakePool("resnet18"), PatternData(16, 16, 4, 3));
  const auto task = testing::BuiltinTask("resnet18", {{"batch_size", 2}, {"lr", 0.01}});
  const TrainResult result = testing::Train(*trainer, task);
  size_t counters = 0;
  for (size_t i = 0; i < task.layout->tensors().size(); ++i) {
    if (task.layout->tensors()[i].dtype != DType::kI64) continue;
    ++counters;
    EXPECT_THAT(result.ints[i], ElementsAre(2));  // two batches of two
    EXPECT_TRUE(result.floats[i].empty());
  }
  EXPECT_EQ(counters, 20);
  EXPECT_TRUE(trainer->Evaluate(task).ok());
}

class ScriptFile : public ::testing::Test {
 protected:
  ScriptFile() {
    std::string name = (std::filesystem::temp_directory_path() / "networks_test.XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~ScriptFile() override { std::filesystem::remove_all(directory_); }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

TEST_F(ScriptFile, GivesParametersAndBuffersInStateDictOrder) {
  testing::SaveScript(Path("net.pt"), 64, /*double_weight=*/true);
  const auto pool = MakePool(Path("net.pt"));
  const auto& tensors = pool->layout()->tensors();
  ASSERT_EQ(tensors.size(), 4);
  EXPECT_EQ(tensors[0].name, "weight");
  EXPECT_THAT(tensors[0].shape, ElementsAre(10, 64));
  EXPECT_EQ(tensors[0].dtype, DType::kF64);
  EXPECT_EQ(tensors[1].name, "scale");
  EXPECT_TRUE(tensors[1].shape.empty());
  EXPECT_EQ(tensors[2].name, "calls");
  EXPECT_EQ(tensors[2].dtype, DType::kI64);
  EXPECT_EQ(tensors[2].policy, Policy::kMax);
  EXPECT_EQ(tensors[3].name, "head.bias");
  EXPECT_EQ(tensors[3].dtype, DType::kF32);
}

TEST_F(ScriptFile, Trains) {
  testing::SaveScript(Path("net.pt"), 64, /*double_weight=*/false);
  const auto pool = MakePool(Path("net.pt"));
  const auto trainer = MakeTrainer(pool, PatternData(8, 8, 10, 5));
  // Weights of 0.01, a scale of 1: positive scores, so that gradients flow through relu.
  models::Model model{.layout = pool->layout(), .bytes = {}};
  model.bytes.resize(model.layout->model_bytes());
  for (size_t i = 0; i < 641; ++i) {
    const float value = i < 640 ? 0.01f : 1.0f;
    std::memcpy(model.bytes.data() + 4 * i, &value, sizeof(value));
  }
  const TrainResult result =
      testing::Train(*trainer, MakeTask(model, {{"batch_size", 5}, {"local_epochs", 3}}));
  EXPECT_NE(result.floats[0], std::vector<float>(640));  // weight: trained
  EXPECT_EQ(result.floats[1], std::vector<float>{0});    // scale: frozen in the file
  EXPECT_THAT(result.ints[2], ElementsAre(6));           // calls: two batches, three epochs
  EXPECT_NE(result.floats[3], std::vector<float>(10));   // head.bias: trained
}

// Once an optimizer step, however many names a tensor has.
TEST_F(ScriptFile, WithOneTensorUnderTwoNamesTrainsItOnce) {
  const auto deltas = [&](bool tied) {
    testing::SaveTiedScript(Path("net.pt"), 64, tied);
    const auto pool = MakePool(Path("net.pt"));
    models::Model model{.layout = pool->layout(), .bytes = {}};
    model.bytes.resize(model.layout->model_bytes());
    const auto trainer = MakeTrainer(pool, PatternData(8, 8, 10, 5));
    return testing::Train(*trainer, MakeTask(model, {{"batch_size", 0},
                                                     {"local_epochs", 3},
                                                     {"momentum", 0.5},
                                                     {"weight_decay", 0.1},
                                                     {"mu", 0.1}}))
        .floats;
  };
  const auto once = deltas(false), twice = deltas(true);
  ASSERT_EQ(once.size(), 1u);
  ASSERT_EQ(twice.size(), 2u);
  for (size_t i = 0; i < once[0].size(); ++i) {
    ASSERT_NEAR(twice[0][i], once[0][i], 1e-6) << i;
    ASSERT_EQ(twice[1][i], twice[0][i]) << i;
  }
}

TEST_F(ScriptFile, ThatIsNoneIsRefusedByName) {
  std::ofstream(Path("text.pt")) << "not a zip file";
  const auto pool = NetworkPool::Create(Path("text.pt"), 1);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(pool.status()), HasSubstr(Path("text.pt")));
}

}  // namespace
}  // namespace tributary::client::trainer
