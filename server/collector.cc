// The round's course: who gets a task, when it closes, how it ended.
#include "server/collector.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "aggregation/cohort.h"
#include "base/status.h"

namespace tributary::server {

using aggregation::Action;
using aggregation::Answer;

namespace {

// Models up to this size ride in the task itself: a Download call costs more than they do.
constexpr uint64_t kInlineModelBytes = 64 * 1024;
constexpr absl::Duration kSweepEvery = absl::Seconds(1);

std::shared_ptr<v1::SessionResponse> NewResponse() {
  return std::make_shared<v1::SessionResponse>();
}

// The longest that a whole update waits for others to share its pass over the sums.
constexpr double kGatherSeconds = 0.1;

}  // namespace

int FoldWorkers(const LimitsConfig& limits) {
  if (limits.fold_workers > 0) return static_cast<int>(limits.fold_workers);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Collector::Collector(EventLoop* loop, const LimitsConfig& limits, Callbacks callbacks)
    : loop_(loop),
      limits_(limits),
      callbacks_(std::move(callbacks)),
      budget_(limits.inflight_bytes),
      // The larger part of the budget goes over the sums at once, and is free for others piece by
      // piece while it does.
      pool_({.workers = FoldWorkers(limits),
             .updates_per_pass = 16,
             .gather_seconds = kGatherSeconds,
             .gather_bytes = limits.inflight_bytes / 4 * 3}),
      pacer_({.start_within = absl::Seconds(limits.grant_timeout_s)}) {
  loop_->PostAfter(kSweepEvery, [this] { Sweep(); });
}

Collector::~Collector() { pool_.Wait(); }

void Collector::Open(const std::string& run,
                     std::shared_ptr<const aggregation::ModelLayout> layout) {
  run_ = run;
  layout_ = std::move(layout);
  auto waiting = std::move(waiting_joins_);
  waiting_joins_.clear();
  for (auto& session : waiting) Join(std::move(session));
}

void Collector::SetLastOutcome(uint64_t round, std::map<std::string, uint32_t> children,
                               std::span<const std::string> clients) {
  last_round_ = round;
  last_children_ = std::move(children);
  outcomes_.Begin(round);
  outcomes_.Committed(round, clients);
}

Collector::Census Collector::Count() const {
  Census census;
  for (const auto& [id, child] : children_) {
    census.clients += child.aggregator ? child.clients : 1;
    census.examples += child.examples;
    census.ids.push_back(id);
  }
  std::sort(census.ids.begin(), census.ids.end());
  return census;
}

absl::Status Collector::Begin(const v1::RoundSpec& spec, const aggregation::Grid& grid,
                              uint32_t minimum, absl::Duration rejoin_grace,
                              std::shared_ptr<const ModelVersion> model) {
  const bool train = spec.kind() == v1::TRAIN;
  if (train && spec.has_asynchronous()) return BeginBuffer(spec, grid, std::move(model));
  claims_ = {};
  if (first_sum_ != nullptr) sum_ = std::move(first_sum_);
  if (train) {
    if (sum_ == nullptr) {
      ASSIGN_OR_RETURN(sum_, aggregation::ExactAccumulator::Create(layout_, grid));
    } else {
      sum_->Reset();
    }
    pool_.Target(sum_.get());
  }
  if (train) {
    ASSIGN_OR_RETURN(sketched_,
                     aggregation::SketchedTensors::Create(*layout_, spec.codec(), spec.seed()));
  }
  spec_ = spec;
  if (train) stragglers_.BeginRound(spec_);
  if (train) outcomes_.Running(spec_.round());
  grid_ = grid;
  model_ = std::move(model);
  shelf_.Put(model_);
  StartMeasuring();
  closed_reported_ = false;
  deadline_ = started_ + absl::Milliseconds(spec_.deadline_ms());
  if (train) SplitCohort();
  aggregation::RoundPlan plan = PlanOf(spec_, minimum);
  plan.rejoin_grace = rejoin_grace;
  machine_ = std::make_unique<aggregation::RoundMachine>(plan);
  std::vector<aggregation::RoundMachine::Member> members;
  for (const auto& [id, child] : children_) {
    // Who still trains for a closed round is not called away from it to evaluate.
    const bool busy = child.owes != 0 || (async_ != nullptr && !async_->Idle(id));
    if (train || !busy) members.push_back(MemberOf(id, child));
  }
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  Act(machine_->Begin(members, loop_->Now()));
  callbacks_.passed("announce");
  if (train) {
    TakeHeld();
    TakeParkedOffers();
  }
  if (async_ != nullptr && members.empty()) {
    loop_->Post([this] { CloseNow(); });  // all of them train: nobody will answer
  }
  return absl::OkStatus();
}

void Collector::StartMeasuring() {
  metrics_.Clear();
  bytes_ = {};
  offers_seen_ = unused_grants_ = 0;
  early_last_round_ = std::exchange(most_early_, early_);
  CountEarly();
  started_ = last_task_ = loop_->Now();
  first_upload_ = last_upload_ = first_partial_ = last_partial_ = absl::ZeroDuration();
  busy_at_start_ = pool_.busy_seconds();
  if (door_ != nullptr) {
    downloads_at_start_ = door_->counters().downloads;
    download_nanos_at_start_ = door_->counters().download_nanos;
    download_bytes_at_start_ = door_->counters().download_bytes;
    saved_bytes_at_start_ = door_->counters().saved_bytes;
  }
  if (tier_ != nullptr) models_sent_at_start_ = tier_->models_sent();
}

void Collector::SendTask(const std::string& id) {
  const auto it = children_.find(id);
  if (it == children_.end()) return;
  Child& child = it->second;
  auto response = NewResponse();
  v1::Task* task = response->mutable_task();
  *task->mutable_spec() = spec_;
  const absl::Duration left = std::max(deadline_ - loop_->Now(), absl::ZeroDuration());
  task->mutable_spec()->set_deadline_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(left)));
  const bool holds = child.held_sha256 == model_->sha256;
  if (child.aggregator) {
    // Its share of the weight that may be admitted, by the examples below it.
    const Census census = Count();
    uint64_t groups = 0, alone = 0;
    for (const auto& [name, other] : children_) (other.aggregator ? groups : alone) += 1;
    const uint64_t unit = uint64_t{1} << spec_.grid().weight_fraction_bits();
    const uint64_t all = spec_.admit_weight() > 0 ? spec_.admit_weight() : grid_.max_weight;
    const uint64_t share = aggregation::WeightShare(
        all, child.examples * unit, census.examples * unit, groups + (alone > 0 ? 1 : 0));
    TakeShare(id, task->mutable_spec());
    task->mutable_spec()->set_admit_weight(std::min(all, share));
    if (spec_.has_asynchronous())
      task->mutable_spec()->mutable_asynchronous()->set_concurrency(ConcurrencyOf(id));
    task->set_model_follows(!holds);
    if (!holds) {
      tier_->SendModel(id, child.epoch, model_);
    }
  } else {
    task->mutable_spec()->clear_admit_weight();
    if (const double work = stragglers_.Work(id); work < 1 && spec_.kind() == v1::TRAIN) {
      (*task->mutable_spec()->mutable_hyperparameters())["work"] = work;
    }
    const double seconds = stragglers_.Seconds(id, loop_->Now() - started_, left);
    if (seconds > 0 && spec_.kind() == v1::TRAIN) {
      (*task->mutable_spec()->mutable_hyperparameters())["seconds"] = seconds;
    }
    if (!holds) {
      const SentBytes put = PutModel(*model_, child.held_sha256, kInlineModelBytes, task);
      bytes_.model_to_clients += put.sent;
      bytes_.saved_to_clients += put.saved;
    }
  }
  child.held_sha256 = model_->sha256;
  child.session->Send(std::move(response));
  last_task_ = loop_->Now();
  stragglers_.TaskSent(id, last_task_);
}

