// Virtual time, real training.
#include "client/trainer/internal/virtual_run.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <queue>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aggregation/accumulator.h"
#include "aggregation/async.h"
#include "aggregation/deadline.h"
#include "aggregation/optimizer.h"
#include "aggregation/round.h"
#include "aggregation/update.h"
#include "base/checksum.h"
#include "base/status.h"
#include "client/trainer/trainer.h"
#include "compression/codec.h"
#include "models/builtin.h"
#include "simulate/clients.h"
#include "simulate/config.h"

namespace tributary::client::trainer {
namespace {

using aggregation::AsyncAction;
using aggregation::AsyncMachine;
using aggregation::RoundMachine;

class DeltasOf final : public aggregation::DeltaSource {
 public:
  explicit DeltasOf(const TrainResult& update) : update_(update) {}
  absl::StatusOr<std::span<const float>> Floats(uint32_t t) override { return update_.floats[t]; }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t t) override { return update_.ints[t]; }

 private:
  const TrainResult& update_;
};

class VirtualRun {
 public:
  VirtualRun(const ClientConfig& config, const VirtualRunOptions& options)
      : config_(config), options_(options) {}

  absl::Status Run() {
    RETURN_IF_ERROR(SetUp());
    RETURN_IF_ERROR(Report());
    if (options_.arm == "async") {
      OpenBuffer();
    } else {
      BeginRound();
    }
    while (!queue_.empty() && status_.ok() && !done_) {
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.at;
      event.run();
    }
    return status_;
  }

 private:
  struct Event {
    absl::Duration at;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& o) const { return std::tie(at, order) > std::tie(o.at, o.order); }
  };
  struct Member {
    std::string id;
    std::unique_ptr<TorchTrainer> trainer;
    uint64_t tasks = 0;  // that it ever had; the newest is the one that counts
    ModelBytes base;
    uint64_t version = 0;
  };

  absl::Status SetUp() {
    UseOneTorchThread();
    ASSIGN_OR_RETURN(sim_, simulate::LoadConfig(options_.latencies));
    sim_.clients.count = config_.split.clients;
    sim_.seed = config_.split.seed;
    ASSIGN_OR_RETURN(auto pool, NetworkPool::Create(config_.model, 1));
    ASSIGN_OR_RETURN(const ImageFormat format, FormatOf(config_.dataset));
    ASSIGN_OR_RETURN(const Dataset data, LoadDataset(config_.dataset, config_.directory));
    ASSIGN_OR_RETURN(const Parts parts, SplitTraining(data.train.labels, config_.split));
    ASSIGN_OR_RETURN(models::Model model, models::BuiltinModel(config_.model, config_.split.seed));
    layout_ = model.layout;
    model_ = std::make_shared<const std::vector<uint8_t>>(std::move(model.bytes));
    population_ = std::make_unique<simulate::ClientPopulation>(
        sim_.clients, sim_.seed, simulate::UpdateBytes(sim_), simulate::ModelBytes(sim_));
    for (uint32_t i = 0; i < config_.split.clients; ++i) {
      const std::string& id = population_->traits(i).id;
      ASSIGN_OR_RETURN(auto trainer,
                       TorchTrainer::Create(
                           pool, id, {format, Gather(data.train, format, parts[i]), Examples()}));
      index_[id] = i;
      members_.push_back({id, std::move(trainer), 0, nullptr, 0});
    }
    // Trains on nothing; has all of the test images.
    const std::vector<uint32_t> one = {0};
    ASSIGN_OR_RETURN(
        judge_,
        TorchTrainer::Create(pool, "judge", {format, Gather(data.train, format, one), data.test}));
    aggregation::GridRequest request;
    request.fractional_weights = true;
    ASSIGN_OR_RETURN(grid_, aggregation::ProveGrid(request));
    ASSIGN_OR_RETURN(sum_, aggregation::ExactAccumulator::Create(layout_, grid_));
    ASSIGN_OR_RETURN(optimizer_, aggregation::MakeServerOptimizer({}, layout_));
    ASSIGN_OR_RETURN(codec_, compression::MakeCodec("fp32"));
    spec_.set_run("virtual");
    spec_.set_seed(config_.split.seed);
    spec_.set_layout_hash(layout_->hash());
    (*spec_.mutable_hyperparameters())["lr"] = options_.lr;
    (*spec_.mutable_hyperparameters())["local_epochs"] = options_.local_epochs;
    (*spec_.mutable_hyperparameters())["batch_size"] = options_.batch_size;
    aggregation::DeadlineOptions deadline;
    deadline.adaptive = options_.arm == "adaptive";
    deadline.ceiling = absl::InfiniteDuration();
    deadline.floor = absl::Seconds(sim_.deadline_floor_s);
    deadline.quantile = sim_.deadline_quantile;
    deadline.margin = sim_.deadline_margin;
    deadline.participation = sim_.participation;
    deadlines_ = aggregation::AdaptiveDeadline(deadline);
    return absl::OkStatus();
  }

