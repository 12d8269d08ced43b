// What a client's rounds look like in the log.
#include "client/trainer/internal/logging_trainer.h"

#include <spdlog/spdlog.h>

#include <chrono>

#include "base/status.h"

namespace tributary::client::trainer {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string MetricsText(const std::vector<v1::Metric>& metrics) {
  std::string text;
  for (const v1::Metric& metric : metrics) {
    text += fmt::format(", {} {:.4f}", metric.name(), metric.value());
  }
  return text;
}

class LoggingTrainer final : public Trainer {
 public:
  LoggingTrainer(std::string id, std::unique_ptr<Trainer> inner, bool quiet)
      : id_(std::move(id)),
        inner_(std::move(inner)),
        level_(quiet ? spdlog::level::debug : spdlog::level::info) {}

  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override {
    const Stopwatch watch;
    auto result = inner_->Train(task, cancelled);
    if (result.ok()) {
      spdlog::log(level_, "{}: round {}: trained in {:.2f} s{}", id_, task.spec.round(),
                  watch.seconds(), MetricsText(result->metrics));
    } else {
      Warn("not trained", task, result.status());
    }
    return result;
  }

  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override {
    const Stopwatch watch;
    auto metrics = inner_->Evaluate(task);
    if (metrics.ok()) {
      spdlog::log(level_, "{}: model {}: tested in {:.2f} s{}", id_, task.spec.base_version(),
                  watch.seconds(), MetricsText(*metrics));
    } else {
      Warn("not tested", task, metrics.status());
    }
    return metrics;
  }

  void OnOutcome(const RoundOutcome& outcome) override {
    if (outcome.included) {
      spdlog::log(level_, "{}: round {}: the update counts", id_, outcome.round);
    } else {
      spdlog::warn("{}: round {}: the update does not count: {}", id_, outcome.round,
                   outcome.reason.empty() ? "the round failed" : outcome.reason);
    }
    inner_->OnOutcome(outcome);
  }

  void OnNotice(const std::string& what) override {
    spdlog::warn("{}: {}", id_, what);
    inner_->OnNotice(what);
  }

 private:
  // A round that ended without this client is no news of this level.
  void Warn(const char* what, const TrainTask& task, const absl::Status& status) const {
    spdlog::log(absl::IsCancelled(status) ? level_ : spdlog::level::warn, "{}: round {}: {}: {}",
                id_, task.spec.round(), what, Text(status));
  }

  const std::string id_;
  const std::unique_ptr<Trainer> inner_;
  const spdlog::level::level_enum level_;
};

}  // namespace

std::unique_ptr<Trainer> MakeLoggingTrainer(std::string client_id, std::unique_ptr<Trainer> inner,
                                            bool quiet) {
  return std::make_unique<LoggingTrainer>(std::move(client_id), std::move(inner), quiet);
}

}  // namespace tributary::client::trainer