void Collector::Act(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kTask:
        SendTask(action.member);
        break;
      case Action::Kind::kAbort: {
        const auto it = tickets_.find(action.ticket);
        if (it == tickets_.end()) break;
        v1::UploadResponse response;
        response.set_status(v1::UploadResponse::STALE);
        response.set_reason("round");
        response.set_message(
            absl::StrCat("round ", spec_.round(), " closed, or a newer attempt replaced this one"));
        if (it->second.upload != nullptr && MayCarry(it->second.upload->header())) {
          response.set_status(v1::UploadResponse::RETRY);
          response.set_message("the round has closed; sent again, it may count in the next");
        } else if (it->second.upload != nullptr && MaySupplement(it->second.upload->header())) {
          response.set_status(v1::UploadResponse::RETRY);
          response.set_message("the first sum has closed; sent again, it may count in the second");
        }
        if (it->second.upload != nullptr) it->second.upload->Reply(response);
        if (it->second.partial != nullptr) it->second.partial->Refuse(response.message());
        Suspend(action.ticket);
        break;
      }
      case Action::Kind::kClaims:
        AnswerClaims(action);
        break;
      case Action::Kind::kCollect: {
        const auto it = children_.find(action.member);
        if (it == children_.end()) break;
        auto response = NewResponse();
        response->mutable_collect()->set_round(spec_.round());
        it->second.session->Send(std::move(response));
        break;
      }
      case Action::Kind::kClosed:
        Close();
        return;
    }
  }
  Rearm();
}

