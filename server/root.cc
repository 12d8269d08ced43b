// The root: announces rounds, applies and commits their sums, publishes models, and ends the run.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "aggregation/ef21.h"
#include "aggregation/fednova.h"
#include "aggregation/in_planes.h"
#include "aggregation/optimizer.h"
#include "aggregation/sketches.h"
#include "base/status.h"
#include "compression/agreed.h"
#include "compression/policy.h"
#include "models/builtin.h"
#include "models/safetensors.h"
#include "server/checkpoint.h"
#include "server/downlink.h"
#include "server/evaluator.h"
#include "server/internal/algorithms.h"
#include "server/internal/async_proto.h"
#include "server/internal/config_checks.h"
#include "server/internal/policies.h"
#include "server/node_base.h"

namespace tributary::server {
namespace {

constexpr absl::Duration kWaitingLogEvery = absl::Seconds(10);
// Protobuf messages end at 2 GiB; some of it is for the rest of the state.
constexpr uint64_t kMostStateBytes = 2'000'000'000;

class Root final : public NodeBase {
 public:
  explicit Root(Options options) : NodeBase(std::move(options)), c_(options_.config) {}
  ~Root() override { judge_.Cancel(); }

  absl::Status Open() {
    std::string note;
    ASSIGN_OR_RETURN(grid_, aggregation::ProveGrid(GridRequestOf(c_.aggregation), &note));
    if (!note.empty()) spdlog::warn("{}", note);
    auto store = CheckpointStore::Open(
        {.directory = c_.checkpoint.directory, .run = c_.run->name, .keep = c_.checkpoint.keep});
    if (!store.ok()) return Annotate(store.status(), Where("checkpoint.directory"));
    store_ = *std::move(store);
    if (options_.config.metrics.rounds_file.empty())
      options_.config.metrics.rounds_file = store_->path() + "/rounds.jsonl";
    RETURN_IF_ERROR(LoadModel());
    collector_->Open(c_.run->name, model_->layout);
    return OpenPorts();
  }

 private:
  absl::Status LoadModel() {
    auto publisher = Publisher::Create(c_.compression, c_.run->seed);
    if (!publisher.ok()) return Annotate(publisher.status(), Where("compression.downlink"));
    publisher_ = *std::move(publisher);
    std::vector<std::string> warnings;
    auto checkpoint = store_->Load(&warnings);
    for (const std::string& warning : warnings) spdlog::warn("{}", warning);
    if (checkpoint.ok()) return Resume(*std::move(checkpoint));
    if (!absl::IsNotFound(checkpoint.status())) return checkpoint.status();
    absl::StatusOr<models::Model> model = models::IsBuiltin(c_.run->model)
                                              ? models::BuiltinModel(c_.run->model, c_.run->seed)
                                              : models::ReadSafetensors(c_.run->model);
    if (!model.ok()) return Annotate(model.status(), Where("run.model"));
    ASSIGN_OR_RETURN(auto layout, WithPolicies(model->layout, c_.aggregation.policies));
    ASSIGN_OR_RETURN(layout, RunLayout(c_.training, std::move(layout)));
    model->bytes.resize(layout->model_bytes());  // what is the run's beyond the model starts at 0
    RETURN_IF_ERROR(MakeOptimizer(layout));
    RETURN_IF_ERROR(MakeSketches(layout, ""));
    published_ = model_ = ModelVersion::Make(0, std::move(layout), std::move(model->bytes));
    spdlog::info("run \"{}\" starts: model \"{}\", {} tensors, {} elements, SHA-256 {}",
                 c_.run->name, c_.run->model, model_->layout->tensors().size(),
                 model_->layout->elements(), absl::BytesToHexString(model_->sha256));
    return absl::OkStatus();
  }

