// Local training: the steps are those of the formulas, worked out in double; the same task gives
// the same bits; refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/trainer/internal/probe.h"
#include "training_fixture.h"

namespace tributary::client::trainer {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;
using ::testing::AllOf;
using testing::BaseFloats;
using testing::BuiltinTask;
using testing::Digits;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakePool;
using testing::MakeTask;
using testing::MakeTrainer;
using testing::Never;
using testing::PatternData;
using testing::Train;
using testing::Values;

// Multinomial logistic regression in double, from the textbook: scores Wx + b, the gradient of the
// mean cross entropy is (softmax - onehot) x^T.
class LogRegByHand {
 public:
  static constexpr size_t kPixels = 784;
  static constexpr size_t kClasses = 10;

  LogRegByHand(const TrainTask& task, const TorchTrainer::Data& data, const Examples& examples)
      : labels_(examples.labels) {
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      for (const float value : BaseFloats(task, tensor)) w_.push_back(value);
    }
    base_ = w_;
    velocity_.assign(w_.size(), 0);
    for (const uint8_t pixel : examples.pixels) {
      x_.push_back((double{1} * pixel / data.format.pixel_max - data.format.mean) /
                   data.format.deviation);
    }
  }

  std::vector<double> Scores(size_t example) const {
    std::vector<double> scores(kClasses);
    for (size_t c = 0; c < kClasses; ++c) {
      scores[c] = w_[kClasses * kPixels + c];
      for (size_t p = 0; p < kPixels; ++p) {
        scores[c] += w_[c * kPixels + p] * x_[example * kPixels + p];
      }
    }
    return scores;
  }
  double Loss(size_t example) const {
    const auto scores = Scores(example);
    double sum = 0;
    for (const double score : scores) sum += std::exp(score);
    return std::log(sum) - scores[labels_[example]];
  }
  double MeanLoss() const {
    double sum = 0;
    for (size_t i = 0; i < labels_.size(); ++i) sum += Loss(i);
    return sum / static_cast<double>(labels_.size());
  }
  double Accuracy() const {
    double right = 0;
    for (size_t i = 0; i < labels_.size(); ++i) {
      const auto scores = Scores(i);
      right += std::max_element(scores.begin(), scores.end()) - scores.begin() == labels_[i];
    }
    return right / static_cast<double>(labels_.size());
  }

  void Step(double lr, double momentum, double weight_decay, double mu) {
    std::vector<double> gradient(w_.size());
    const auto n = static_cast<double>(labels_.size());
    for (size_t i = 0; i < labels_.size(); ++i) {
      const auto scores = Scores(i);
      double sum = 0;
      for (const double score : scores) sum += std::exp(score);
      for (size_t c = 0; c < kClasses; ++c) {
        const double error = (std::exp(scores[c]) / sum - (c == labels_[i])) / n;
        for (size_t p = 0; p < kPixels; ++p) {
          gradient[c * kPixels + p] += error * x_[i * kPixels + p];
        }
        gradient[kClasses * kPixels + c] += error;
      }
    }
    for (size_t j = 0; j < w_.size(); ++j) {
      const double g = gradient[j] + mu * (w_[j] - base_[j]) + weight_decay * w_[j];
      velocity_[j] = momentum * velocity_[j] + g;
      w_[j] -= lr * velocity_[j];
    }
  }

  double LargestError(const TrainResult& result) const {
    double largest = 0;
    for (size_t j = 0; j < w_.size(); ++j) {
      const double delta =
          j < kClasses * kPixels ? result.floats[0][j] : result.floats[1][j - kClasses * kPixels];
      largest = std::max(largest, std::abs(delta - (w_[j] - base_[j])));
    }
    return largest;
  }

 private:
  std::vector<uint8_t> labels_;
  std::vector<double> x_, w_, base_, velocity_;
};