void Collector::Rearm() {
  if (timer_ != 0) loop_->CancelTimer(timer_);
  timer_ = 0;
  if (machine_ == nullptr) return;
  TellClaims();
  const auto next = machine_->NextTimer();
  if (!next.has_value()) return;
  timer_ = loop_->PostAfter(std::max(*next - loop_->Now(), absl::ZeroDuration()), [this] {
    timer_ = 0;
    if (machine_ != nullptr) Act(machine_->Timer(loop_->Now()));
  });
}

void Collector::Close() {
  Rearm();
  if (closed_reported_) return;
  SettleOffers();
  UndoHalves();
  if (undoing_ > 0) return;  // Undo comes here again
  closed_reported_ = true;
  CollectedRound round;
  round.result = machine_->Result();
  Measure(&round);
  const bool first = machine_->part() == 0;
  std::vector<std::string> late;
  if (spec_.kind() == v1::TRAIN && first) {
    for (auto& [id, child] : children_) child.closed_round = spec_.round();
    round.wait = stragglers_.EndRound(*machine_, loop_->Now() - started_);
    round.wait.offers = offers_seen_;
    round.wait.unused_grants = unused_grants_;
    if (stragglers_.late() == aggregation::Late::kSupplement) late = machine_->Awaited();
  } else if (spec_.kind() == v1::EVALUATE) {
    stragglers_.EndEvaluation(*machine_, loop_->Now() - started_);
  }
  const uint64_t number = spec_.round();
  callbacks_.closed(std::move(round));
  if (machine_ == nullptr || spec_.round() != number || !closed_reported_) return;
  ClaimLate(late);
  for (const std::string& id : std::exchange(claims_.grants, {})) Granted(id);
  TellBelow();
  Rearm();
}

