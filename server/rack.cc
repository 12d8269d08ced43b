// The rack: takes tasks from its parent, runs them with its own children, forwards the sum.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "server/internal/async_proto.h"
#include "server/node_base.h"
#include "server/rack_rounds.h"
#include "server/uplink.h"

namespace tributary::server {
namespace {

// What a rack keeps of its parent's deadline for forwarding, before it has measured any.
constexpr absl::Duration kFirstForwardGuess = absl::Milliseconds(500);

class Rack final : public NodeBase, public UplinkHandler {
 public:
  explicit Rack(Options options)
      : NodeBase(std::move(options)),
        c_(options_.config),
        epoch_(absl::ToUnixMicros(absl::Now())) {}
  ~Rack() override {
    door_.reset();
    tier_.reset();
    uplink_.reset();
  }
  absl::Status Open() { return OpenPorts(); }

  // UplinkHandler: all of it goes to the loop.
  void OnParentJoined(v1::Joined joined) override {
    loop_.Post([this, joined = std::move(joined)] { Joined(joined); });
  }
  void OnParentTask(v1::Task task) override {
    loop_.Post([this, task = std::move(task)] { Take(task); });
  }
  void OnParentOutcome(v1::Outcome outcome) override {
    loop_.Post([this, outcome = std::move(outcome)] { Outcome(outcome); });
  }
  void OnParentCollect(uint64_t round) override {
    loop_.Post([this, round] { Collect(round); });
  }
  void OnParentClaims(v1::ClaimsAnswer answer) override {
    loop_.Post([this, answer = std::move(answer)] {
      if (!ending()) collector_->ClaimsAnswered(answer);
    });
  }
  void OnParentStop(v1::Stop stop) override {
    loop_.Post([this, stop = std::move(stop)] {
      const bool finished = stop.kind() == v1::Stop::FINISHED;
      spdlog::info("the parent ends: {}", stop.reason());
      if (stop.kind() == v1::Stop::SUPERSEDED) {
        End(v1::Stop::GOING_AWAY, stop.reason(), absl::AbortedError(stop.reason()));
        return;
      }
      End(stop.kind(), stop.reason(),
          finished ? absl::OkStatus() : absl::AbortedError(stop.reason()));
    });
  }
  void OnParentRefused(std::string reason) override {
    loop_.Post([this, reason] {
      spdlog::error("the parent refuses this aggregator: {}", reason);
      End(v1::Stop::GOING_AWAY, reason, absl::AbortedError(reason));
    });
  }
  void OnParentGoingAway() override {
    loop_.Post([this] {
      if (shutting_down_) EndShutdown();  // no outcome will come within the grace
    });
  }
  void OnModel(std::shared_ptr<const ModelVersion> model) override {
    loop_.Post([this, model = std::move(model)] {
      model_ = model;
      uplink_->SetHeld(model_->sha256);
      BeginPending();
    });
  }
  void OnForwarded(uint64_t round, absl::Status status, double seconds) override {
    loop_.Post([this, round, status, seconds] { Forwarded(round, status, seconds); });
  }
  void OnReleased(uint64_t forward) override {
    loop_.Post([this, forward] {
      if (forward != lent_to_) return;
      lent_to_ = 0;
      BeginPending();
    });
  }

 private:
  void Begin() override {
    uplink_ = Uplink::Start({.id = c_.node.name,
                             .epoch = static_cast<uint64_t>(epoch_),
                             .parents = c_.node.parent,
                             .transport = c_.transport},
                            this);
  }

  void MembersChanged() override {
    if (uplink_ == nullptr) return;
    const Collector::Census census = collector_->Count();
    uplink_->SetCensus(census.clients, census.examples);
    if (shutting_down_) loop_.Post([this] { CloseIfAlone(); });
  }

  void Joined(const v1::Joined& joined) {
    if (!collector_->opened()) {
      auto layout = aggregation::ModelLayout::FromProto(joined.layout());
      if (!layout.ok() || (*layout)->hash() != joined.layout_hash()) {
        const std::string message =
            absl::StrCat("the parent's layout is not valid: ", layout.status().message());
        End(v1::Stop::FAILED, message, absl::AbortedError(message));
        return;
      }
      layout_ = *layout;
      run_ = joined.run();
      spdlog::info("joined run \"{}\": {} elements", run_, layout_->elements());
      collector_->Open(run_, layout_);
      return;
    }
    if (joined.run() != run_ || joined.layout_hash() != layout_->hash()) {
      const std::string message = absl::StrCat("the parent now serves run \"", joined.run(),
                                               "\", not \"", run_, "\"; restart this aggregator");
      End(v1::Stop::FAILED, message, absl::AbortedError(message));
      return;
    }
    spdlog::info("joined run \"{}\" again", run_);
    if (joined.has_last_outcome() && waiting_outcome_ &&
        joined.last_outcome().round() == parent_spec_.round()) {
      Outcome(joined.last_outcome());
    }
    collector_->ClaimAgain();
  }

