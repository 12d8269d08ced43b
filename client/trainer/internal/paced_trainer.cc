// Slowness without load.
#include "client/trainer/internal/paced_trainer.h"

#include <chrono>
#include <thread>
#include <utility>

namespace tributary::client::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{5};  // how often it asks whether the task is cancelled

class PacedTrainer final : public Trainer {
 public:
  PacedTrainer(double seconds, std::unique_ptr<Trainer> inner)
      : seconds_(seconds), inner_(std::move(inner)) {}

  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override {
    const auto& told = task.spec.hyperparameters();
    const auto work = told.find("work");
    const double seconds = seconds_ * (work == told.end() ? 1 : work->second);
    auto end = std::chrono::time_point_cast<Clock::duration>(
        Clock::now() + std::chrono::duration<double>(seconds));
    // Who is to send what it has by then does so, slow or not.
    if (const auto until = told.find("seconds"); until != told.end()) {
      end = std::min(end, std::chrono::time_point_cast<Clock::duration>(
                              task.received + std::chrono::duration<double>(until->second)));
    }
    auto result = inner_->Train(task, cancelled);
    while (result.ok() && Clock::now() < end) {
      if (cancelled()) return absl::CancelledError("the round is over");
      std::this_thread::sleep_for(kLook);
    }
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override {
    return inner_->Evaluate(task);
  }
  void OnOutcome(const RoundOutcome& outcome) override { inner_->OnOutcome(outcome); }
  void OnNotice(const std::string& notice) override { inner_->OnNotice(notice); }

 private:
  const double seconds_;
  const std::unique_ptr<Trainer> inner_;
};

}  // namespace

std::unique_ptr<Trainer> MakePacedTrainer(const Pace& pace, uint32_t index,
                                          std::unique_ptr<Trainer> inner) {
  if (pace.seconds <= 0) return inner;
  const bool slow = pace.slow_every > 0 && index % pace.slow_every == 0;
  return std::make_unique<PacedTrainer>(pace.seconds * (slow ? pace.slow_factor : 1),
                                        std::move(inner));
}

}  // namespace tributary::client::trainer
