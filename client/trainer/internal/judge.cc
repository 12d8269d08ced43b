// One model after the other.
#include "client/trainer/internal/judge.h"

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "aggregation/variates.h"
#include "base/status.h"
#include "client/trainer/trainer.h"
#include "models/safetensors.h"

namespace tributary::client::trainer {
namespace {

// The model's own tensors.
absl::StatusOr<TrainTask> TaskOf(const std::string& path) {
  ASSIGN_OR_RETURN(const models::Model model, models::ReadSafetensors(path));
  std::vector<aggregation::TensorSpec> tensors;
  std::vector<uint8_t> bytes;
  for (uint32_t t = 0; t < model.layout->tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = model.layout->tensors()[t];
    if (tensor.name.starts_with(aggregation::kVariatePrefix)) continue;
    const auto begin =
        model.bytes.begin() + static_cast<ptrdiff_t>(model.layout->TensorByteOffset(t));
    bytes.insert(bytes.end(), begin,
                 begin + static_cast<ptrdiff_t>(model.layout->TensorElements(t) *
                                                aggregation::DTypeBytes(tensor.dtype)));
    tensors.push_back(tensor);
  }
  TrainTask task;
  ASSIGN_OR_RETURN(task.layout, aggregation::ModelLayout::Create(std::move(tensors)));
  task.base = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
  return task;
}

absl::StatusOr<nlohmann::json> Judge(TorchTrainer& trainer, const std::string& path) {
  ASSIGN_OR_RETURN(const TrainTask task, TaskOf(path));
  ASSIGN_OR_RETURN(const std::vector<v1::Metric> metrics, trainer.Evaluate(task));
  nlohmann::json answer;
  for (const v1::Metric& metric : metrics) {
    answer[metric.name() == "test_loss" ? "loss" : "accuracy"] = metric.value();
    answer["count"] = metric.weight();
  }
  return answer;
}

}  // namespace

absl::Status JudgeModels(const ClientConfig& config, std::istream& paths, std::ostream& answers) {
  UseOneTorchThread();
  ASSIGN_OR_RETURN(const auto pool, NetworkPool::Create(config.model, 1));
  ASSIGN_OR_RETURN(const Dataset data, LoadDataset(config.dataset, config.directory));
  ASSIGN_OR_RETURN(const Parts parts,
                   SplitTest(data.test.size(), config.split.clients, config.split.seed));
  // It trains on nothing, but a trainer has an example.
  const std::vector<uint32_t> one = {0};
  ASSIGN_OR_RETURN(
      const auto trainer,
      TorchTrainer::Create(pool, config.id,
                           {.format = data.format,
                            .train = Gather(data.train, data.format, one),
                            .test = Gather(data.test, data.format, parts[config.index])}));
  for (std::string path; std::getline(paths, path);) {
    auto answer = Judge(*trainer, path);
    if (!answer.ok()) answer = nlohmann::json{{"error", Text(answer.status())}};
    answers << answer->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace tributary::client::trainer