  bool SameRound(const v1::RoundSpec& spec) const {
    const v1::RoundSpec& mine = parent_spec_;
    return collector_->running() && mine.round() == spec.round() && mine.kind() == spec.kind() &&
           mine.base_sha256() == spec.base_sha256() &&
           mine.asynchronous().attempt() == spec.asynchronous().attempt();
  }

  void Take(const v1::Task& task) {
    if (ending()) return;
    if (SameRound(task.spec())) {
      // The parent lost sight of us, or was restarted: what was collected still counts, and is
      // offered again.
      spdlog::info("round {} goes on", task.spec().round());
      pending_.reset();
      if (waiting_outcome_ && round_.result.clients == 0 && task.spec().has_asynchronous()) {
        // It was closed with nothing in it; the parent, begun anew, opens it again.
        pending_ = task.spec();
        GiveUp("");
        return;
      }
      if (waiting_outcome_) SendUp();
      collector_->ClaimAgain();
      return;
    }
    pending_ = task.spec();
    if (collector_->running()) {
      spdlog::warn("round {} is given up: the parent has begun round {}", parent_spec_.round(),
                   task.spec().round());
      if (waiting_outcome_ && collector_->closed()) {
        GiveUp("the parent went on without it");
      } else {
        collector_->CloseNow();  // RoundClosed goes on
      }
      return;
    }
    BeginPending();
  }

  // The parent wants what there is: of an asynchronous run's buffer, or of a second sum.
  void Collect(uint64_t round) {
    const v1::RoundSpec& mine = parent_spec_;
    if (!mine.has_asynchronous() && collector_->running() && mine.kind() == v1::TRAIN) {
      if (mine.round() == round) collector_->CollectSecond();
      return;
    }
    if (collector_->running() && mine.round() == round && mine.kind() == v1::TRAIN) {
      if (!waiting_outcome_) collector_->CloseNow();  // RoundClosed goes on
      return;
    }
    v1::RoundSpec spec;
    spec.set_round(round);
    spec.set_kind(v1::TRAIN);
    if (pending_.has_value() && pending_->round() == round) pending_.reset();
    Decline(spec, "its model is not here yet");
  }

  void Buffered(uint64_t clients) override {
    if (uplink_ != nullptr && collector_->spec().has_asynchronous())
      uplink_->SetBuffered(collector_->spec().round(), clients);
  }

  void GiveUp(const std::string& why) {
    Recall();
    waiting_outcome_ = false;
    second_.reset();
    collector_->Finish(false, false, why);
    BeginPending();
  }

  // The forwarder may read the sum for a moment yet: no round begins on it until it is let go.
  void Recall() { lent_to_ = uplink_->Abandon(); }

  void BeginPending() {
    if (shutting_down_ && !collector_->running()) {
      loop_.Post([this] { EndShutdown(); });
      return;
    }
    if (!pending_.has_value() || collector_->running() || lent_to_ != 0 || model_ == nullptr ||
        model_->sha256 != pending_->base_sha256()) {
      return;
    }
    v1::RoundSpec spec = *std::move(pending_);
    pending_.reset();
    parent_spec_ = spec;
    own_.reset();
    auto grid = aggregation::Grid::FromProto(spec.grid());
    if (!grid.ok()) {
      spdlog::error("round {}: {}", spec.round(), Text(grid.status()));
      Decline(spec, std::string(grid.status().message()));
      return;
    }
    // Leave time to forward: what it took so far (or a guess), but at most half of the deadline.
    const absl::Duration all = absl::Milliseconds(spec.deadline_ms());
    const absl::Duration collecting = aggregation::ChildDeadline(all, forward_time_);
    round_started_ = loop_.Now();
    if (spec.rack_rounds() > 1) {
      BeginOwn(*grid, collecting);
      return;
    }
    if (spec.has_asynchronous()) {
      // When it is full, and when it has waited for long enough, is the root's to say.
      spec.mutable_asynchronous()->clear_buffer();
      spec.mutable_asynchronous()->clear_flush_ms();
    } else {
      spec.set_deadline_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(collecting)));
    }
    BeginCollecting(spec, *grid, model_);
  }

