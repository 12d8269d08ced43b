// The root's own evaluation of a committed model, at the same time as the clients'.
#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "server/internal/root.h"

namespace tributary::server {

void Root::StartJudging() {
  if (c_.evaluation.command.empty() || shutting_down_) return;
  if (round_ % c_.evaluation.every != 0 && round_ < c_.run->rounds) return;
  judging_ = true;
  judge_jobs_.Post([this, file = store_->model_file()] {
    const auto result = judge_.Evaluate(file, absl::Seconds(c_.evaluation.timeout_s));
    loop_.Post([this, result] { Judged(result); });
  });
}

void Root::Judged(const absl::StatusOr<std::map<std::string, double>>& result) {
  if (!std::exchange(judging_, false)) return;
  if (result.ok()) {
    report_.root_evaluation = *result;
  } else {
    report_.root_evaluation_failed = std::string(result.status().message());
    spdlog::warn("round {}: no evaluation at the root: {}", round_, Text(result.status()));
  }
  if (std::exchange(awaiting_judge_, false)) RoundOver();
}

// The committed round is told of once all evaluations of its model are there.
void Root::RoundOver() {
  if (ending()) return;
  awaiting_judge_ = judging_ && !shutting_down_;
  if (awaiting_judge_) return;
  Publish(report_);
  AfterRound();
}

}  // namespace tributary::server
