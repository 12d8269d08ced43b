// The root's rounds: announced, closed, applied, committed and published.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "aggregation/fednova.h"
#include "base/status.h"
#include "compression/agreed.h"
#include "server/internal/algorithms.h"
#include "server/internal/async_proto.h"
#include "server/internal/policies.h"
#include "server/internal/root.h"

namespace tributary::server {

v1::RoundSpec Root::Spec(v1::TaskKind kind) const {
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
  spec.set_minimum(Minimum(kind));
  spec.set_maximum(c_.cohort.maximum);
  spec.set_quorum(c_.straggler.quorum);
  if (c_.run->rack_rounds > 1) spec.set_rack_rounds(c_.run->rack_rounds);
  // In the grid's units, as all weights on the wire. The proof has room for it: it is at most the
  // round's.
  spec.set_max_client_weight(c_.aggregation.max_client_weight << grid_.weight_fraction_bits);
  for (const auto& [name, value] : c_.training.values)
    (*spec.mutable_hyperparameters())[name] = value;
  return spec;
}

// Where the cohort is a fraction of the clients, the config's minimum says how many must be there
// before a round starts; the cohort may be smaller, and has to have one update.
uint32_t Root::Minimum(v1::TaskKind kind) const {
  return kind == v1::TRAIN && c_.cohort.fraction >= 1 ? c_.cohort.minimum : 1;
}

void Root::StartRound(v1::TaskKind kind) {
  round_started_ = loop_.Now();
  spec_ = Spec(kind);
  const absl::Status status = collector_->Begin(
      spec_, grid_, Minimum(kind), absl::Seconds(c_.straggler.rejoin_grace_s), published_);
  if (!status.ok()) End(v1::Stop::FAILED, Text(status), status);
}

void Root::RoundClosed(CollectedRound round) {
  if (ending()) return;
  if (spec_.kind() == v1::EVALUATE) {
    report_.evaluation = MetricMeans(round.metrics);
    report_.evaluation_clients = round.result.clients;
    for (const v1::MetricSum& sum : round.metrics) {
      report_.evaluation_examples[sum.name()] = sum.weight();
    }
    report_.collected.bytes.AddModels(round.bytes);
    collector_->Finish({.committed = true, .included = true});
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
    collector_->Finish({.why_not = "the aggregator shuts down"});
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

void Root::RoundFailed(const std::string& why) {
  spdlog::warn("round {} failed: {}; the model stays at version {}", spec_.round(), why,
               model_->version);
  report_.why_not = why;
  report_.seconds = absl::ToDoubleSeconds(loop_.Now() - round_started_);
  report_.model_sha256 = absl::BytesToHexString(model_->sha256);
  report_.published_sha256 = absl::BytesToHexString(published_->sha256);
  collector_->Finish({.why_not = why});
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

void Root::Apply() {
  // With this commit.
  auto fates = collector_->Fates();
  fates.counted.insert(fates.counted.end(), report_.collected.contributions.begin(),
                       report_.collected.contributions.end());
  jobs_.Post([this, spec = spec_, result = report_.collected.result, fates = std::move(fates)] {
    loop_.Post([this, out = ApplyAndCommit(spec, result, fates)] { Committed(out); });
  });
}

Root::Applied Root::ApplyAndCommit(const v1::RoundSpec& spec,
                                   const aggregation::RoundResult& result,
                                   const Collector::AsyncFates& fates) {
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
  out.status = Save(spec, result, fates, out);
  out.commit = absl::ToDoubleSeconds(clock_.Monotonic() - applied);
  Passed(spec.round(), "commit");
  return out;
}

void Root::Committed(const Applied& out) {
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
  collector_->Finish({.committed = true, .included = true});
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

}  // namespace tributary::server
