// The client's loop: sessions, outcomes, tasks and models.
#include "client/internal/participant.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "aggregation/grid.h"
#include "base/status.h"
#include "base/tls_probe.h"
#include "client/internal/encode.h"
#include "compression/agreed.h"

namespace tributary::client::internal {

namespace {

// A step of a probe; a task of a session that came up meanwhile waits for it.
constexpr absl::Duration kProbeLimit = absl::Seconds(3);

// Most inquiries are answered at once. Who has to wait longer lets nobody wait for it meanwhile.
constexpr absl::Duration kQuickAnswer = absl::Seconds(1);

// Ids may be anything; their hash is a file's name.
std::string ResidualFile(const ClientOptions& options) {
  if (options.state_directory.empty()) return "";
  return absl::StrCat(options.state_directory, "/",
                      absl::Hex(SeededHash(0, "state", options.id), absl::kZeroPad16),
                      ".residuals");
}

}  // namespace

Participant::Participant(ClientOptions options, Trainer* trainer, CodecFactory codecs)
    : options_(std::move(options)),
      trainer_(trainer),
      codecs_(std::move(codecs)),
      mailbox_(std::make_shared<Mailbox>()),
      connection_(Connection::Create(options_, mailbox_)),
      random_(SeededHash(options_.epoch, "retry", options_.id)),
      residuals_(ResidualFile(options_)) {}

Participant::~Participant() { connection_->Close(""); }

absl::Status Participant::Run() {
  if (ran_.exchange(true)) {
    return absl::FailedPreconditionError("Client::Run was called before; make a new Client");
  }
  if (!mailbox_->ending()) connection_->Start();
  absl::Status end = Loop();
  connection_->Close(absl::IsCancelled(end) ? "shut down" : "");
  return end;
}

void Participant::Shutdown() { mailbox_->PostShutdown(); }

ClientStats Participant::stats() const {
  ClientStats stats;
  stats.rounds_trained = counters_.rounds_trained;
  stats.accepted = counters_.accepted;
  stats.included = counters_.included;
  stats.reconnects = std::max<uint64_t>(counters_.joins, 1) - 1;
  stats.uploaded_bytes = counters_.uploaded_bytes;
  stats.downloaded_bytes = counters_.downloaded_bytes;
  return stats;
}

absl::Status Participant::Loop() {
  while (true) {
    mailbox_->SetWork(0, "idle");
    Event event = mailbox_->Next();
    if (auto* end = std::get_if<End>(&event.what)) return end->status;
    if (auto* joined = std::get_if<v1::Joined>(&event.what)) {
      RETURN_IF_ERROR(Handle(*joined));
    } else if (auto* outcome = std::get_if<v1::Outcome>(&event.what)) {
      Handle(*outcome);
    } else if (const auto* trouble = std::get_if<Trouble>(&event.what)) {
      Handle(*trouble);
    } else {
      Handle(std::move(event));
    }
  }
}

absl::Status Participant::Handle(const v1::Joined& joined) {
  ++counters_.joins;
  if (joined.run() != run_) {
    // Rounds of another run have nothing to do with what is kept of the last.
    open_.reset();
    settled_round_ = 0;
    run_ = joined.run();
  }
  if (layout_ == nullptr || layout_->hash() != joined.layout_hash()) {
    auto layout = aggregation::ModelLayout::FromProto(joined.layout());
    if (!layout.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("run \"", run_,
                       "\": the aggregator's layout does not hold: ", layout.status().message()));
    }
    if ((*layout)->hash() != joined.layout_hash()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "run \"", run_, "\": the layout's hash is ", absl::BytesToHexString((*layout)->hash()),
          ", the aggregator says ", absl::BytesToHexString(joined.layout_hash()),
          "; client and aggregator are of different releases"));
    }
    layout_ = *std::move(layout);
  }
  if (const std::string note = residuals_.Bind(run_, layout_->hash()); !note.empty()) {
    trainer_->OnNotice(note);
  }
  const uint64_t pending = PendingRound();
  if (pending == 0) return absl::OkStatus();
  // An aggregator that this client is new to knows nothing of what another has counted.
  if (joined.last_outcome().round() == pending && joined.last_outcome().included()) {
    Settle(joined.last_outcome());
  } else if (joined.last_outcome().round() == pending || joined.committed_round() >= pending) {
    Inquire();
  }
  return absl::OkStatus();
}

uint64_t Participant::PendingRound() const {
  if (open_.has_value()) return open_->key.round;
  return residuals_.pending() ? residuals_.pending_round() : 0;
}