  void After(absl::Duration in, std::function<void()> run) {
    queue_.push({now_ + in, order_++, std::move(run)});
  }

  // ---- A client

  // Gives it the newest model; its update arrives as the model of clients says, if ever.
  void StartClient(const std::string& id, std::function<void(Member&)> arrives) {
    Member& member = members_[index_.at(id)];
    const uint32_t index = index_.at(id);
    const uint64_t task = ++member.tasks;
    member.base = model_;
    member.version = version_;
    const simulate::ClientRound draw = population_->Draw(index, task);
    if (draw.dies) return;  // its place is freed by the machine's own timer
    const double seconds = population_->download_s(index) + draw.train_s +
                           population_->latency_s() + population_->upload_s(index);
    After(absl::Seconds(seconds), [&member, task, arrives = std::move(arrives)] {
      if (member.tasks == task) arrives(member);
    });
  }

  // Trains now, what took its virtual time before, and folds.
  absl::Status TrainAndFold(Member& member, int64_t weight) {
    ++trainings_;
    TrainTask task{spec_, layout_, member.base};
    task.spec.set_round(member.version + 1);
    ASSIGN_OR_RETURN(const TrainResult result, member.trainer->Train(task, [] { return false; }));
    std::vector<uint8_t> encoded;
    DeltasOf deltas(result);
    RETURN_IF_ERROR(aggregation::EncodeUpdate(
        *layout_, *codec_, 0, 0, deltas, [&](const std::vector<uint8_t>& segment) {
          encoded.insert(encoded.end(), segment.begin(), segment.end());
          return absl::OkStatus();
        }));
    aggregation::UpdateAssembler assembler(layout_, grid_, member.id, weight, encoded.size());
    const auto owner = std::make_shared<const std::vector<uint8_t>>(std::move(encoded));
    assembler.Add(PiecedBytes(ByteSpan(*owner)), owner);
    const auto update = assembler.Finish(owner->size(), Crc32c(*owner));
    if (update == nullptr) return absl::InternalError(assembler.refusal().message);
    const aggregation::EncodedUpdate* const one[] = {update.get()};
    sum_->Fold(one, {0, layout_->elements()});
    return absl::OkStatus();
  }

  int64_t WeightOf(const Member& member) const {
    return static_cast<int64_t>(member.trainer->examples()) << grid_.weight_fraction_bits;
  }

  // ---- Versions

  void Apply(uint64_t weight, uint64_t updates) {
    std::vector<uint8_t> next(model_->size());
    status_.Update(optimizer_->Apply(
        {.sum = *sum_, .grid = grid_, .weight = weight, .round = version_ + 1}, *model_, next));
    optimizer_->Commit();
    model_ = std::make_shared<const std::vector<uint8_t>>(std::move(next));
    sum_->Reset();
    ++version_;
    updates_ += updates;
    status_.Update(Report());
  }

  absl::Status Report() {
    const TrainTask task{spec_, layout_, model_};
    ASSIGN_OR_RETURN(const auto metrics, judge_->Evaluate(task));
    nlohmann::ordered_json line = {{"arm", options_.arm},
                                   {"version", version_},
                                   {"seconds", absl::ToDoubleSeconds(now_)},
                                   {"updates", updates_},
                                   {"trainings", trainings_}};
    for (const v1::Metric& metric : metrics) {
      line[metric.name()] = metric.value();
      if (metric.name() == "test_accuracy" && metric.value() >= options_.until) done_ = true;
    }
    done_ = done_ || version_ >= options_.most_versions;
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  }

  // ---- Rounds

  void BeginRound() {
    aggregation::RoundPlan plan;
    plan.round = version_ + 1;
    plan.seed = spec_.seed();
    plan.deadline = absl::Seconds(sim_.deadline_s);
    plan.soft_deadline = deadlines_.Next();
    plan.max_weight = grid_.max_weight;
    plan.max_client_weight = grid_.max_weight;
    if (options_.concurrency > 0) {
      plan.cohort_count = options_.concurrency;
      plan.cohort_fraction = 0;
    }
    round_ = std::make_unique<RoundMachine>(plan);
    std::vector<RoundMachine::Member> all;
    for (const Member& member : members_) all.push_back({.id = member.id, .epoch = 1});
    ActRound(round_->Begin(all, now_));
  }

  void ActRound(const std::vector<aggregation::Action>& actions) {
    for (const aggregation::Action& action : actions) {
      if (action.kind == aggregation::Action::Kind::kTask) {
        StartClient(action.member, [this](Member& member) { ArrivesInRound(member); });
      } else if (action.kind == aggregation::Action::Kind::kClosed) {
        return RoundClosed();
      }
    }
    Timer(round_->NextTimer(), [this] { ActRound(round_->Timer(now_)); });
  }