  absl::Status MakeOptimizer(std::shared_ptr<const aggregation::ModelLayout> layout) {
    aggregation::OptimizerOptions options = OptimizerOptionsOf(c_, grid_, *layout);
    options.threads = FoldWorkers(c_.limits);
    ASSIGN_OR_RETURN(optimizer_, aggregation::MakeServerOptimizer(options, layout));
    RETURN_IF_ERROR(AddEstimates(layout));
    if (optimizer_->state_bytes() <= kMostStateBytes) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the moments of the server optimizer ", std::string(optimizer_->name()), " have ",
        optimizer_->state_bytes(), " bytes for this model, a checkpoint's state holds ",
        kMostStateBytes, "; take fedavg, or a smaller model"));
  }

  absl::Status MakeSketches(const std::shared_ptr<const aggregation::ModelLayout>& layout,
                            const std::string& state) {
    auto sketched =
        aggregation::SketchedTensors::Create(*layout, c_.compression.codec, c_.run->seed);
    if (!sketched.ok()) return Annotate(sketched.status(), Where("compression.codec"));
    if (*sketched == nullptr) return absl::OkStatus();
    for (const auto& tensor : (*sketched)->tensors()) {
      const double safe = compression::SafelyRecovered(tensor.form);
      if (!tensor.sketched || tensor.form.recover <= safe) continue;
      spdlog::warn(
          "[compression] codec: recover = {} is more than the {} up to which sketches of {} rows "
          "of {} columns bear updates without large elements: what collisions leave over may grow "
          "from round to round; watch the accuracy, or raise the sketch's fraction",
          tensor.form.recover, safe, tensor.form.rows, tensor.form.columns);
      break;  // once: one rule mostly has them all
    }
    sketches_ = std::make_unique<aggregation::SketchRecovery>(layout, *std::move(sketched));
    RETURN_IF_ERROR(sketches_->Restore(state));
    if (sketches_->State().size() <= kMostStateBytes / 2) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the sketches' cells are too many for a checkpoint's state; take a smaller fraction");
  }

  // Where the codec of some tensor is with dct.
  absl::Status AddPlanes(const compression::CodecPolicy& codec,
                         const std::shared_ptr<const aggregation::ModelLayout>& layout) {
    if (!codec.transforms()) return absl::OkStatus();
    std::vector<compression::PlaneShape> planes(layout->tensors().size());
    for (uint32_t t = 0; t < planes.size(); ++t) {
      const aggregation::TensorSpec& tensor = layout->tensors()[t];
      if (tensor.policy == aggregation::Policy::kSkip || !aggregation::IsFloat(tensor.dtype)) {
        continue;
      }
      const compression::PlaneShape& shape =
          codec.For(tensor.name, layout->TensorElements(t), tensor.shape.size()).planes;
      if (shape.Divides(tensor.shape)) planes[t] = shape;
    }
    ASSIGN_OR_RETURN(optimizer_,
                     aggregation::MakeInPlanes(std::move(planes), std::move(optimizer_), layout));
    return absl::OkStatus();
  }