bool Participant::Inquire(const TaskKey* task) {
  const uint64_t round = PendingRound();
  const Uplink uplink = mailbox_->uplink();
  if (!uplink.answers_inquiries) {
    v1::Outcome unknown;
    unknown.set_round(round);
    unknown.set_reason("its outcome was missed while away");
    Settle(unknown);
    return true;
  }
  v1::SessionRequest request;
  request.mutable_inquiry()->set_round(round);
  connection_->Send(std::move(request));
  std::optional<v1::Outcome> told;
  // Where its task comes again, nothing is over, and the aggregator waits for us.
  const auto over = [&] {
    return mailbox_->ending() || mailbox_->Lost(uplink.generation) || mailbox_->HasTask(round);
  };
  const auto known = [&] {
    if (!told.has_value()) told = mailbox_->TakeOutcome(round);
    return told.has_value() || over();
  };
  // No patience of its own: heartbeats tell whether the aggregator lives, and rounds end. But what
  // it waits for may be the end of a round that waits for it.
  mailbox_->Wait(kQuickAnswer, known);
  const std::string why = absl::StrCat("it awaits the outcome of round ", round);
  bool declined = false;
  while (!known()) {
    if (task != nullptr && !std::exchange(declined, true)) Decline(*task, why);
    std::optional<TaskKey> other;
    mailbox_->Wait(absl::InfiniteDuration(), [&] {
      if (!other.has_value()) other = mailbox_->TakeTaskBut(round);
      return other.has_value() || known();
    });
    if (other.has_value()) Decline(*other, why);
  }
  if (!told.has_value()) return false;
  Settle(*told);
  return !declined;
}

void Participant::Handle(const v1::Outcome& outcome) {
  if (outcome.ask()) {
    if (outcome.round() == PendingRound()) Inquire();
    return;
  }
  // Learnt on joining, and told again.
  const bool mine = open_.has_value() && open_->key.round == outcome.round();
  if (outcome.round() == settled_round_ && !mine) return;
  if (outcome.answer() && outcome.round() != PendingRound()) return;  // it came too late
  Settle(outcome);
}

void Participant::Handle(const Trouble& trouble) {
  const std::string why = ExplainTls(
      trouble.endpoint, options_.tls == nullptr ? nullptr : &options_.tls->options(), kProbeLimit);
  if (!why.empty()) trainer_->OnNotice(absl::StrCat("aggregator ", trouble.endpoint, ": ", why));
}

void Participant::Settle(const v1::Outcome& outcome) {
  const uint64_t round = outcome.round();
  const bool pending = residuals_.pending() && residuals_.pending_round() == round;
  const bool mine = open_.has_value() && open_->key.round == round;
  if (outcome.included()) {
    residuals_.Commit(round);
  } else {
    residuals_.Rollback(round);
  }
  if (pending) SaveResiduals();
  mailbox_->SetCommittedRound(round);
  settled_round_ = round;
  // An update of an earlier life: this one's trainer has not made it.
  if (pending && !mine) return;
  RoundOutcome told;
  told.round = round;
  told.committed = outcome.committed();
  told.included = outcome.included();
  told.reason = outcome.reason();
  if (!told.included && mine && !open_->note.empty()) {
    told.reason =
        told.reason.empty() ? open_->note : absl::StrCat(told.reason, " (", open_->note, ")");
  }
  if (told.included) ++counters_.included;
  if (mine) open_.reset();
  trainer_->OnOutcome(told);
}

void Participant::SaveResiduals() {
  if (const absl::Status saved = residuals_.Save(); !saved.ok()) {
    trainer_->OnNotice(std::string(saved.message()));
  }
}

std::string Participant::WhyNotMine(const v1::RoundSpec& spec) const {
  if (spec.run() != run_) {
    return absl::StrCat("the task is of run \"", spec.run(), "\", the session of run \"", run_,
                        "\"");
  }
  if (spec.layout_hash() != layout_->hash()) return "the task has another layout than the session";
  if (spec.base_sha256().size() != 32) return "the task names no base model";
  return "";
}

void Participant::Handle(Event event) {
  v1::Task& task = std::get<v1::Task>(event.what);
  const TaskKey key = KeyOf(task.spec());
  if (mailbox_->Superseded(key)) return;
  if (const std::string why = WhyNotMine(task.spec()); !why.empty()) return Decline(key, why);
  if (key.kind == v1::TRAIN) {
    if (open_.has_value() && open_->key == key) {
      if (event.sequence <= open_->covered) return;
      if (open_->delta.segments != nullptr) return SendUpdate();
      if (!open_->note.empty()) return Decline(key, open_->note);
    } else if (PendingRound() != 0 && PendingRound() != key.round) {
      if (!Inquire(&key) || mailbox_->Superseded(key)) return;
    }
    open_.reset();                                        // the same round anew, from another base
    if (key.round <= settled_round_) settled_round_ = 0;  // the run was resumed from before
  } else if (key.kind != v1::EVALUATE) {
    return Decline(key,
                   absl::StrCat("this client does not know tasks of kind ", task.spec().kind()));
  }
  absl::StatusOr<ModelBytes> base = FetchModel(&task, key);
  if (!base.ok()) {
    // Where the session was lost or the round is over, nobody waits for an answer.
    if (!absl::IsCancelled(base.status())) Decline(key, std::string(base.status().message()));
    return;
  }
  TrainTask work{std::move(*task.mutable_spec()), layout_, *std::move(base)};
  work.received = event.came;
  for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
    work.memory.push_back(residuals_.Committed(t, Kept::kMemory));
  }
  if (key.kind == v1::TRAIN) {
    Train(work, key);
  } else {
    Evaluate(work, key);
  }
}