  void ArrivesInRound(Member& member) {
    const auto a = round_->Offer(member.id, 1, member.version + 1, WeightOf(member), {}, now_);
    if (a.verdict != aggregation::Verdict::kAdmit || !round_->Commit(a.ticket)) return;
    status_.Update(TrainAndFold(member, static_cast<int64_t>(a.weight)));
    ActRound(round_->Folded(a.ticket, now_));
  }

  void RoundClosed() {
    const aggregation::RoundResult result = round_->Result();
    std::vector<absl::Duration> times;
    for (const aggregation::MemberTime& member : round_->Times()) {
      times.push_back(member.answer == aggregation::Answer::kAccepted ? member.took
                                                                      : absl::InfiniteDuration());
    }
    deadlines_.Observe(times);
    ++timer_;
    if (!result.success) {  // there is no mean
      status_.Update(absl::FailedPreconditionError(
          absl::StrCat("round ", version_ + 1, ": ", result.why_not)));
      return;
    }
    Apply(result.weight, result.clients);
    if (!done_) After(absl::ZeroDuration(), [this] { BeginRound(); });
  }

  // ---- Buffers

  void OpenBuffer() {
    aggregation::AsyncPlan plan;
    plan.buffer = options_.buffer;
    plan.concurrency = options_.concurrency;
    plan.task_limit = absl::Seconds(sim_.deadline_s);
    plan.max_weight = plan.max_client_weight = grid_.max_weight;
    if (version_ == 0) {
      for (const Member& member : members_) buffer_.Joined({.id = member.id, .epoch = 1}, now_);
    }
    ActBuffer(buffer_.Open(plan, version_, now_));
  }

  void ActBuffer(const std::vector<AsyncAction>& actions) {
    for (const AsyncAction& action : actions) {
      if (action.kind == AsyncAction::Kind::kTask) {
        StartClient(action.member, [this](Member& member) { ArrivesInBuffer(member); });
      } else if (action.kind == AsyncAction::Kind::kClosed) {
        const aggregation::AsyncResult result = buffer_.Result();
        ++timer_;
        Apply(result.weight, result.contributions.size());
        buffer_.Settle(true);
        if (!done_) After(absl::ZeroDuration(), [this] { OpenBuffer(); });
        return;
      }
    }
    Timer(buffer_.NextTimer(), [this] { ActBuffer(buffer_.Timer(now_)); });
  }

  void ArrivesInBuffer(Member& member) {
    const auto a = buffer_.Offer(member.id, 1, member.version, WeightOf(member), now_);
    if (a.verdict == aggregation::Verdict::kAdmit) return Whole(member, a.ticket);
    ActBuffer(buffer_.Timer(now_));  // a stale one's client is given the newest model
  }

  void Whole(Member& member, uint64_t ticket) {
    const auto verdict = buffer_.Commit(ticket);
    if (verdict.kind == AsyncMachine::Verdict::Kind::kWait) {
      // Until the next buffer, which opens at this very moment of virtual time.
      return After(absl::ZeroDuration(), [this, &member, ticket] { Whole(member, ticket); });
    }
    if (verdict.kind != AsyncMachine::Verdict::Kind::kFold) return ActBuffer(buffer_.Timer(now_));
    status_.Update(TrainAndFold(member, static_cast<int64_t>(verdict.weight)));
    ActBuffer(buffer_.Folded(ticket, now_));
  }

  void Timer(std::optional<absl::Duration> at, std::function<void()> run) {
    const uint64_t number = ++timer_;
    if (!at.has_value() || *at == absl::InfiniteDuration()) return;
    After(std::max(*at - now_, absl::ZeroDuration()), [this, number, run = std::move(run)] {
      if (number == timer_) run();
    });
  }

  const ClientConfig& config_;
  const VirtualRunOptions& options_;
  simulate::Config sim_;
  std::unique_ptr<simulate::ClientPopulation> population_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::vector<Member> members_;
  std::map<std::string, uint32_t> index_;
  std::unique_ptr<TorchTrainer> judge_;
  aggregation::Grid grid_;
  std::unique_ptr<aggregation::ExactAccumulator> sum_;
  std::unique_ptr<aggregation::ServerOptimizer> optimizer_;
  std::shared_ptr<const compression::Codec> codec_;
  aggregation::AdaptiveDeadline deadlines_{{}};
  v1::RoundSpec spec_;
  std::unique_ptr<RoundMachine> round_;
  AsyncMachine buffer_;

  std::priority_queue<Event> queue_;
  uint64_t order_ = 0;
  uint64_t timer_ = 0;
  absl::Duration now_ = absl::ZeroDuration();
  ModelBytes model_;
  uint64_t version_ = 0;
  uint64_t updates_ = 0;
  uint64_t trainings_ = 0;
  bool done_ = false;
  absl::Status status_;
};

}  // namespace

absl::Status RunInVirtualTime(const ClientConfig& config, const VirtualRunOptions& options) {
  return VirtualRun(config, options).Run();
}

}  // namespace tributary::client::trainer