void Collector::Measure(CollectedRound* out) const {
  CollectedRound& round = *out;
  round.metrics = metrics_;
  round.seconds = absl::ToDoubleSeconds(loop_->Now() - started_);
  const auto between = [](absl::Duration from, absl::Duration to) {
    return from == absl::ZeroDuration() ? 0.0 : std::max(0.0, absl::ToDoubleSeconds(to - from));
  };
  const absl::Duration first = first_upload_ == absl::ZeroDuration() ? first_partial_
                               : first_partial_ == absl::ZeroDuration()
                                   ? first_upload_
                                   : std::min(first_upload_, first_partial_);
  round.phases.announce = between(started_, last_task_);
  round.phases.train_wait = first == absl::ZeroDuration() ? 0 : between(last_task_, first);
  round.phases.upload = between(first_upload_, last_upload_);
  round.phases.forward = between(first_partial_, last_partial_);
  round.phases.fold = pool_.busy_seconds() - busy_at_start_;
  if (door_ != nullptr) {
    const auto downloads = static_cast<double>(door_->counters().downloads - downloads_at_start_);
    const auto nanos =
        static_cast<double>(door_->counters().download_nanos - download_nanos_at_start_);
    round.phases.download = downloads > 0 ? nanos / downloads * 1e-9 : 0;
  }
  round.bytes = bytes_;
  if (door_ != nullptr) {
    round.bytes.model_to_clients += door_->counters().download_bytes - download_bytes_at_start_;
    round.bytes.saved_to_clients += door_->counters().saved_bytes - saved_bytes_at_start_;
  }
  if (tier_ != nullptr) {
    const SentBytes models = tier_->models_sent();
    round.bytes.model_to_aggregators = models.sent - models_sent_at_start_.sent;
    round.bytes.saved_to_aggregators = models.saved - models_sent_at_start_.saved;
  }
}

std::vector<std::string> Collector::Awaited() const {
  if (buffering_) return async_->Collecting();
  return machine_ == nullptr ? std::vector<std::string>() : machine_->Awaited();
}

void Collector::CloseNow() {
  if (buffering_) return ActAsync(async_->Close(loop_->Now()));
  if (machine_ != nullptr && !machine_->closed()) Act(machine_->CloseNow(loop_->Now()));
}

v1::Outcome Collector::OutcomeFor(const std::string& id, uint32_t parts) const {
  v1::Outcome outcome;
  outcome.set_round(machine_->RoundOf(id));
  const uint32_t in = machine_->PartsOf(id, parts);
  outcome.set_included(in > 0);
  if (in > 0) {
    const auto child = children_.find(id);
    if (child != children_.end() && child->second.aggregator) outcome.set_parts(in);
    return outcome;
  }
  switch (machine_->AnswerOf(id)) {
    case Answer::kAccepted:
      outcome.set_reason("the sum with its update did not reach the parent in time");
      break;
    case Answer::kRejected:
      outcome.set_reason("its update was refused");
      break;
    case Answer::kDeclined:
      outcome.set_reason("it sat the round out");
      break;
    default:
      outcome.set_reason("its update came too late or not at all");
  }
  return outcome;
}

