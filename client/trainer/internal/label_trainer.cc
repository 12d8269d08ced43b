// Counts labels once, reports them with every task.
#include "client/trainer/internal/label_trainer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tributary::client::trainer {
namespace {

constexpr int kMostLabels = 24;  // a report has 32 metrics

class LabelTrainer final : public Trainer {
 public:
  LabelTrainer(std::vector<v1::Metric> shares, std::unique_ptr<Trainer> inner)
      : shares_(std::move(shares)), inner_(std::move(inner)) {}
  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override {
    auto result = inner_->Train(task, cancelled);
    if (result.ok()) Append(&result->metrics);
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override {
    auto metrics = inner_->Evaluate(task);
    if (metrics.ok()) Append(&*metrics);
    return metrics;
  }
  void OnOutcome(const RoundOutcome& outcome) override { inner_->OnOutcome(outcome); }
  void OnNotice(const std::string& notice) override { inner_->OnNotice(notice); }

 private:
  void Append(std::vector<v1::Metric>* metrics) const {
    metrics->insert(metrics->end(), shares_.begin(), shares_.end());
  }
  const std::vector<v1::Metric> shares_;
  const std::unique_ptr<Trainer> inner_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> MakeLabelTrainer(std::span<const uint8_t> labels,
                                                          int label_count,
                                                          std::unique_ptr<Trainer> inner) {
  if (label_count > kMostLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat("[data] report_labels: the data set has ", label_count,
                     " labels, and at most ", kMostLabels, " can be reported; set it to false"));
  }
  std::vector<uint64_t> counts(static_cast<size_t>(label_count));
  for (const uint8_t label : labels) ++counts.at(label);
  std::vector<v1::Metric> shares;
  for (int i = 0; i < label_count; ++i) {
    v1::Metric& metric = shares.emplace_back();
    metric.set_name(absl::StrCat("label.", i));
    metric.set_value(static_cast<double>(counts[static_cast<size_t>(i)]) /
                     static_cast<double>(std::max<size_t>(labels.size(), 1)));
    metric.set_weight(labels.size());
  }
  return std::unique_ptr<Trainer>(
      std::make_unique<LabelTrainer>(std::move(shares), std::move(inner)));
}

}  // namespace tributary::client::trainer
