// The root, for its own sources: root.cc has its life, root_model.cc the model that it starts with,
// root_checkpoint.cc what a commit keeps, root_rounds.cc its rounds, root_evaluation.cc its own
// evaluation.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/optimizer.h"
#include "aggregation/sketches.h"
#include "compression/policy.h"
#include "server/checkpoint.h"
#include "server/downlink.h"
#include "server/evaluator.h"
#include "server/node_base.h"

namespace tributary::server {

class Root final : public NodeBase {
 public:
  explicit Root(Options options) : NodeBase(std::move(options)), c_(options_.config) {}
  ~Root() override { judge_.Cancel(); }
  absl::Status Open();

 private:
  // root_model.cc
  absl::Status LoadModel();
  absl::Status MakeOptimizer(const std::shared_ptr<const aggregation::ModelLayout>& layout);
  absl::StatusOr<std::unique_ptr<aggregation::ServerOptimizer>> WithEstimates(
      std::unique_ptr<aggregation::ServerOptimizer> optimizer,
      const std::shared_ptr<const aggregation::ModelLayout>& layout);
  absl::StatusOr<std::unique_ptr<aggregation::ServerOptimizer>> WithPlanes(
      const compression::CodecPolicy& codec,
      std::unique_ptr<aggregation::ServerOptimizer> optimizer,
      const std::shared_ptr<const aggregation::ModelLayout>& layout);
  absl::Status MakeSketches(const std::shared_ptr<const aggregation::ModelLayout>& layout,
                            const std::string& state);

  // root_checkpoint.cc. What the job thread makes of a closed sum.
  struct Applied {
    absl::Status status;
    std::shared_ptr<const ModelVersion> model;
    std::shared_ptr<const ModelVersion> published;
    double apply = 0;
    double commit = 0;
  };
  absl::Status Resume(Checkpoint checkpoint);
  absl::Status CheckResumedModel(const aggregation::ModelLayout& saved) const;
  // `fates`: of an asynchronous run, those of this commit among them.
  absl::Status Save(const v1::RoundSpec& spec, const aggregation::RoundResult& result,
                    const Collector::AsyncFates& fates, const Applied& applied);

  // root.cc
  void Begin() override;
  void NextRound();
  void WaitingTimer();
  uint64_t Missing(const Collector::Census& census) const;
  void MembersChanged() override;
  void AfterRound();
  void ShutdownAsked() override;

  // root_rounds.cc
  bool asynchronous() const { return c_.aggregation.mode != "sync"; }
  v1::RoundSpec Spec(v1::TaskKind kind) const;
  uint32_t Minimum(v1::TaskKind kind) const;  // of accepted clients
  void StartRound(v1::TaskKind kind);
  void RoundClosed(CollectedRound round) override;
  void RoundFailed(const std::string& why);
  void Apply();
  // On the job thread: the sum is closed, nobody else touches it or the model.
  Applied ApplyAndCommit(const v1::RoundSpec& spec, const aggregation::RoundResult& result,
                         const Collector::AsyncFates& fates);
  void Committed(const Applied& out);

  // root_evaluation.cc
  void StartJudging();
  void Judged(const absl::StatusOr<std::map<std::string, double>>& result);
  void RoundOver();

  const Config& c_;
  aggregation::Grid grid_;
  std::unique_ptr<aggregation::ServerOptimizer> optimizer_;
  std::unique_ptr<aggregation::SketchRecovery> sketches_;  // null: no tensor is sketched
  // The clients' mean of the largest element that they encoded, in the round before.
  std::optional<double> largest_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<Publisher> publisher_;
  std::shared_ptr<const ModelVersion> model_;
  std::shared_ptr<const ModelVersion> published_;  // what clients are given of it
  uint64_t round_ = 0;                             // the last finished
  bool finished_ = false;
  uint32_t failed_in_a_row_ = 0;
  bool waiting_ = false;
  bool shutting_down_ = false;
  absl::Duration waiting_since_, round_started_;
  EventLoop::TimerId waiting_timer_ = 0;
  v1::RoundSpec spec_;
  RoundReport report_;
  bool judging_ = false;         // the evaluator has the last model
  bool awaiting_judge_ = false;  // and nothing else is waited for
  Evaluator judge_{c_.evaluation.command, &clock_};
  JobThread judge_jobs_;  // the evaluator dies with this thread
  JobThread jobs_;        // the last member: it ends before what its jobs use
};

}  // namespace tributary::server
