// Learning through the aggregator's own arithmetic: encoded with fp32, summed exactly, averaged by
// FedAvg, it is the learning that the textbook promises (McMahan et al., 2017, section 2).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "aggregation/accumulator.h"
#include "aggregation/optimizer.h"
#include "aggregation/update.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "client/trainer/split.h"
#include "compression/codec.h"
#include "torch_reference.h"
#include "training_fixture.h"

namespace tributary::client::trainer {
namespace {

using testing::BaseFloats;
using testing::BuiltinTask;
using testing::Digits;
using testing::MakePool;
using testing::MakeTrainer;
using testing::Train;

class Deltas final : public aggregation::DeltaSource {
 public:
  explicit Deltas(const TrainResult& result) : result_(result) {}
  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override {
    return std::span<const float>(result_.floats[tensor]);
  }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t tensor) override {
    return std::span<const int64_t>(result_.ints[tensor]);
  }

 private:
  const TrainResult& result_;
};

// One round at a root, without the network.
class Round {
 public:
  explicit Round(const TrainTask& task) : task_(task) {
    grid_ = *aggregation::ProveGrid(aggregation::GridRequest());
    sum_ = *aggregation::ExactAccumulator::Create(task.layout, grid_);
  }

  void Add(const std::string& id, const TrainResult& result) {
    const auto weight = *aggregation::WeightUnits(result.weight, 0);
    const auto all = std::make_shared<std::vector<uint8_t>>();
    uint32_t crc = 0;
    Deltas deltas(result);
    const auto emit = [&](std::vector<uint8_t> segment) {
      crc = ExtendCrc32c(crc, segment);
      all->insert(all->end(), segment.begin(), segment.end());
      return absl::OkStatus();
    };
    const auto codec = *compression::MakeCodec("fp32");
    ASSERT_TRUE(aggregation::EncodeUpdate(*task_.layout, *codec, 1, 1, deltas, emit).ok());
    const uint64_t bytes = all->size();
    aggregation::UpdateAssembler assembler(task_.layout, grid_, id, weight, bytes);
    EXPECT_TRUE(assembler.Add(PiecedBytes(*all), all)) << assembler.refusal().message;
    const auto update = assembler.Finish(bytes, crc);
    ASSERT_NE(update, nullptr) << assembler.refusal().message;
    const aggregation::EncodedUpdate* const one = update.get();
    sum_->Fold({&one, 1}, {.begin = 0, .end = task_.layout->elements()});
    weight_ += static_cast<uint64_t>(weight);
  }

  // The next model's float tensors.
  testing::Weights Finish() const {
    std::vector<uint8_t> next(task_.base->size());
    const auto optimizer = *aggregation::MakeServerOptimizer({}, task_.layout);
    EXPECT_TRUE(optimizer->Apply({*sum_, grid_, weight_}, *task_.base, next).ok());
    TrainTask after = task_;
    after.base = std::make_shared<const std::vector<uint8_t>>(std::move(next));
    testing::Weights weights;
    for (uint32_t i = 0; i < task_.layout->tensors().size(); ++i) {
      weights.push_back(BaseFloats(after, i));
    }
    return weights;
  }

 private:
  const TrainTask& task_;
  aggregation::Grid grid_;
  std::unique_ptr<aggregation::ExactAccumulator> sum_;
  uint64_t weight_ = 0;
};

testing::Weights BaseWeights(const TrainTask& task) {
  testing::Weights weights;
  for (uint32_t i = 0; i < task.layout->tensors().size(); ++i) {
    weights.push_back(BaseFloats(task, i));
  }
  return weights;
}

std::vector<float> Images(const Examples& examples) {
  std::vector<float> images;
  for (const uint8_t pixel : examples.pixels) images.push_back(static_cast<float>(pixel) / 16);
  return images;
}

// The order that trainer.h promises: Fisher and Yates by Philox, anew each epoch, cut into batches.
std::vector<std::vector<int64_t>> Batches(int64_t examples, int64_t batch, int epochs,
                                          PhiloxStream random) {
  std::vector<std::vector<int64_t>> batches;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::vector<int64_t> order(static_cast<size_t>(examples));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.NextBelow(i)]);
    for (int64_t at = 0; at < examples; at += batch) {
      const auto end = order.begin() + std::min(at + batch, examples);
      batches.emplace_back(order.begin() + at, end);
    }
  }
  return batches;
}

double LargestDifference(const testing::Weights& a, const testing::Weights& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].size(), b[i].size());
    for (size_t j = 0; j < a[i].size(); ++j) {
      largest = std::max(largest, std::abs(double{a[i][j]} - b[i][j]));
    }
  }
  return largest;
}

TEST(Learning, OneClientWithFedAvgAndServerRateOneIsLocalSgd) {
  const TrainTask task = BuiltinTask("mlp-digits",
                                     {{"lr", 0.05},
                                      {"momentum", 0.9},
                                      {"weight_decay", 1e-4},
                                      {"batch_size", 32},
                                      {"local_epochs", 2}},
                                     /*round=*/3, /*seed=*/11);
  const auto trainer =
      MakeTrainer(MakePool("mlp-digits"), {Digits().format, Digits().train, Digits().test}, "only");
  Round round(task);
  round.Add("only", Train(*trainer, task));

  testing::PlainSgd how{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4, .batches = {}};
  how.batches = Batches(1437, 32, 2, PhiloxStream(SeededHash(11, "shuffle", "only"), 3));
  EXPECT_EQ(how.batches.size(), 90);
  const std::vector<int64_t> labels(Digits().train.labels.begin(), Digits().train.labels.end());
  const testing::Weights expected =
      testing::TrainPerceptron(BaseWeights(task), Images(Digits().train), labels, how);
  EXPECT_GT(LargestDifference(BaseWeights(task), expected), 0.05);  // it did learn
  EXPECT_LT(LargestDifference(round.Finish(), expected), 1e-6);
}

TEST(Learning, OneFullBatchStepOfAllClientsIsOneCentralisedGradientStep) {
  const TrainTask task = BuiltinTask("mlp-digits", {{"lr", 0.5}, {"batch_size", 0}});
  const auto parts =
      SplitTraining(Digits().train.labels,
                    {.kind = SplitKind::kDirichlet, .clients = 10, .seed = 1, .alpha = 0.5});
  ASSERT_TRUE(parts.ok()) << parts.status();
  const auto pool = MakePool("mlp-digits");
  Round round(task);
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string id = std::to_string(i);
    const auto trainer = MakeTrainer(
        pool,
        {Digits().format, Gather(Digits().train, Digits().format, (*parts)[i]), Digits().test}, id);
    round.Add(id, Train(*trainer, task));
  }

  std::vector<int64_t> all(1437);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> labels(Digits().train.labels.begin(), Digits().train.labels.end());
  const testing::Weights expected = testing::TrainPerceptron(
      BaseWeights(task), Images(Digits().train), labels, {.lr = 0.5, .batches = {all}});
  EXPECT_GT(LargestDifference(BaseWeights(task), expected), 0.01);
  EXPECT_LT(LargestDifference(round.Finish(), expected), 1e-6);
}

}  // namespace
}  // namespace tributary::client::trainer