void Collector::FinishRound(const Ending& ending) {
  const aggregation::RoundResult result = machine_->Result();
  if (ending.committed && ending.included) {
    outcomes_.Committed(spec_.round(), machine_->Contributors(ending.parts));
  }
  for (auto& [id, child] : children_) {
    const Answer answer = machine_->AnswerOf(id);
    const auto claim = claims_.clients.find(id);
    const bool elsewhere = claim != claims_.clients.end() && claim->second == ClaimState::kTaken;
    // It came within the round, and the parent has not said whether it is counted already.
    const bool unsure =
        claim != claims_.clients.end() && !elsewhere && claim->second != ClaimState::kGranted;
    if (answer == Answer::kGone && machine_->PartsOf(id, ending.parts) == 0 && !elsewhere) {
      continue;  // no part in it
    }
    // Our sum of this round is in the model that the next rounds are trained from, so the root
    // announces them after all who were here when it was closed.
    if (ending.included && child.closed_round == spec_.round()) child.settled = true;
    child.owes = machine_->OwedRound(id);
    if (child.owes > 0) continue;  // its part is not over
    v1::Outcome outcome = OutcomeFor(id, ending.parts);
    outcome.set_committed(ending.committed);
    outcome.set_sum_included(ending.committed && ending.included && ending.parent_included);
    const bool in_sum = outcome.included();
    if (elsewhere) {
      outcome.set_included(ending.committed && ending.parent_included);
      outcome.clear_reason();
    } else if (!ending.included && in_sum) {
      outcome.clear_parts();
      outcome.set_included(false);
      outcome.set_reason(ending.why_not);
    } else if (!in_sum && !child.aggregator && ending.included &&
               outcomes_.Of(id, outcome.round()) == aggregation::Fate::kCounted) {
      outcome.set_included(true);  // through an aggregator that it was with before
      outcome.clear_reason();
    }
    if (callbacks_.inquire != nullptr && !child.aggregator && !outcome.included()) {
      outcome.set_ask(unsure || (in_sum && !ending.known) || (elsewhere && !ending.known));
    }
    auto response = NewResponse();
    *response->mutable_outcome() = outcome;
    child.session->Send(std::move(response));
  }
  if (!ending.committed) return;
  last_round_ = spec_.round();
  last_children_.clear();
  for (const std::string& id : result.children) {
    const uint32_t in = ending.included ? machine_->PartsOf(id, ending.parts) : 0;
    if (in > 0) last_children_[id] = in;
  }
  for (const auto& [id, state] : claims_.clients) {
    if (state == ClaimState::kTaken && ending.parent_included) last_children_[id] = 1;
  }
}

void Collector::Finish(const Ending& ending) {
  if (buffering_) return FinishBuffer(ending);
  if (machine_ == nullptr) return;
  if (spec_.kind() == v1::TRAIN) FinishRound(ending);
  machine_.reset();
  if (!claims_.clients.empty()) {  // whose claims were not answered
    for (const auto& upload : std::exchange(held_, {})) UploadStart(upload);
  }
  // Of an asynchronous run they outlive its evaluations.
  while (async_ == nullptr && !tickets_.empty()) EndTicket(tickets_.begin()->first);
  ResolveAll(false);
  Rearm();
}

void Collector::Sweep() {
  const absl::Duration now = loop_->Now();
  if (door_ != nullptr) {
    door_->CutSilent(absl::Seconds(limits_.session_timeout_s),
                     absl::Seconds(limits_.upload_progress_timeout_s));
  }
  for (auto& [id, child] : children_) {
    if (now - child.session->last_heard() > absl::Seconds(limits_.session_timeout_s)) {
      spdlog::warn("no sign of life from \"{}\" for {:.0f} s: its session is ended", id,
                   limits_.session_timeout_s);
      child.session->Cancel();
    }
  }
  std::vector<uint64_t> stalled;
  for (const auto& [ticket, entry] : tickets_) {
    const bool receiving =
        async_ != nullptr
            ? !entry.whole
            : entry.upload != nullptr && machine_ != nullptr &&
                  machine_->AnswerOf(entry.upload->header().id()) == Answer::kUploading;
    if (entry.upload != nullptr && entry.reserved > 0 && receiving &&
        now - entry.upload->last_progress() > absl::Seconds(limits_.upload_progress_timeout_s)) {
      stalled.push_back(ticket);
    }
  }
  ResolveAll(false);
  for (const uint64_t ticket : stalled) {
    const auto upload = tickets_[ticket].upload;
    spdlog::warn("the upload of \"{}\" has not moved for {:.0f} s: broken off",
                 upload->header().id(), limits_.upload_progress_timeout_s);
    v1::UploadResponse response;
    response.set_status(v1::UploadResponse::RETRY);
    response.set_message("the upload did not move; send it again");
    upload->Reply(response);
    EndTicket(ticket);
    AttemptAborted(ticket);
  }
  loop_->PostAfter(kSweepEvery,
                   [this] { Sweep(); });  // last: however long it took, others have a turn
}

}  // namespace tributary::server
