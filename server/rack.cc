// The rack's session with its parent: what comes of it, and what is said.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "server/internal/rack.h"

namespace tributary::server {

Rack::Rack(Options options)
    : NodeBase(std::move(options)), c_(options_.config), epoch_(absl::ToUnixMicros(absl::Now())) {}

Rack::~Rack() {
  door_.reset();
  tier_.reset();
  uplink_.reset();
}

// ---- The parent's words, on its threads

// UplinkHandler: all of it goes to the loop.
void Rack::OnParentJoined(v1::Joined joined) {
  loop_.Post([this, joined = std::move(joined)] { Joined(joined); });
}

void Rack::OnParentTask(v1::Task task) {
  loop_.Post([this, task = std::move(task)] { Take(task); });
}

void Rack::OnParentOutcome(v1::Outcome outcome) {
  loop_.Post([this, outcome = std::move(outcome)] { Outcome(outcome); });
}

void Rack::OnParentCollect(uint64_t round) {
  loop_.Post([this, round] { Collect(round); });
}

void Rack::OnParentClaims(v1::ClaimsAnswer answer) {
  loop_.Post([this, answer = std::move(answer)] {
    if (!ending()) collector_->ClaimsAnswered(answer);
  });
}

void Rack::OnParentVerdicts(v1::Verdicts verdicts) {
  loop_.Post([this, verdicts = std::move(verdicts)] { collector_->ParentKnows(verdicts); });
}

void Rack::OnParentStop(v1::Stop stop) {
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

void Rack::OnParentRefused(std::string reason) {
  loop_.Post([this, reason] {
    spdlog::error("the parent refuses this aggregator: {}", reason);
    End(v1::Stop::GOING_AWAY, reason, absl::AbortedError(reason));
  });
}

void Rack::OnParentGoingAway() {
  loop_.Post([this] {
    if (shutting_down_) EndShutdown();  // no outcome will come within the grace
  });
}

void Rack::OnModel(std::shared_ptr<const ModelVersion> model) {
  loop_.Post([this, model = std::move(model)] {
    model_ = model;
    uplink_->SetHeld(model_->sha256);
    BeginPending();
  });
}

void Rack::OnForwarded(uint64_t round, absl::Status status, double seconds) {
  loop_.Post([this, round, status, seconds] { Forwarded(round, status, seconds); });
}

void Rack::OnReleased(uint64_t forward) {
  loop_.Post([this, forward] {
    if (forward != lent_to_) return;
    lent_to_ = 0;
    BeginPending();
  });
}

// ---- On the loop

void Rack::Begin() {
  uplink_ = Uplink::Start({.id = c_.node.name,
                           .epoch = static_cast<uint64_t>(epoch_),
                           .parents = c_.node.parent,
                           .transport = c_.transport,
                           .tls = TlsToParent(c_.tls)},
                          std::move(to_parent_), this);
}

void Rack::MembersChanged() {
  if (uplink_ == nullptr) return;
  const Collector::Census census = collector_->Count();
  uplink_->SetCensus(census.clients, census.examples);
  if (shutting_down_) loop_.Post([this] { CloseIfAlone(); });
}

void Rack::Joined(const v1::Joined& joined) {
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
    Outcome(joined.last_outcome(), false);
  }
  collector_->ClaimAgain();
  collector_->AskAgain(joined.answers_inquiries());
}

bool Rack::SameRound(const v1::RoundSpec& spec) const {
  const v1::RoundSpec& mine = parent_spec_;
  return collector_->running() && mine.round() == spec.round() && mine.kind() == spec.kind() &&
         mine.base_sha256() == spec.base_sha256() &&
         mine.asynchronous().attempt() == spec.asynchronous().attempt();
}

void Rack::Take(const v1::Task& task) {
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
    if (waiting_outcome_ && round_.result.clients == 0 && !second_.has_value()) SayEmpty();
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
void Rack::Collect(uint64_t round) {
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

void Rack::Buffered(uint64_t clients) {
  if (uplink_ != nullptr && collector_->spec().has_asynchronous())
    uplink_->SetBuffered(collector_->spec().round(), clients);
}

void Rack::Decline(const v1::RoundSpec& spec, const std::string& why) {
  v1::Report report;
  report.set_round(spec.round());
  report.set_kind(spec.kind());
  report.set_declined(why);
  uplink_->SendReport(report);
}

void Rack::Claim(const v1::Claims& claims) {
  if (uplink_ != nullptr) uplink_->SendClaims(claims);
}

void Rack::Inquire(const v1::Inquiry& inquiry) {
  if (uplink_ != nullptr) uplink_->SendInquiry(inquiry);
}

uint64_t Rack::LinkRetransmits() const {
  return NodeBase::LinkRetransmits() + (uplink_ == nullptr ? 0 : uplink_->retransmits());
}

// ---- The end

// To be collected, taken by the parent, and its outcome told. Not an asynchronous run's buffer:
// when that is collected is unknown.
bool Rack::WorthFinishing() const {
  if (!collector_->running() || parent_spec_.has_asynchronous()) return false;
  return !waiting_outcome_ || round_.result.clients > 0 || second_.has_value();
}

// Who has left a rack that shuts down is not awaited: what is in goes up.
void Rack::CloseIfAlone() {
  if (!shutting_down_ || ending() || !collector_->running() || waiting_outcome_) return;
  if (collector_->Count().clients == 0) collector_->CloseNow();  // RoundClosed goes on
}

void Rack::ShutdownAsked() {
  shutting_down_ = true;
  if (!WorthFinishing()) return EndShutdown();
  spdlog::info("shutting down: the running round may finish within the grace time");
  loop_.PostAfter(absl::Seconds(c_.limits.shutdown_grace_s), [this] { EndShutdown(); });
  CloseIfAlone();
}

void Rack::EndShutdown() {
  if (ending()) return;
  spdlog::info("shutting down");
  if (uplink_ != nullptr) uplink_->Abandon();
  End(v1::Stop::GOING_AWAY, "this rack shuts down", absl::OkStatus());
}

absl::StatusOr<std::unique_ptr<Node>> CreateRack(Node::Options options) {
  auto rack = std::make_unique<Rack>(std::move(options));
  RETURN_IF_ERROR(rack->Open());
  return std::unique_ptr<Node>(std::move(rack));
}

}  // namespace tributary::server
