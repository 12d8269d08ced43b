// For the trainer's tests: small data, tasks, and models without a network.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/trainer/trainer.h"
#include "models/builtin.h"

namespace tributary::client::trainer::testing {

using Values = std::map<std::string, double>;

inline bool Never() { return false; }

inline std::shared_ptr<NetworkPool> MakePool(const std::string& model, int slots = 1) {
  UseOneTorchThread();
  auto pool = NetworkPool::Create(model, slots);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return pool.ok() ? *pool : nullptr;
}

inline const Dataset& Digits() {
  static const auto* const dataset = new absl::StatusOr<Dataset>(LoadDataset("digits"));
  EXPECT_TRUE(dataset->ok()) << dataset->status();
  return dataset->value();
}

// Images whose pixels depend on position and label, and a few labels.
inline TorchTrainer::Data PatternData(uint32_t height, uint32_t width, size_t train, size_t test) {
  const ImageFormat format{.dataset = "pattern",
                           .channels = 1,
                           .height = height,
                           .width = width,
                           .classes = 10,
                           .pixel_max = 255,
                           .mean = 0,
                           .deviation = 1};
  const auto make = [&](size_t count, size_t salt) {
    Examples examples;
    for (size_t i = 0; i < count; ++i) {
      examples.labels.push_back(static_cast<uint8_t>((i * 3 + salt) % 10));
      for (size_t p = 0; p < format.pixels(); ++p) {
        examples.pixels.push_back(
            static_cast<uint8_t>((p * 31 + examples.labels[i] * 57 + i * 11 + salt) % 256));
      }
    }
    return examples;
  };
  return {.format = format, .train = make(train, 0), .test = make(test, 5)};
}

inline TrainTask MakeTask(const models::Model& model, const Values& values, uint64_t round = 1,
                          uint64_t seed = 7) {
  TrainTask task;
  task.layout = model.layout;
  task.base = std::make_shared<const std::vector<uint8_t>>(model.bytes);
  task.spec.set_round(round);
  task.spec.set_seed(seed);
  task.spec.mutable_hyperparameters()->insert(values.begin(), values.end());
  return task;
}

inline TrainTask BuiltinTask(const std::string& name, const Values& values, uint64_t round = 1,
                             uint64_t seed = 7) {
  const auto model = models::BuiltinModel(name, 1);
  EXPECT_TRUE(model.ok()) << model.status();
  return MakeTask(*model, values, round, seed);
}

// A tensor's values of the task's base.
inline std::vector<float> BaseFloats(const TrainTask& task, uint32_t tensor) {
  std::vector<float> values(task.layout->TensorElements(tensor));
  std::memcpy(values.data(), task.base->data() + task.layout->TensorByteOffset(tensor),
              values.size() * sizeof(float));
  return values;
}

inline std::unique_ptr<TorchTrainer> MakeTrainer(std::shared_ptr<NetworkPool> pool,
                                                 TorchTrainer::Data data,
                                                 const std::string& id = "client-000") {
  auto trainer = TorchTrainer::Create(std::move(pool), id, std::move(data));
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return trainer.ok() ? *std::move(trainer) : nullptr;
}

inline TrainResult Train(TorchTrainer& trainer, const TrainTask& task) {
  auto result = trainer.Train(task, Never);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : TrainResult();
}

}  // namespace tributary::client::trainer::testing
