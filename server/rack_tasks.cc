// What a rack makes of its parent's tasks: one round below it, or rounds of its own.
#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "server/internal/rack.h"

namespace tributary::server {

void Rack::BeginPending() {
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

void Rack::BeginCollecting(const v1::RoundSpec& spec, const aggregation::Grid& grid,
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

void Rack::RoundClosed(CollectedRound round) {
  const v1::RoundSpec& spec = parent_spec_;
  if (pending_.has_value() || ending()) {
    if (waiting_outcome_) return GiveUp("the round was given up");
    collector_->Finish({.why_not = "the round was given up", .known = false});
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
    collector_->Finish({.committed = true, .included = true});
    BeginPending();
    return;
  }
  if (own_ != nullptr) {
    OwnClosed(std::move(round));
  } else {
    SumClosed(std::move(round));
  }
}

void Rack::GiveUp(const std::string& why) {
  Recall();
  waiting_outcome_ = false;
  second_.reset();
  collector_->Finish({.why_not = why, .known = false});
  BeginPending();
}

// ---- Rounds of its own

// A round of a parent that leaves racks rounds of their own.
void Rack::BeginOwn(const aggregation::Grid& grid, absl::Duration collecting) {
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
void Rack::OwnClosed(CollectedRound round) {
  spdlog::info("round {}: its own round {} of {}: {} clients, weight {}", parent_spec_.round(),
               own_->own(), own_->rounds(), round.result.clients, round.result.weight);
  own_->Take(std::move(round));
  jobs_.Post([this] {
    loop_.Post([this, status = own_->Step(collector_->sum())] { OwnStepped(status); });
  });
}

void Rack::OwnStepped(const absl::Status& status) {
  if (pending_.has_value() || ending()) {
    collector_->Finish({.why_not = "the round was given up", .known = false});
    BeginPending();
  } else if (!status.ok()) {
    spdlog::error("round {}: {}", parent_spec_.round(), Text(status));
    collector_->Finish({.why_not = std::string(status.message())});
    Decline(parent_spec_, std::string(status.message()));
    BeginPending();
  } else if (own_->last() || early_outcome_.has_value()) {
    SumClosed(own_->Merged());
  } else {
    collector_->Finish({.committed = true, .included = true});
    own_->Next();
    BeginCollecting(own_->Spec(loop_.Now()), grid_, own_->model());
  }
}

}  // namespace tributary::server