  // Where the codec of some tensor is with ef21.
  absl::Status AddEstimates(const std::shared_ptr<const aggregation::ModelLayout>& layout) {
    ASSIGN_OR_RETURN(const auto codec, compression::CodecPolicy::Parse(c_.compression.codec));
    RETURN_IF_ERROR(AddPlanes(*codec, layout));
    if (!codec->estimates()) return absl::OkStatus();
    aggregation::Ef21Options options{
        .tensors = {},
        .population_weight = c_.compression.population_weight << grid_.weight_fraction_bits,
        .fraction_bits = grid_.fraction_bits};
    for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
      const aggregation::TensorSpec& tensor = layout->tensors()[t];
      options.tensors.push_back(
          tensor.policy != aggregation::Policy::kSkip && aggregation::IsFloat(tensor.dtype) &&
          codec->For(tensor.name, layout->TensorElements(t), tensor.shape.size()).estimate);
    }
    ASSIGN_OR_RETURN(optimizer_,
                     aggregation::MakeEf21(std::move(options), std::move(optimizer_), layout));
    return absl::OkStatus();
  }

  absl::Status Resume(Checkpoint checkpoint) {
    const v1::CheckpointState& state = checkpoint.state;
    if (state.seed() != c_.run->seed) {
      return absl::FailedPreconditionError(
          absl::StrCat("the checkpoint of run \"", c_.run->name, "\" in ", store_->path(),
                       " has seed ", state.seed(), ", the config ", c_.run->seed,
                       "; give the run another name, or its seed back"));
    }
    RETURN_IF_ERROR(CheckResumedLayout(c_.training, *checkpoint.model.layout));
    RETURN_IF_ERROR(MakeOptimizer(checkpoint.model.layout));
    RETURN_IF_ERROR(MakeSketches(checkpoint.model.layout, state.sketches()));
    RETURN_IF_ERROR(optimizer_->Restore({state.optimizer().begin(), state.optimizer().end()}));
    published_ = model_ = ModelVersion::Make(state.version(), checkpoint.model.layout,
                                             std::move(checkpoint.model.bytes));
    // Whatever the config says now: this is what clients hold, or will be given to go on from.
    if (!checkpoint.published.empty()) {
      published_ =
          ModelVersion::Make(state.version(), model_->layout, std::move(checkpoint.published));
    }
    if (state.has_codec_largest()) largest_ = state.codec_largest();
    round_ = state.round();
    finished_ = state.finished() && state.round() >= c_.run->rounds;
    std::map<std::string, uint32_t> children;
    for (const std::string& id : state.children()) children[id] = 1;
    for (const auto& [id, parts] : state.parts()) children[id] = parts;
    collector_->SetLastOutcome(state.version(), std::move(children));
    if (asynchronous()) {
      collector_->SetCounted(state.version(), FromProto(state.counted()),
                             FromProto(state.contributions()), c_.asynchronous.max_staleness);
    }
    spdlog::info("run \"{}\" resumes after round {} (model version {}, SHA-256 {})", c_.run->name,
                 round_, model_->version, absl::BytesToHexString(model_->sha256));
    return absl::OkStatus();
  }

  // ---- Waiting for members

  void Begin() override {
    waiting_since_ = loop_.Now();
    if (finished_ || round_ >= c_.run->rounds) {
      // Nothing to do but to tell whoever asks; those who come within the hang-up time learn it.
      spdlog::info("run \"{}\" is complete already ({} rounds)", c_.run->name, round_);
      End(v1::Stop::FINISHED, "the run is complete", absl::OkStatus());
      return;
    }
    NextRound();
  }

  void NextRound() {
    waiting_ = true;
    waiting_since_ = loop_.Now();
    WaitingTimer();
    MembersChanged();
  }

  void WaitingTimer() {
    if (waiting_timer_ != 0) loop_.CancelTimer(waiting_timer_);
    const absl::Duration limit =
        waiting_since_ + absl::Seconds(c_.run->startup_limit_s) - loop_.Now();
    waiting_timer_ =
        loop_.PostAfter(std::clamp(limit, absl::ZeroDuration(), kWaitingLogEvery), [this] {
          waiting_timer_ = 0;
          if (!waiting_ || ending()) return;
          const Collector::Census census = collector_->Count();
          const std::string message = absl::StrCat(
              "round ", round_ + 1, " awaits clients: ", census.clients, " of ", c_.cohort.minimum,
              " are here",
              census.ids.empty() ? "" : absl::StrCat(" (through ", Some(census.ids), ")"), ", ",
              Missing(census), " missing");
          if (loop_.Now() - waiting_since_ >= absl::Seconds(c_.run->startup_limit_s)) {
            spdlog::error("{}; given up after [run] startup_limit_s = {:.0f}", message,
                          c_.run->startup_limit_s);
            End(v1::Stop::FAILED, message, absl::AbortedError(message));
            return;
          }
          spdlog::info("{}", message);
          WaitingTimer();
        });
  }

  uint64_t Missing(const Collector::Census& census) const {
    return census.clients >= c_.cohort.minimum ? 0 : c_.cohort.minimum - census.clients;
  }

  static std::string Some(std::vector<std::string> ids) {
    const size_t all = ids.size();
    if (all > 5) ids.resize(5);
    return absl::StrCat(absl::StrJoin(ids, ", "),
                        all > 5 ? absl::StrCat(" and ", all - 5, " more") : "");
  }

  void MembersChanged() override {
    if (!waiting_ || collector_->running() || shutting_down_) return;
    if (collector_->Count().clients < c_.cohort.minimum) return;
    waiting_ = false;
    if (waiting_timer_ != 0) loop_.CancelTimer(waiting_timer_);
    waiting_timer_ = 0;
    StartRound(v1::TRAIN);
  }

  // ---- Rounds

  bool asynchronous() const { return c_.aggregation.mode != "sync"; }

  v1::RoundSpec Spec(v1::TaskKind kind) const {
    v1::RoundSpec spec;
    spec.set_run(c_.run->name);
    spec.set_round(kind == v1::TRAIN ? round_ + 1 : round_);
    spec.set_kind(kind);
    spec.set_seed(c_.run->seed);
    spec.set_base_version(published_->version);
    spec.set_base_sha256(published_->sha256);
    spec.set_layout_hash(model_->layout->hash());
    *spec.mutable_grid() = grid_.ToProto();
    spec.set_downlink_codec(publisher_->codec());
    spec.set_codec(compression::WithAgreedStep(c_.compression.codec, largest_));
    spec.set_cohort_fraction(c_.cohort.fraction);
    if (c_.cohort.count > 0) {
      spec.set_cohort_count(aggregation::OverSelected(c_.cohort.count, c_.cohort.over_selection));
      spec.set_target(c_.cohort.count);
    }
    if (asynchronous()) {
      if (kind == v1::TRAIN) {
        *spec.mutable_asynchronous() = AsyncProto(c_);
        spec.mutable_asynchronous()->set_attempt(failed_in_a_row_);
      }
    } else {
      *spec.mutable_stragglers() = StragglersProto(c_.straggler, c_.cohort);
    }
    spec.set_deadline_ms(static_cast<uint64_t>(c_.straggler.deadline_s * 1000));
    spec.set_minimum(c_.cohort.minimum);
    spec.set_maximum(c_.cohort.maximum);
    spec.set_quorum(c_.straggler.quorum);
    // In the grid's units, as all weights on the wire. The proof has room for it: it is at most the
    // round's.
    if (c_.run->rack_rounds > 1) spec.set_rack_rounds(c_.run->rack_rounds);
    spec.set_max_client_weight(c_.aggregation.max_client_weight << grid_.weight_fraction_bits);
    for (const auto& [name, value] : c_.training.values)
      (*spec.mutable_hyperparameters())[name] = value;
    return spec;
  }

  void StartRound(v1::TaskKind kind) {
    round_started_ = loop_.Now();
    spec_ = Spec(kind);
    // A cohort that is a fraction of the clients has a minimum of its own size: it is 1 to the
    // machine, the config's minimum says how many must be present.
    const uint32_t minimum = kind == v1::TRAIN && c_.cohort.fraction >= 1 ? c_.cohort.minimum : 1;
    const absl::Status status = collector_->Begin(
        spec_, grid_, minimum, absl::Seconds(c_.straggler.rejoin_grace_s), published_);
    if (!status.ok()) End(v1::Stop::FAILED, Text(status), status);
  }

  void RoundClosed(CollectedRound round) override {
    if (ending()) return;
    if (spec_.kind() == v1::EVALUATE) {
      report_.evaluation = MetricMeans(round.metrics);
      report_.collected.bytes.AddModels(round.bytes);
      collector_->Finish(true, true, "");
      RoundOver();
      return;
    }
    report_ = {};
    report_.run = c_.run->name;
    report_.role = "root";
    report_.round = spec_.round();
    report_.codec = spec_.codec();
    report_.model_bytes = model_->bytes.size();
    report_.metrics = MetricMeans(round.metrics);
    if (const auto largest = report_.metrics.find(compression::kLargestMetric);
        largest != report_.metrics.end()) {
      largest_ = largest->second;
    }
    report_.transport = round.bytes.from_aggregators > 0 ? tier_->used() : "none";
    report_.collected = std::move(round);
    report_.weight_fraction_bits = grid_.weight_fraction_bits;
    if (shutting_down_ && !report_.collected.result.success) {
      collector_->Finish(false, false, "the aggregator shuts down");
      End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
      return;
    }
    if (!report_.collected.result.success) {
      RoundFailed(report_.collected.result.why_not);
      return;
    }
    Passed(spec_.round(), "close");
    Apply();
  }

  void RoundFailed(const std::string& why) {
    spdlog::warn("round {} failed: {}; the model stays at version {}", spec_.round(), why,
                 model_->version);
    report_.why_not = why;
    report_.seconds = absl::ToDoubleSeconds(loop_.Now() - round_started_);
    report_.model_sha256 = absl::BytesToHexString(model_->sha256);
    report_.published_sha256 = absl::BytesToHexString(published_->sha256);
    collector_->Finish(false, false, why);
    Publish(report_);
    // Of an asynchronous run rounds are versions: the same is tried again.
    if (!asynchronous()) round_ = spec_.round();
    if (++failed_in_a_row_ >= c_.run->max_failed_rounds) {
      const std::string message = absl::StrCat(
          failed_in_a_row_, " rounds in a row failed, [run] max_failed_rounds; the last: ", why);
      spdlog::error("{}", message);
      End(v1::Stop::FAILED, message, absl::AbortedError(message));
      return;
    }
    AfterRound();
  }

  // On the job thread: the sum is closed, nobody else touches it or the model.
  struct Applied {
    absl::Status status;
    std::shared_ptr<const ModelVersion> model;
    std::shared_ptr<const ModelVersion> published;
    double apply = 0;
    double commit = 0;
  };

  Applied ApplyAndCommit(const v1::RoundSpec& spec, const aggregation::RoundResult& result,
                         const std::vector<aggregation::Contribution>& counted) {
    Applied out;
    const absl::Duration start = clock_.Monotonic();
    std::vector<uint8_t> next(model_->bytes.size());
    double scale = 1;
    if (c_.training.values.at("fednova") > 0) {
      const auto steps = aggregation::EffectiveSteps(report_.collected.metrics);
      out.status = steps.status();
      if (!out.status.ok()) return out;
      scale = *steps;
    }
    if (spec.asynchronous().mixing() > 0)
      scale = MixingOf(spec.asynchronous().mixing(), report_.collected.contributions);
    if (sketches_ != nullptr) sketches_->Recover(grid_, result.weight, collector_->sum());
    out.status = optimizer_->Apply({.sum = *collector_->sum(),
                                    .grid = grid_,
                                    .weight = result.weight,
                                    .round = spec.round(),
                                    .scale = scale},
                                   model_->bytes, next);
    if (!out.status.ok()) return out;
    out.model = ModelVersion::Make(spec.round(), model_->layout, std::move(next));
    out.published = publisher_->Publish(out.model, *published_);
    const absl::Duration applied = clock_.Monotonic();
    out.apply = absl::ToDoubleSeconds(applied - start);
    Passed(spec.round(), "apply");
    v1::CheckpointState state;
    state.set_run(spec.run());
    state.set_round(spec.round());
    state.set_version(spec.round());
    state.set_seed(spec.seed());
    *state.mutable_layout() = model_->layout->ToProto();
    *state.mutable_spec() = spec;
    state.set_model_sha256(out.model->sha256);
    for (const std::string& id : result.children) state.add_children(id);
    state.mutable_parts()->insert(result.parts.begin(), result.parts.end());
    for (const std::string& id : result.contributors) state.add_contributors(id);
    for (const auto& [name, value] : optimizer_->State())
      (*state.mutable_optimizer())[name] = value;
    *state.mutable_contributions() = ToProto(report_.collected.contributions);
    *state.mutable_counted() = ToProto(counted);
    if (sketches_ != nullptr) state.set_sketches(sketches_->State());
    if (largest_.has_value()) state.set_codec_largest(*largest_);
    state.set_finished(spec.round() >= c_.run->rounds);
    std::span<const uint8_t> published;
    if (out.published->sha256 != out.model->sha256) {
      state.set_published_sha256(out.published->sha256);
      published = out.published->bytes;
    }
    out.status = store_->Save(state, *model_->layout, out.model->bytes, published);
    out.commit = absl::ToDoubleSeconds(clock_.Monotonic() - applied);
    Passed(spec.round(), "commit");
    return out;
  }

  void Apply() {
    // With this commit.
    auto counted = collector_->Counted();
    counted.insert(counted.end(), report_.collected.contributions.begin(),
                   report_.collected.contributions.end());
    jobs_.Post(
        [this, spec = spec_, result = report_.collected.result, counted = std::move(counted)] {
          loop_.Post([this, out = ApplyAndCommit(spec, result, counted)] { Committed(out); });
        });
  }

  void Committed(const Applied& out) {
    if (ending()) return;
    if (!out.status.ok()) {
      RoundFailed(std::string(out.status.message()));
      return;
    }
    failed_in_a_row_ = 0;
    round_ = spec_.round();
    optimizer_->Commit();
    if (sketches_ != nullptr) sketches_->Commit();
    model_ = out.model;
    published_ = out.published;
    report_.committed = true;
    report_.collected.phases.apply = out.apply;
    report_.collected.phases.commit = out.commit;
    report_.seconds = absl::ToDoubleSeconds(loop_.Now() - round_started_);
    report_.model_sha256 = absl::BytesToHexString(model_->sha256);
    report_.published_sha256 = absl::BytesToHexString(published_->sha256);
    collector_->shelf()->Put(published_);
    collector_->Finish(true, true, "");
    Passed(round_, "publish");
    const bool evaluate = c_.run->evaluate_every > 0 && !shutting_down_ &&
                          (round_ % c_.run->evaluate_every == 0 || round_ >= c_.run->rounds);
    StartJudging();
    if (evaluate && collector_->Count().clients > 0) {
      const double seconds = report_.seconds;
      StartRound(v1::EVALUATE);
      report_.seconds = seconds;
      return;
    }
    RoundOver();
  }

  // ---- The root's own evaluation, at the same time as the clients'

  void StartJudging() {
    if (c_.evaluation.command.empty() || shutting_down_) return;
    if (round_ % c_.evaluation.every != 0 && round_ < c_.run->rounds) return;
    judging_ = true;
    judge_jobs_.Post([this, file = store_->model_file()] {
      const auto result = judge_.Evaluate(file, absl::Seconds(c_.evaluation.timeout_s));
      loop_.Post([this, result] { Judged(result); });
    });
  }

  void Judged(const absl::StatusOr<std::map<std::string, double>>& result) {
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
  void RoundOver() {
    if (ending()) return;
    awaiting_judge_ = judging_ && !shutting_down_;
    if (awaiting_judge_) return;
    Publish(report_);
    AfterRound();
  }

  void AfterRound() {
    if (ending()) return;
    if (round_ >= c_.run->rounds) {
      spdlog::info("run \"{}\" is complete: {} rounds, model version {}, SHA-256 {}", c_.run->name,
                   round_, model_->version, absl::BytesToHexString(model_->sha256));
      End(v1::Stop::FINISHED, "the run is complete", absl::OkStatus());
    } else if (shutting_down_) {
      End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
    } else {
      NextRound();
    }
  }

  void ShutdownAsked() override {
    shutting_down_ = true;
    spdlog::info("shutting down: {}", collector_->running()
                                          ? "the running round may finish within the grace time"
                                          : "no round is running");
    if (!collector_->running()) {
      if (std::exchange(awaiting_judge_, false)) Publish(report_);
      End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
      return;
    }
    if (asynchronous()) collector_->CloseNow();  // with what has come
    loop_.PostAfter(absl::Seconds(c_.limits.shutdown_grace_s), [this] {
      if (!ending()) End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
    });
  }

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

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> CreateRoot(Node::Options options) {
  auto root = std::make_unique<Root>(std::move(options));
  RETURN_IF_ERROR(root->Open());
  return std::unique_ptr<Node>(std::move(root));
}

}  // namespace tributary::server