TEST(Training, StepsAreThoseOfTheFormulas) {
  const auto data = PatternData(28, 28, 12, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  for (const Values& how :
       std::vector<Values>{{},
                           {{"momentum", 0.9}},
                           {{"weight_decay", 0.1}},
                           {{"mu", 0.5}},
                           {{"momentum", 0.5}, {"weight_decay", 0.05}, {"mu", 1}}}) {
    Values values = how;
    values.insert({{"lr", 0.01}, {"batch_size", 0}, {"local_epochs", 4}});
    const TrainTask task = BuiltinTask("logreg", values);
    LogRegByHand by_hand(task, data, data.train);
    double last_loss = 0;
    for (int step = 0; step < 4; ++step) {
      last_loss = by_hand.MeanLoss();
      by_hand.Step(0.01, values["momentum"], values["weight_decay"], values["mu"]);
    }
    const TrainResult result = Train(*trainer, task);
    EXPECT_LT(by_hand.LargestError(result), 1e-6) << ::testing::PrintToString(how);
    ASSERT_EQ(result.metrics.size(), 1);
    EXPECT_EQ(result.metrics[0].name(), "loss");
    EXPECT_NEAR(result.metrics[0].value(), last_loss, 1e-5);
    EXPECT_EQ(result.metrics[0].weight(), 12);
  }
}

// Five equal images in batches of two: three steps, the last with one image, whatever their order.
TEST(Training, KeepsAPartialLastBatch) {
  auto data = PatternData(28, 28, 5, 0);
  for (size_t i = 1; i < 5; ++i) {
    std::copy_n(data.train.pixels.begin(), 784, data.train.pixels.begin() + 784 * i);
    data.train.labels[i] = data.train.labels[0];
  }
  const TrainTask task =
      BuiltinTask("logreg", {{"lr", 0.01}, {"batch_size", 2}, {"momentum", 0.5}});
  LogRegByHand by_hand(task, data, data.train);
  for (int step = 0; step < 3; ++step) by_hand.Step(0.01, 0.5, 0, 0);
  EXPECT_LT(by_hand.LargestError(Train(*MakeTrainer(MakePool("logreg"), data), task)), 1e-6);
}

TEST(Training, ABatchLargerThanTheDataIsOneStep) {
  const auto data = PatternData(28, 28, 6, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  const TrainTask task = BuiltinTask("logreg", {{"lr", 0.01}, {"batch_size", 100}});
  LogRegByHand by_hand(task, data, data.train);
  by_hand.Step(0.01, 0, 0, 0);
  EXPECT_LT(by_hand.LargestError(Train(*trainer, task)), 1e-6);
}

TEST(Training, DoesOnlyTheShareOfItsStepsThatIsAskedFor) {
  const auto data = PatternData(28, 28, 12, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  // Of 10 steps a quarter, rounded up: 3.
  const TrainTask task = BuiltinTask(
      "logreg", {{"lr", 0.01}, {"batch_size", 0}, {"local_epochs", 10}, {"work", 0.25}});
  LogRegByHand by_hand(task, data, data.train);
  for (int step = 0; step < 3; ++step) by_hand.Step(0.01, 0, 0, 0);
  EXPECT_LT(by_hand.LargestError(Train(*trainer, task)), 1e-6);
}

// Its time is over when it begins; or it has more than it needs.
TEST(Training, WhoIsOutOfTimeSendsWhatItHasWeighedByItsSteps) {
  const auto data = PatternData(28, 28, 12, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  for (const auto& [seconds, steps] : {std::pair(1e-9, 1), std::pair(3600.0, 10)}) {
    TrainTask task = BuiltinTask("logreg", {{"lr", 0.01},
                                            {"batch_size", 0},
                                            {"local_epochs", 10},
                                            {"fednova", 1},
                                            {"seconds", seconds}});
    task.received = std::chrono::steady_clock::now();
    LogRegByHand by_hand(task, data, data.train);
    for (int step = 0; step < steps; ++step) by_hand.Step(0.01, 0, 0, 0);
    TrainResult result = Train(*trainer, task);
    for (auto& tensor : result.floats) {
      for (float& delta : tensor) delta *= static_cast<float>(steps);  // what FedNova divided by
    }
    EXPECT_LT(by_hand.LargestError(result), 1e-6) << seconds;
    ASSERT_EQ(result.metrics.size(), 2u);
    EXPECT_DOUBLE_EQ(result.metrics[1].value(), steps / 1024.0);
    EXPECT_EQ(result.metrics[1].weight(), 12u) << "it counts with all of its examples";
  }
}

// Five batches an epoch: it stops within one.
TEST(Training, ItsTimeIsOverInTheMiddleOfAnEpochToo) {
  const auto data = PatternData(28, 28, 10, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  TrainTask task =
      BuiltinTask("logreg", {{"lr", 0.01}, {"batch_size", 2}, {"fednova", 1}, {"seconds", 1e-9}});
  const TrainResult result = Train(*trainer, task);
  EXPECT_DOUBLE_EQ(result.metrics[1].value(), 1 / 1024.0);
}

TEST(Training, FedNovaDividesTheDeltaByTheNormalisedStepsAndTellsThem) {
  const auto data = PatternData(28, 28, 12, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  Values values = {{"lr", 0.01}, {"batch_size", 0}, {"local_epochs", 3}, {"momentum", 0.5}};
  const TrainResult plain = Train(*trainer, BuiltinTask("logreg", values));
  values["fednova"] = 1;
  const TrainResult nova = Train(*trainer, BuiltinTask("logreg", values));
  constexpr float kNorm = 1.75f + 1.5f + 1;  // what three gradients move by under momentum 1/2
  for (size_t i = 0; i < plain.floats[0].size(); ++i) {
    ASSERT_NEAR(nova.floats[0][i], plain.floats[0][i] / kNorm, 1e-9) << i;
  }
  ASSERT_EQ(nova.metrics.size(), 2);
  EXPECT_EQ(nova.metrics[1].name(), "local_kilosteps");
  EXPECT_DOUBLE_EQ(nova.metrics[1].value(), 4.25 / 1024);
  EXPECT_EQ(nova.metrics[1].weight(), 12);
}

// The server makes each mean delta larger by the steps: a running variance would be carried beyond
// zero. Skipped ones, and parameters that are frozen, are no hindrance.
TEST(Training, FedNovaRefusesAveragedStatisticsThatTrainingLeavesBehind) {
  const auto trainer = MakeTrainer(MakePool("resnet18"), PatternData(16, 16, 4, 0));
  TrainTask task = BuiltinTask("resnet18", {{"batch_size", 2}, {"lr", 0.01}, {"fednova", 1}});
  const auto refused = trainer->Train(task, Never);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused.status()),
              AllOf(HasSubstr("fednova"), HasSubstr("bn1.running_mean"), HasSubstr("skip")));
  std::vector<aggregation::TensorSpec> tensors = task.layout->tensors();
  for (aggregation::TensorSpec& tensor : tensors) {
    if (tensor.name.find("running_") != std::string::npos) {
      tensor.policy = Policy::kSkip;
    }
  }
  task.layout = *ModelLayout::Create(std::move(tensors));
  Train(*trainer, task);
}

// What --probe-codecs prints, of an update from training.
TEST(Probe, GivesSizeErrorAndTimeOfEachCodecOfARealUpdate) {
  const auto trainer = MakeTrainer(MakePool("2nn"), PatternData(28, 28, 30, 0));
  const TrainTask task = BuiltinTask("2nn", {{"lr", 0.05}, {"batch_size", 10}});
  const TrainResult update = Train(*trainer, task);
  const auto rows = ProbeUpdate(
      *task.layout, update, {"fp32", "fp16", "int8", "eden(bits=1)", "topk(0.01, values=ternary)"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 5u);
  EXPECT_EQ((*rows)[0].nmse, 0);
  EXPECT_GT((*rows)[0].bytes, 4 * 199210u);
  for (size_t i = 1; i < rows->size(); ++i) {
    EXPECT_LT((*rows)[i].bytes, (*rows)[i - 1].bytes) << (*rows)[i].spec;
    EXPECT_GT((*rows)[i].times_smaller, (*rows)[i - 1].times_smaller) << (*rows)[i].spec;
    EXPECT_GT((*rows)[i].nmse, i == 4 ? 0 : (*rows)[i - 1].nmse) << (*rows)[i].spec;
    EXPECT_LT((*rows)[i].nmse, 1) << (*rows)[i].spec;
    EXPECT_GT((*rows)[i].encode_ns, 0) << (*rows)[i].spec;
    EXPECT_EQ((*rows)[i].error_feedback, i == 4);
  }
  EXPECT_FALSE(ProbeUpdate(*task.layout, update, {"fp64"}).ok());
}

TEST(Training, LossFalls) {
  const auto trainer =
      MakeTrainer(MakePool("mlp-digits"), {Digits().format, Digits().train, Digits().test});
  double before = 1e9;
  for (const double epochs : {1, 3, 10}) {
    const auto result =
        Train(*trainer, BuiltinTask("mlp-digits", {{"lr", 0.1}, {"local_epochs", epochs}}));
    EXPECT_LT(result.metrics[0].value(), before);
    before = result.metrics[0].value();
  }
  // Without any learning it is ln 10 = 2.3: nine tenths of that are gone.
  EXPECT_LT(before, 0.1 * std::log(10.0));
}

TEST(Training, MuPullsTowardsTheBase) {
  const auto trainer =
      MakeTrainer(MakePool("mlp-digits"), {Digits().format, Digits().train, Digits().test});
  double before = 1e9;
  for (const double mu : {0.0, 0.1, 1.0, 5.0}) {
    const auto result =
        Train(*trainer, BuiltinTask("mlp-digits", {{"lr", 0.05}, {"local_epochs", 5}, {"mu", mu}}));
    double squares = 0;
    for (const auto& tensor : result.floats) {
      for (const float delta : tensor) squares += double{delta} * delta;
    }
    EXPECT_LT(squares, 0.9 * before) << mu;
    before = squares;
  }
}

const Values kUsual = {{"lr", 0.05}, {"momentum", 0.9}, {"batch_size", 16}, {"local_epochs", 2}};

TEST(Training, TheSameTaskGivesTheSameBits) {
  const TorchTrainer::Data data{Digits().format, Digits().train, Digits().test};
  const TrainTask task = BuiltinTask("mlp-digits", kUsual);
  const auto trainer = MakeTrainer(MakePool("mlp-digits"), data);
  const TrainResult once = Train(*trainer, task);
  EXPECT_EQ(Train(*trainer, task).floats, once.floats);
  EXPECT_EQ(Train(*MakeTrainer(MakePool("mlp-digits"), data), task).floats, once.floats);
}

TEST(Training, OtherRoundsSeedsAndClientsHaveOtherOrders) {
  const TorchTrainer::Data data{Digits().format, Digits().train, Digits().test};
  const auto pool = MakePool("mlp-digits");
  const auto trainer = MakeTrainer(pool, data);
  const TrainResult once = Train(*trainer, BuiltinTask("mlp-digits", kUsual, 1, 7));
  EXPECT_NE(Train(*trainer, BuiltinTask("mlp-digits", kUsual, 2, 7)).floats, once.floats);
  EXPECT_NE(Train(*trainer, BuiltinTask("mlp-digits", kUsual, 1, 8)).floats, once.floats);
  const auto other = MakeTrainer(pool, data, "client-001");
  EXPECT_NE(Train(*other, BuiltinTask("mlp-digits", kUsual, 1, 7)).floats, once.floats);
}

TEST(Training, LeavesNothingBehindInASharedNetwork) {
  const auto pool = MakePool("mlp-digits");
  const TorchTrainer::Data data{Digits().format, Digits().train, Digits().test};
  const auto trainer = MakeTrainer(pool, data);
  const TrainTask task = BuiltinTask("mlp-digits", kUsual);
  const TrainResult undisturbed = Train(*trainer, task);
  // Cut short in the middle, evaluated, trained by another client; then again.
  int looks = 0;
  const auto cut = trainer->Train(task, [&looks] { return ++looks > 20; });
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(trainer->Evaluate(task).ok());
  Train(*MakeTrainer(pool, data, "other"), BuiltinTask("mlp-digits", {{"mu", 3}}, 4));
  EXPECT_EQ(Train(*trainer, task).floats, undisturbed.floats);
}

TEST(Training, ManyClientsOnFewNetworksGiveTheBitsOfOneAfterTheOther) {
  constexpr int kClients = 6;
  const TorchTrainer::Data data{Digits().format, Digits().train, Digits().test};
  const TrainTask task = BuiltinTask("mlp-digits", kUsual);
  const auto train_all = [&](int slots, bool at_once) {
    const auto pool = MakePool("mlp-digits", slots);
    std::vector<std::vector<std::vector<float>>> deltas(kClients);
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back(
          [&, i] { deltas[i] = Train(*MakeTrainer(pool, data, absl::StrCat(i)), task).floats; });
      if (!at_once) threads.back().join();
    }
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    return deltas;
  };
  EXPECT_EQ(train_all(2, true), train_all(1, false));
}

TEST(Training, WeighsByExamplesWhateverTheGridsUnits) {
  const auto trainer = MakeTrainer(MakePool("logreg"), PatternData(28, 28, 9, 0));
  TrainTask task = BuiltinTask("logreg", {{"batch_size", 0}});
  EXPECT_EQ(Train(*trainer, task).weight, 9);
  task.spec.mutable_grid()->set_weight_fraction_bits(16);
  EXPECT_EQ(Train(*trainer, task).weight, 9);
}

TEST(Training, FindsTensorsByNameAndSendsNothingForSkippedOnes) {
  const auto model = models::BuiltinModel("logreg", 1);
  ASSERT_TRUE(model.ok());
  const auto data = PatternData(28, 28, 9, 0);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  const Values how = {{"lr", 0.01}, {"batch_size", 0}};
  const TrainResult usual = Train(*trainer, MakeTask(*model, how));

  auto specs = model->layout->tensors();
  std::swap(specs[0], specs[1]);
  specs[0].policy = Policy::kSkip;
  models::Model turned{.layout = *ModelLayout::Create(specs), .bytes = model->bytes};
  std::rotate(turned.bytes.begin(), turned.bytes.begin() + 7840 * 4, turned.bytes.end());
  const TrainResult result = Train(*trainer, MakeTask(turned, how));
  EXPECT_THAT(result.floats[0], IsEmpty());
  EXPECT_EQ(result.floats[1], usual.floats[0]);
}

TEST(Evaluate, EqualsLossAndAccuracyWorkedOutInDouble) {
  // More than one batch of the test.
  const auto data = PatternData(28, 28, 1, 613);
  const auto trainer = MakeTrainer(MakePool("logreg"), data);
  const TrainTask task = BuiltinTask("logreg", {});
  const LogRegByHand by_hand(task, data, data.test);
  const auto metrics = trainer->Evaluate(task);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  ASSERT_EQ(metrics->size(), 2);
  EXPECT_EQ((*metrics)[0].name(), "test_loss");
  EXPECT_NEAR((*metrics)[0].value(), by_hand.MeanLoss(), 1e-5);
  EXPECT_EQ((*metrics)[0].weight(), 613);
  EXPECT_EQ((*metrics)[1].name(), "test_accuracy");
  EXPECT_NEAR((*metrics)[1].value(), by_hand.Accuracy(), 1e-12);
  EXPECT_EQ((*metrics)[1].weight(), 613);
}

TEST(Evaluate, WithoutTestExamplesHasNothingToSay) {
  const auto trainer = MakeTrainer(MakePool("logreg"), PatternData(28, 28, 1, 0));
  const auto metrics = trainer->Evaluate(BuiltinTask("logreg", {}));
  ASSERT_TRUE(metrics.ok());
  EXPECT_TRUE(metrics->empty());
}

class Refusals : public ::testing::Test {
 protected:
  absl::Status TrainStatus(const TrainTask& task) { return trainer_->Train(task, Never).status(); }
  const std::unique_ptr<TorchTrainer> trainer_ =
      MakeTrainer(MakePool("logreg"), PatternData(28, 28, 9, 3));
};

TEST_F(Refusals, AnotherModelsLayout) {
  const absl::Status status = TrainStatus(BuiltinTask("2nn", {}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("\"fc1.weight\""));
  EXPECT_EQ(trainer_->Evaluate(BuiltinTask("2nn", {})).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(Refusals, AMissingTensorAnotherShapeAnotherDtype) {
  const auto refusal = [this](std::vector<aggregation::TensorSpec> specs) {
    models::Model model{.layout = *ModelLayout::Create(std::move(specs)), .bytes = {}};
    model.bytes.resize(model.layout->model_bytes());
    const absl::Status status = TrainStatus(MakeTask(model, {}));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return Text(status);
  };
  const auto whole = (*models::BuiltinLayout("logreg"))->tensors();
  EXPECT_THAT(refusal({whole[0]}), HasSubstr("lacks its tensor \"fc.bias\""));
  auto other = whole;
  other[1].shape = {11};
  EXPECT_THAT(refusal(other), HasSubstr("\"fc.bias\" has shape"));
  other = whole;
  other[0].dtype = DType::kF64;
  EXPECT_THAT(refusal(other), HasSubstr("\"fc.weight\""));
}

TEST_F(Refusals, ABaseOfTheWrongSizeOrNone) {
  TrainTask task = BuiltinTask("logreg", {});
  task.base = std::make_shared<const std::vector<uint8_t>>(10);
  EXPECT_EQ(TrainStatus(task).code(), absl::StatusCode::kInvalidArgument);
  task.base = nullptr;
  EXPECT_EQ(TrainStatus(task).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Refusals, HyperparametersThatAreNone) {
  EXPECT_EQ(TrainStatus(BuiltinTask("logreg", {{"lrr", 1}})).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(Refusals, ADivergedTrainingSaysSoWithItsRate) {
  const absl::Status status = TrainStatus(
      BuiltinTask("logreg", {{"lr", 1e6}, {"weight_decay", 1e6}, {"local_epochs", 99}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(Text(status), HasSubstr("lower lr"));
}

TEST_F(Refusals, ACancelledTraining) {
  const auto result = trainer_->Train(BuiltinTask("logreg", {}), [] { return true; });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(Refusals, WhatTorchThrowsBecomesAStatus) {
  // Batch normalisation over one value a channel: torch refuses to train on it.
  const auto trainer = MakeTrainer(MakePool("resnet18"), PatternData(8, 8, 1, 0));
  const auto result = trainer->Train(BuiltinTask("resnet18", {}), Never);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(result.status()), HasSubstr("torch refuses: Expected more than 1 value"));
}

}  // namespace
}  // namespace tributary::client::trainer
