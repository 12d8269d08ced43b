// Trainers around trainers: label shares, and slowness.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "client/trainer/internal/label_trainer.h"
#include "client/trainer/internal/paced_trainer.h"

namespace tributary::client::trainer {
namespace {

class Inner final : public Trainer {
 public:
  explicit Inner(bool fails = false) : fails_(fails) {}
  absl::StatusOr<TrainResult> Train(const TrainTask&, const std::function<bool()>&) override {
    if (fails_) return absl::OutOfRangeError("diverged");
    TrainResult result;
    result.weight = 8;
    result.metrics.emplace_back().set_name("loss");
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask&) override {
    std::vector<v1::Metric> metrics(1);
    metrics[0].set_name("test_loss");
    return metrics;
  }

 private:
  const bool fails_;
};

bool Never() { return false; }

// Of eight examples: none, one, four and three.
TEST(LabelTrainer, TellsTheSharesOfItsLabelsWithUpdatesAndEvaluations) {
  const std::vector<uint8_t> labels = {2, 1, 3, 2, 3, 2, 2, 3};
  auto trainer = MakeLabelTrainer(labels, 4, std::make_unique<Inner>());
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const auto trained = (*trainer)->Train({}, Never);
  ASSERT_TRUE(trained.ok());
  const auto tested = (*trainer)->Evaluate({});
  ASSERT_TRUE(tested.ok());
  const double shares[] = {0, 0.125, 0.5, 0.375};
  for (const auto& metrics : {trained->metrics, *tested}) {
    ASSERT_EQ(metrics.size(), 5u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(metrics[i + 1].name(), "label." + std::to_string(i));
      EXPECT_EQ(metrics[i + 1].value(), shares[i]);
      EXPECT_EQ(metrics[i + 1].weight(), 8u);
    }
  }
  EXPECT_EQ(trained->metrics[0].name(), "loss");
  EXPECT_EQ((*tested)[0].name(), "test_loss");
}

TEST(LabelTrainer, PassesFailuresOnAndRefusesMoreLabelsThanAReportHolds) {
  const std::vector<uint8_t> labels = {0};
  auto trainer = MakeLabelTrainer(labels, 1, std::make_unique<Inner>(/*fails=*/true));
  ASSERT_TRUE(trainer.ok());
  EXPECT_EQ((*trainer)->Train({}, Never).status().code(), absl::StatusCode::kOutOfRange);
  const auto many = MakeLabelTrainer(labels, 25, std::make_unique<Inner>());
  EXPECT_EQ(many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(many.status().message()), ::testing::HasSubstr("25 labels"));
}

TEST(PacedTrainer, IsTheTrainerItselfWhereNothingIsToBeWaitedFor) {
  auto inner = std::make_unique<Inner>();
  const Trainer* const same = inner.get();
  EXPECT_EQ(MakePacedTrainer({}, 0, std::move(inner)).get(), same);
}

TEST(PacedTrainer, TakesItsTimeTheSlowTheirsAndTheWorkIsConsidered) {
  const Pace pace{.seconds = 0.02, .slow_every = 2, .slow_factor = 10};
  const auto seconds = [&](uint32_t index, double work) {
    auto trainer = MakePacedTrainer(pace, index, std::make_unique<Inner>());
    TrainTask task;
    if (work > 0) (*task.spec.mutable_hyperparameters())["work"] = work;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(trainer->Train(task, Never).ok());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  EXPECT_GE(seconds(1, 0), 0.02);
  EXPECT_GE(seconds(2, 0), 0.2);
  EXPECT_GE(seconds(2, 0.5), 0.1);
}

TEST(PacedTrainer, SendsWhatItHasWhenItsTimeIsUp) {
  auto trainer = MakePacedTrainer({.seconds = 3600}, 0, std::make_unique<Inner>());
  TrainTask task;
  task.received = std::chrono::steady_clock::now();
  (*task.spec.mutable_hyperparameters())["seconds"] = 0.05;
  EXPECT_TRUE(trainer->Train(task, Never).ok());  // or the test hangs
  EXPECT_GE(std::chrono::steady_clock::now() - task.received, std::chrono::milliseconds(50));
}

TEST(PacedTrainer, EndsWhereItsTaskIsCancelled) {
  auto trainer = MakePacedTrainer({.seconds = 3600}, 0, std::make_unique<Inner>());
  int looked = 0;
  const auto result = trainer->Train({}, [&] { return ++looked >= 3; });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tributary::client::trainer
