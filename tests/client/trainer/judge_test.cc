// Evaluation at the root: loss and accuracy of a model's file are those worked out in double, from
// the function and from the root's process.
#include "client/trainer/internal/judge.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

#include "aggregation/variates.h"
#include "nodes_fixture.h"

namespace tributary::client::trainer {
namespace {

using server::TempDir;
using server::TestNode;
using ::testing::HasSubstr;

// mlp-digits from the textbook: W2 relu(W1 x + b1) + b2, in double, on the 360 test images.
struct Score {
  double loss = 0;
  double accuracy = 0;
};
Score ByHand(const models::Model& model) {
  std::vector<std::vector<double>> w;
  for (uint32_t t = 0; t < 4; ++t) {
    std::vector<float> values(model.layout->TensorElements(t));
    std::memcpy(values.data(), model.bytes.data() + model.layout->TensorByteOffset(t),
                4 * values.size());
    w.emplace_back(values.begin(), values.end());
  }
  const Dataset& data = testing::Digits();
  Score score;
  for (size_t i = 0; i < data.test.size(); ++i) {
    std::vector<double> hidden = w[1], out = w[3];
    for (size_t h = 0; h < hidden.size(); ++h) {
      for (size_t p = 0; p < 64; ++p) {
        const double x =
            (double{1} * data.test.pixels[64 * i + p] / data.format.pixel_max - data.format.mean) /
            data.format.deviation;
        hidden[h] += w[0][64 * h + p] * x;
      }
      hidden[h] = std::max(hidden[h], 0.0);
    }
    for (size_t c = 0; c < out.size(); ++c) {
      for (size_t h = 0; h < hidden.size(); ++h) out[c] += w[2][hidden.size() * c + h] * hidden[h];
    }
    double sum = 0;
    for (const double o : out) sum += std::exp(o);
    score.loss += std::log(sum) - out[data.test.labels[i]];
    score.accuracy += std::max_element(out.begin(), out.end()) - out.begin() == data.test.labels[i];
  }
  const auto n = static_cast<double>(data.test.size());
  return {score.loss / n, score.accuracy / n};
}

ClientConfig DigitsConfig() {
  const auto config =
      ParseClientConfig("[data]\ndataset = \"digits\"\n[model]\nname = \"mlp-digits\"\n", "t.toml",
                        {.evaluate = true});
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(Judge, AnswersEachModelWithWhatDoubleSaysVariatesLeftOut) {
  TempDir dir;
  const auto model = *models::BuiltinModel("mlp-digits", 3);
  const std::string plain = dir / "plain.safetensors", more = dir / "more.safetensors";
  ASSERT_TRUE(models::WriteSafetensors(plain, *model.layout, model.bytes, {}).ok());
  const auto extended = *aggregation::WithVariates(*model.layout);
  std::vector<uint8_t> bytes = model.bytes;
  bytes.resize(extended->model_bytes(), 0x3f);
  ASSERT_TRUE(models::WriteSafetensors(more, *extended, bytes, {}).ok());
  const auto other = *models::BuiltinModel("logreg", 1);
  const std::string wrong = dir / "wrong.safetensors";
  ASSERT_TRUE(models::WriteSafetensors(wrong, *other.layout, other.bytes, {}).ok());

  std::istringstream paths(absl::StrCat(plain, "\n", wrong, "\n", dir / "none", "\n", more, "\n"));
  std::ostringstream answers;
  ASSERT_TRUE(JudgeModels(DigitsConfig(), paths, answers).ok());
  std::vector<nlohmann::json> lines;
  std::istringstream text(answers.str());
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  const Score by_hand = ByHand(model);
  for (const size_t good : {0, 3}) {
    EXPECT_NEAR(lines[good]["loss"].get<double>(), by_hand.loss, 1e-5);
    EXPECT_NEAR(lines[good]["accuracy"].get<double>(), by_hand.accuracy, 1e-12);
    EXPECT_EQ(lines[good]["count"], 360);
  }
  EXPECT_THAT(lines[1]["error"].get<std::string>(), HasSubstr("mlp-digits"));
  EXPECT_THAT(lines[2]["error"].get<std::string>(), HasSubstr("none"));
}

class NoTrainer final : public Trainer {
 public:
  absl::StatusOr<TrainResult> Train(const TrainTask& task, const std::function<bool()>&) override {
    TrainResult result;
    for (uint32_t t = 0; t < task.layout->tensors().size(); ++t) {
      result.floats.emplace_back(task.layout->TensorElements(t), 0.01f);
    }
    result.ints.resize(result.floats.size());
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask&) override {
    return std::vector<v1::Metric>();
  }
};

TEST(Judge, AsTheRootsProcessJudgesTheCommittedModel) {
  TempDir dir;
  std::ofstream(dir / "judge.toml")
      << "[data]\ndataset = \"digits\"\n[model]\nname = \"mlp-digits\"\n";
  TestNode root(absl::StrFormat(
      "[node]\nname = \"root\"\nlisten = \"127.0.0.1:0\"\n[run]\nname = \"r\"\nrounds = 2\nmodel = "
      "\"mlp-digits\"\nevaluate_every = 0\n[checkpoint]\ndirectory = \"%s\"\n[evaluation]\n"
      "command = [\"tributary-client\", \"--evaluate\", \"%s\"]\n",
      dir / "checkpoints", dir / "judge.toml"));
  NoTrainer trainer;
  ClientOptions options;
  options.endpoints = {root.endpoint()};
  options.id = "a";
  auto client = *Client::Create(std::move(options), &trainer);
  std::thread thread([&] { (void)client->Run(); });
  for (int round = 1; round <= 2; ++round) {
    const server::RoundReport report = root.Round(static_cast<size_t>(round) - 1);
    const auto model = models::ReadSafetensors(
        dir / absl::StrFormat("checkpoints/r/%08d/model.safetensors", round));
    ASSERT_TRUE(model.ok()) << model.status();
    const Score by_hand = ByHand(*model);
    ASSERT_EQ(report.root_evaluation_failed, "");
    EXPECT_NEAR(report.root_evaluation.at("loss"), by_hand.loss, 1e-5);
    EXPECT_NEAR(report.root_evaluation.at("accuracy"), by_hand.accuracy, 1e-12);
    EXPECT_EQ(report.root_evaluation.at("count"), 360);
  }
  EXPECT_TRUE(root.End().ok());
  thread.join();
}

}  // namespace
}  // namespace tributary::client::trainer