  void BeginCollecting(const v1::RoundSpec& spec, const aggregation::Grid& grid,
                       const std::shared_ptr<const ModelVersion>& model) {
    // A claim speaks of the parent's rounds.
    collector_->AllowClaims(parent_spec_.rack_rounds() <= 1);
    const absl::Status status =
        collector_->Begin(spec, grid, 1, absl::Seconds(c_.straggler.rejoin_grace_s), model);
    if (!status.ok()) {
      Decline(parent_spec_, Text(status));
    } else if (!spec.has_asynchronous() && collector_->Count().clients == 0) {
      // After a restart the clients may be on their way back; an empty rack must not hold its
      // parent up.
      loop_.PostAfter(absl::Seconds(c_.straggler.rejoin_grace_s), [this, number = spec.round()] {
        if (collector_->running() && collector_->spec().round() == number &&
            collector_->Count().clients == 0) {
          collector_->CloseNow();
        }
      });
    }
  }

  // A round of a parent that leaves racks rounds of their own.
  void BeginOwn(const aggregation::Grid& grid, absl::Duration collecting) {
    if (parent_spec_.kind() != v1::TRAIN) {
      v1::RoundSpec spec = parent_spec_;
      spec.clear_rack_rounds();
      spec.set_round(OwnRoundNumber(parent_spec_, 1));
      spec.set_deadline_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(collecting)));
      BeginCollecting(spec, grid, model_);
      return;
    }
    auto own = RackRounds::Create(parent_spec_, grid, model_, loop_.Now(), collecting,
                                  FoldWorkers(c_.limits));
    if (!own.ok()) {
      Decline(parent_spec_, Text(own.status()));
      return;
    }
    own_ = *std::move(own);
    grid_ = grid;
    BeginCollecting(own_->Spec(loop_.Now()), grid_, own_->model());
  }

  // One of the rack's own rounds has closed; the sum and the rack's model are the job's until it
  // comes back.
  void OwnClosed(CollectedRound round) {
    spdlog::info("round {}: its own round {} of {}: {} clients, weight {}", parent_spec_.round(),
                 own_->own(), own_->rounds(), round.result.clients, round.result.weight);
    own_->Take(std::move(round));
    jobs_.Post([this] {
      loop_.Post([this, status = own_->Step(collector_->sum())] { OwnStepped(status); });
    });
  }

  void OwnStepped(const absl::Status& status) {
    if (pending_.has_value() || ending()) {
      collector_->Finish(false, false, "the round was given up");
      BeginPending();
    } else if (!status.ok()) {
      spdlog::error("round {}: {}", parent_spec_.round(), Text(status));
      collector_->Finish(false, false, std::string(status.message()));
      Decline(parent_spec_, std::string(status.message()));
      BeginPending();
    } else if (own_->last() || early_outcome_.has_value()) {
      SumClosed(own_->Merged());
    } else {
      collector_->Finish(true, true, "");
      own_->Next();
      BeginCollecting(own_->Spec(loop_.Now()), grid_, own_->model());
    }
  }

  void Decline(const v1::RoundSpec& spec, const std::string& why) {
    v1::Report report;
    report.set_round(spec.round());
    report.set_kind(spec.kind());
    report.set_declined(why);
    uplink_->SendReport(report);
  }

  void Claim(const v1::Claims& claims) override {
    if (uplink_ != nullptr) uplink_->SendClaims(claims);
  }

  void RoundClosed(CollectedRound round) override {
    const v1::RoundSpec& spec = parent_spec_;
    if (pending_.has_value() || ending()) {
      if (waiting_outcome_) return GiveUp("the round was given up");
      collector_->Finish(false, false, "the round was given up");
      BeginPending();
      return;
    }
    if (collector_->part() > 0) return SecondClosed(std::move(round));
    if (spec.kind() == v1::EVALUATE) {
      v1::Report report;
      report.set_round(spec.round());
      report.set_kind(spec.kind());
      *report.mutable_metrics() = round.metrics;
      report.set_contributors(round.result.clients);
      uplink_->SendReport(report);
      collector_->Finish(true, true, "");
      BeginPending();
      return;
    }
    if (own_ != nullptr) {
      OwnClosed(std::move(round));
    } else {
      SumClosed(std::move(round));
    }
  }

  // What is to go up is there.
  void SumClosed(CollectedRound round) {
    const v1::RoundSpec& spec = parent_spec_;
    round_ = std::move(round);
    first_in_ = first_refused_ = false;
    second_.reset();
    waiting_outcome_ = true;
    Buffered(0);  // what it had is on its way
    if (round_.result.clients == 0) {
      v1::Report report;
      report.set_round(spec.round());
      report.set_kind(spec.kind());
      report.set_declined(absl::StrCat("no update was accepted: ", round_.result.why_not));
      for (const auto& [reason, count] : round_.result.rejected) {
        auto* entry = report.add_rejected();
        entry->set_reason(reason);
        entry->set_count(count);
      }
      report.set_late(round_.result.late);
      uplink_->SendReport(report);
      if (shutting_down_) loop_.Post([this] { EndShutdown(); });  // nobody is left to wait for
    } else if (own_ == nullptr || own_->last()) {
      SendUp();
    }
    TakeEarlyOutcome();
  }

  void TakeEarlyOutcome() {
    if (!early_outcome_.has_value()) return;
    const v1::Outcome outcome = *std::move(early_outcome_);
    early_outcome_.reset();
    Outcome(outcome);
  }

  // The sum of those who came, or were late, while the first was on its way.
  void SecondClosed(CollectedRound round) {
    if (round.result.clients == 0 || first_refused_) {
      collector_->SecondDone();
    } else {
      spdlog::info("round {}: {} more clients in a second partial sum", parent_spec_.round(),
                   round.result.clients);
      second_ = std::move(round);
      if (first_in_ || round_.result.clients == 0) SendPart(*second_, collector_->sum(), Sent());
    }
    TakeEarlyOutcome();
  }

  // The parent's name for the second sum: it may be the first that it gets.
  uint32_t Sent() const { return round_.result.clients > 0 ? 1 : 0; }

  void SendUp() {
    first_in_ = false;
    if (round_.result.clients > 0) {
      SendPart(round_, collector_->first_sum(), 0);
    } else if (second_.has_value()) {
      SendPart(*second_, collector_->sum(), 0);
    }
  }

  void SendPart(const CollectedRound& collected, const aggregation::ExactAccumulator* sum,
                uint32_t part) {
    const v1::RoundSpec& spec = parent_spec_;
    v1::PartialSumHeader header;
    header.set_run(run_);
    header.set_round(spec.round());
    header.set_id(c_.node.name);
    header.set_epoch(static_cast<uint64_t>(epoch_));
    header.set_layout_hash(layout_->hash());
    header.set_base_version(spec.base_version());
    header.set_buffer_attempt(spec.asynchronous().attempt());
    header.set_part(part);
    header.set_weight(collected.result.weight);
    for (const std::string& id : collected.result.contributors) header.add_contributors(id);
    *header.mutable_contributions() = ToProto(collected.contributions);
    *header.mutable_metrics() = collected.metrics;
    header.set_chunks(sum->chunk_count());
    for (const auto& [reason, count] : collected.result.rejected) {
      auto* entry = header.add_rejected();
      entry->set_reason(reason);
      entry->set_count(count);
    }
    header.set_late(collected.result.late);
    header.set_ingress_bytes(collected.bytes.below);
    uplink_->Forward(std::move(header), sum);
  }

  void Forwarded(uint64_t round, const absl::Status& status, double seconds) {
    const bool first = round_.result.clients > 0 && !first_in_;
    if (!status.ok()) {
      spdlog::warn("forwarding round {}: {}", round, Text(status));
      // A second sum does not count without the first.
      first_refused_ = true;
      if (waiting_outcome_ && collector_->part() > 0) collector_->SecondDone();
      return;
    }
    if (round == parent_spec_.round() && waiting_outcome_) {
      if (!first && second_.has_value()) {
        collector_->SecondDone();
        return;
      }
      first_in_ = true;
      if (second_.has_value()) SendPart(*second_, collector_->sum(), Sent());
    }
    // Half of it new: one slow round does not shorten all that follow.
    forward_time_ = (forward_time_ + 2 * absl::Seconds(seconds)) / 2;
    round_.phases.forward = seconds;
  }

  void Outcome(const v1::Outcome& outcome) {
    if (!collector_->running() || outcome.round() != parent_spec_.round() ||
        parent_spec_.kind() != v1::TRAIN) {
      return;
    }
    if (!waiting_outcome_) {
      // The parent closed without us.
      early_outcome_ = outcome;
      collector_->CloseNow();
      return;
    }
    if (!collector_->closed()) {  // a second sum is still open
      early_outcome_ = outcome;
      collector_->CloseNow();
      return;
    }
    Recall();
    waiting_outcome_ = false;
    uint32_t parts = outcome.included() ? std::max(outcome.parts(), 1u) : 0;
    if (parts > 0 && round_.result.clients == 0) ++parts;  // the first was empty, and never sent
    if (second_.has_value() && parts > 1) Add(*second_);
    second_.reset();
    RoundReport report;
    report.run = run_;
    report.role = "rack";
    report.round = outcome.round();
    report.committed = outcome.committed() && outcome.included();
    report.why_not = outcome.reason();
    report.collected = round_;
    report.weight_fraction_bits = static_cast<int>(parent_spec_.grid().weight_fraction_bits());
    report.seconds = absl::ToDoubleSeconds(loop_.Now() - round_started_);
    report.codec = parent_spec_.codec();
    report.transport = uplink_->transport();
    report.model_bytes = model_->bytes.size();
    report.model_sha256 = absl::BytesToHexString(model_->sha256);
    report.published_sha256 = report.model_sha256;
    report.metrics = MetricMeans(round_.metrics);
    collector_->Finish(outcome.committed(), outcome.included(), outcome.reason(), parts,
                       outcome.sum_included());
    Publish(std::move(report));
    BeginPending();
  }

  // For the report: what the second sum had.
  void Add(const CollectedRound& second) {
    round_.result.clients += second.result.clients;
    round_.result.weight += second.result.weight;
    round_.result.contributors.insert(round_.result.contributors.end(),
                                      second.result.contributors.begin(),
                                      second.result.contributors.end());
    std::sort(round_.result.contributors.begin(), round_.result.contributors.end());
    round_.bytes.from_clients += second.bytes.from_clients;
    round_.bytes.from_aggregators += second.bytes.from_aggregators;
    round_.bytes.below += second.bytes.below;
  }

  // To be collected, taken by the parent, and its outcome told. Not an asynchronous run's buffer:
  // when that is collected is unknown.
  bool WorthFinishing() const {
    if (!collector_->running() || parent_spec_.has_asynchronous()) return false;
    return !waiting_outcome_ || round_.result.clients > 0 || second_.has_value();
  }

  // Who has left a rack that shuts down is not awaited: what is in goes up.
  void CloseIfAlone() {
    if (!shutting_down_ || ending() || !collector_->running() || waiting_outcome_) return;
    if (collector_->Count().clients == 0) collector_->CloseNow();  // RoundClosed goes on
  }

  void ShutdownAsked() override {
    shutting_down_ = true;
    if (!WorthFinishing()) return EndShutdown();
    spdlog::info("shutting down: the running round may finish within the grace time");
    loop_.PostAfter(absl::Seconds(c_.limits.shutdown_grace_s), [this] { EndShutdown(); });
    CloseIfAlone();
  }

  void EndShutdown() {
    if (ending()) return;
    spdlog::info("shutting down");
    if (uplink_ != nullptr) uplink_->Abandon();
    End(v1::Stop::GOING_AWAY, "this rack shuts down", absl::OkStatus());
  }

  const Config& c_;
  const int64_t epoch_;
  std::string run_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::shared_ptr<const ModelVersion> model_;
  std::optional<v1::RoundSpec> pending_;
  v1::RoundSpec parent_spec_;        // of the round that runs, as the parent sent it
  std::unique_ptr<RackRounds> own_;  // null: the parent's round is the rack's own
  aggregation::Grid grid_;           // of own_
  std::optional<v1::Outcome> early_outcome_;
  bool waiting_outcome_ = false;
  bool shutting_down_ = false;
  uint64_t lent_to_ = 0;  // the given up forward that still reads the sum; 0: none
  CollectedRound round_;
  bool first_in_ = false;       // the parent has taken it
  bool first_refused_ = false;  // or will not
  std::optional<CollectedRound> second_;
  absl::Duration round_started_;
  absl::Duration forward_time_ = kFirstForwardGuess;
  std::unique_ptr<Uplink> uplink_;
  JobThread jobs_;  // the last member: it ends before what its jobs use
};

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> CreateRack(Node::Options options) {
  auto rack = std::make_unique<Rack>(std::move(options));
  RETURN_IF_ERROR(rack->Open());
  return std::unique_ptr<Node>(std::move(rack));
}

}  // namespace tributary::server
