// A rack's sums on their way up, the second as well as the first, and what becomes of them.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "server/internal/async_proto.h"
#include "server/internal/rack.h"

namespace tributary::server {

// What is to go up is there.
void Rack::SumClosed(CollectedRound round) {
  round_ = std::move(round);
  first_in_ = first_refused_ = false;
  second_.reset();
  waiting_outcome_ = true;
  Buffered(0);  // what it had is on its way
  if (round_.result.clients == 0) {
    SayEmpty();
    if (shutting_down_) loop_.Post([this] { EndShutdown(); });  // nobody is left to wait for
  } else if (own_ == nullptr || own_->last()) {
    SendUp();
  }
  TakeEarlyOutcome();
}

void Rack::SayEmpty() {
  v1::Report report;
  report.set_round(parent_spec_.round());
  report.set_kind(parent_spec_.kind());
  report.set_declined(absl::StrCat("no update was accepted: ", round_.result.why_not));
  for (const auto& [reason, count] : round_.result.rejected) {
    auto* entry = report.add_rejected();
    entry->set_reason(reason);
    entry->set_count(count);
  }
  report.set_late(round_.result.late);
  uplink_->SendReport(report);
}

// The sum of those who came, or were late, while the first was on its way.
void Rack::SecondClosed(CollectedRound round) {
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

void Rack::SendUp() {
  first_in_ = false;
  if (round_.result.clients > 0) {
    SendPart(round_, collector_->first_sum(), 0);
  } else if (second_.has_value()) {
    SendPart(*second_, collector_->sum(), 0);
  }
}

void Rack::SendPart(const CollectedRound& collected, const aggregation::ExactAccumulator* sum,
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

void Rack::Forwarded(uint64_t round, const absl::Status& status, double seconds) {
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

// ---- How the round ended

void Rack::TakeEarlyOutcome() {
  if (!early_outcome_.has_value()) return;
  const v1::Outcome outcome = *std::move(early_outcome_);
  early_outcome_.reset();
  Outcome(outcome, early_whole_);
}

void Rack::Outcome(const v1::Outcome& outcome, bool whole) {
  if (!collector_->running() || outcome.round() != parent_spec_.round() ||
      parent_spec_.kind() != v1::TRAIN) {
    return;
  }
  if (!waiting_outcome_) {
    // The parent closed without us.
    early_outcome_ = outcome;
    early_whole_ = whole;
    collector_->CloseNow();
    return;
  }
  if (!collector_->closed()) {  // a second sum is still open
    early_outcome_ = outcome;
    early_whole_ = whole;
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
  collector_->Finish({.committed = outcome.committed(),
                      .included = outcome.included(),
                      .why_not = outcome.reason(),
                      .parts = parts,
                      .parent_included = outcome.sum_included(),
                      .known = whole});
  Publish(std::move(report));
  BeginPending();
}

// For the report: what the second sum had.
void Rack::Add(const CollectedRound& second) {
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

}  // namespace tributary::server