void Participant::Evaluate(const TrainTask& task, const TaskKey& key) {
  mailbox_->SetWork(key.round, "evaluate");
  absl::StatusOr<std::vector<v1::Metric>> metrics = trainer_->Evaluate(task);
  if (!metrics.ok()) return Decline(key, std::string(metrics.status().message()));
  const google::protobuf::RepeatedPtrField<v1::Metric> listed(metrics->begin(), metrics->end());
  auto sums = aggregation::MetricsToSums(listed);
  if (!sums.ok()) return Decline(key, std::string(sums.status().message()));
  v1::Report report;
  report.set_contributors(1);
  *report.mutable_metrics() = *std::move(sums);
  Report(std::move(report), key);
}

void Participant::Train(const TrainTask& task, const TaskKey& key) {
  mailbox_->SetWork(key.round, "train");
  absl::StatusOr<TrainResult> result =
      trainer_->Train(task, [this, &key] { return mailbox_->Over(key); });
  if (!result.ok()) return Decline(key, std::string(result.status().message()));
  ++counters_.rounds_trained;
  if (mailbox_->Over(key)) return;
  const absl::StatusOr<int64_t> weight =
      aggregation::WeightUnits(result->weight, task.spec.grid().weight_fraction_bits());
  if (!weight.ok()) return Decline(key, std::string(weight.status().message()));
  OpenRound round;
  round.key = key;
  v1::UploadHeader& header = round.header;
  header.set_run(run_);
  header.set_round(key.round);
  header.set_id(options_.id);
  header.set_epoch(options_.epoch);
  header.set_base_version(task.spec.base_version());
  header.set_layout_hash(layout_->hash());
  header.set_weight(*weight);
  header.mutable_metrics()->Assign(result->metrics.begin(), result->metrics.end());
  absl::StatusOr<EncodedDelta> delta = EncodeResult(task, *std::move(result));
  if (!delta.ok()) return Decline(key, std::string(delta.status().message()));
  if (delta->largest.has_value()) {
    v1::Metric* const largest = header.add_metrics();
    largest->set_name(compression::kLargestMetric);
    largest->set_value(std::min(*delta->largest, 4096.0f));  // what a metric may be
    largest->set_weight(1);
  }
  header.set_encoded_bytes(delta->bytes);
  round.delta = *std::move(delta);
  open_ = std::move(round);
  SendUpdate();
}

absl::StatusOr<EncodedDelta> Participant::EncodeResult(const TrainTask& task, TrainResult result) {
  if (const auto segments = result.encoded;
      segments != nullptr && segments == last_encoded_.lock()) {
    EncodedDelta delta = last_delta_;
    delta.segments = segments;
    return delta;
  }
  if (codec_ == nullptr || codec_spec_ != task.spec.codec()) {
    ASSIGN_OR_RETURN(codec_, codecs_(task.spec.codec()));
    codec_spec_ = task.spec.codec();
  }
  const bool finished = result.encoded != nullptr;
  const bool feedback = KeepsState(*codec_, result);
  ASSIGN_OR_RETURN(EncodedDelta delta, Encode(*layout_, *codec_, task.spec, options_.id,
                                              std::move(result), &residuals_));
  if (feedback) SaveResiduals();  // before a byte is sent: a new life knows what was left behind
  if (finished) {
    last_encoded_ = delta.segments;
    last_delta_ = {nullptr, delta.bytes, delta.crc32c, {}};
  }
  return delta;
}

void Participant::Report(v1::Report report, const TaskKey& key) {
  report.set_round(key.round);
  report.set_kind(key.kind);
  v1::SessionRequest request;
  *request.mutable_report() = std::move(report);
  connection_->Send(std::move(request));
}

void Participant::Decline(const TaskKey& key, const std::string& why) {
  v1::Report report;
  report.set_declined(why.empty() ? "the client gave no reason" : why);
  Report(std::move(report), key);
}

void Participant::Pause(absl::Duration wait, const std::function<bool()>& interrupted) {
  mailbox_->Wait(wait, interrupted);
}

absl::Duration Participant::Backoff(uint32_t failures) {
  return JitteredBackoff(options_.backoff_min, options_.backoff_max, failures, &random_);
}

}  // namespace tributary::client::internal
