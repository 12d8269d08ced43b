// The collector's way of an update: offered -> admitted -> reserved -> received -> folded ->
// acknowledged.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "server/collector.h"

namespace tributary::server {

using aggregation::Admission;
using aggregation::Verdict;

namespace {

v1::UploadResponse Answer(v1::UploadResponse::Status status, const std::string& reason,
                          const std::string& message) {
  v1::UploadResponse response;
  response.set_status(status);
  response.set_reason(reason);
  response.set_message(message);
  return response;
}

}  // namespace

void Collector::OnUploadStart(std::shared_ptr<Upload> upload) {
  loop_->Post([this, upload = std::move(upload)] { UploadStart(upload); });
}
void Collector::OnUploadComplete(std::shared_ptr<Upload> upload,
                                 std::shared_ptr<const aggregation::EncodedUpdate> update) {
  loop_->Post([this, upload = std::move(upload), update = std::move(update)]() mutable {
    UploadComplete(upload, std::move(update));
  });
}
void Collector::OnUploadFailed(std::shared_ptr<Upload> upload, aggregation::Refusal refusal) {
  loop_->Post([this, upload = std::move(upload), refusal = std::move(refusal)] {
    UploadFailed(upload, refusal);
  });
}
void Collector::OnDownloaded(const std::string& id, absl::Duration took) {
  loop_->Post([this, id, took] {
    stragglers_.Downloaded(id, took);
    callbacks_.passed("download");
  });
}

// ---- Tickets

void Collector::Reserve(uint64_t ticket, uint64_t bytes, std::function<void()> granted) {
  budget_.Reserve(ticket, bytes, [this, ticket, bytes, granted = std::move(granted)] {
    const auto it = tickets_.find(ticket);
    if (it == tickets_.end()) return;
    it->second.reserved = bytes;
    granted();
  });
  // Who waits goes before who may never come back.
  if (budget_.waiting() > 0) UndoHalves();
}

bool Collector::Holds(uint64_t ticket, const std::shared_ptr<Upload>& upload) const {
  const auto it = tickets_.find(ticket);
  return it != tickets_.end() && it->second.upload == upload;
}

void Collector::Received(Ticket* ticket) {
  if (!std::exchange(ticket->receiving, false)) return;
  --receiving_;
  FoldIfNoMoreComes();
}

// What is whole need not wait for more to share its pass where nothing is on its way, nor in line
// but for memory that no pass is about to free.
void Collector::FoldIfNoMoreComes() {
  if (receiving_ > 0 || pacer_.unused() > 0) return;
  if (asks_.empty() || (budget_.waiting() > 0 && !pool_.Folding())) pool_.Flush();
}

void Collector::EndTicket(uint64_t ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return;
  Received(&it->second);
  const uint64_t reserved = it->second.reserved;
  const uint64_t ask = it->second.ask;
  const std::shared_ptr<PartialFold> fold = std::move(it->second.fold);
  tickets_.erase(it);
  if (fold != nullptr) {
    Undo(fold, reserved);
  } else if (reserved > 0) {
    budget_.Release(reserved);
  } else {
    budget_.Drop(ticket);
  }
  if (ask != 0) EndAsk(ask);
}

void Collector::RefuseTicket(uint64_t ticket, const std::string& reason) {
  EndTicket(ticket);
  AttemptRefused(ticket, reason);
}

// ---- Updates of clients

// Fills `response` and returns false where the header alone is reason enough.
bool Collector::CheckUpload(const v1::UploadHeader& header, v1::UploadResponse* response) {
  const auto reject = [&](const char* reason, const std::string& message) {
    *response = Answer(v1::UploadResponse::REJECTED, reason, message);
    return false;
  };
  if (stopped_.has_value()) {
    *response =
        Answer(v1::UploadResponse::RETRY_ELSEWHERE, "shutdown", "this aggregator is shutting down");
    return false;
  }
  if (header.run() != run_) {
    return reject("run",
                  absl::StrCat("run \"", header.run(), "\" is not served here, \"", run_, "\" is"));
  }
  const auto child = children_.find(header.id());
  if (child == children_.end() || child->second.aggregator ||
      child->second.epoch != header.epoch()) {
    return reject("session", absl::StrCat("\"", header.id(), "\" has no session of epoch ",
                                          header.epoch(), " here; join first"));
  }
  if (async_ == nullptr && !MayCarry(header) &&
      (machine_ == nullptr || spec_.kind() != v1::TRAIN)) {
    *response =
        Answer(v1::UploadResponse::STALE, "round",
               absl::StrCat("round ", header.round(), " is not open; wait for the next task"));
    return false;
  }
  if (header.layout_hash() != layout_->hash()) {
    return reject("layout", absl::StrCat("the update of \"", header.id(), "\" has layout ",
                                         absl::BytesToHexString(header.layout_hash().substr(0, 8)),
                                         ", the run's is ",
                                         absl::BytesToHexString(layout_->hash().substr(0, 8)),
                                         "; it was built from another model"));
  }
  // The evaluation of a round has its number and the model after it.
  if (async_ == nullptr && !MayCarry(header) && header.round() == spec_.round() &&
      header.base_version() != spec_.base_version()) {
    return reject("round", absl::StrCat("the update of \"", header.id(),
                                        "\" starts from model version ", header.base_version(),
                                        ", round ", spec_.round(), " from ", spec_.base_version()));
  }
  return true;
}

bool Collector::MayCarry(const std::string& id, uint64_t epoch, uint64_t round) const {
  if (stragglers_.late() != aggregation::Late::kCarry || stopped_.has_value()) return false;
  const auto child = children_.find(id);
  if (child == children_.end() || child->second.epoch != epoch) return false;
  if (machine_ != nullptr && spec_.kind() == v1::TRAIN) {
    return (!machine_->open() || machine_->part() > 0) && machine_->OwedRound(id) == round;
  }
  return child->second.owes != 0 && child->second.owes == round;
}

// One a client: else whoever offers again and again makes the list grow.
void Collector::Hold(const std::shared_ptr<Upload>& upload) {
  const auto old = std::find_if(held_.begin(), held_.end(), [&](const auto& other) {
    return other->header().id() == upload->header().id();
  });
  if (old == held_.end()) {
    held_.push_back(upload);
  } else {
    const auto replaced = std::exchange(*old, upload);
    replaced->Reply(
        Answer(v1::UploadResponse::STALE, "session", "a newer upload of this id replaced it"));
  }
  callbacks_.passed("hold");
}

void Collector::TakeHeld() {
  auto held = std::move(held_);
  held_.clear();
  for (const auto& upload : held) UploadStart(upload);
}

void Collector::UploadStart(const std::shared_ptr<Upload>& upload) {
  if (TakeUpload(upload)) return;
  // Whoever offered and sends another word than that update needs no place in the line. But it must
  // be the one who offered, not a former life of it, or a stranger.
  const v1::UploadHeader& header = upload->header();
  const auto child = children_.find(header.id());
  if (child != children_.end() && child->second.epoch == header.epoch()) EndOfferOf(header.id());
}

bool Collector::TakeUpload(const std::shared_ptr<Upload>& upload) {
  const v1::UploadHeader& header = upload->header();
  v1::UploadResponse response;
  if (!CheckUpload(header, &response)) {
    upload->Reply(response);
    return false;
  }
  if (MayCarry(header) || AwaitsClaim(header)) {
    Hold(upload);
    return false;
  }
  SeenUpload();
  const Admission admission = OfferUpdate(header);
  Rearm();  // a refused offer is an answer, and may be the last that the round waits for
  switch (admission.verdict) {
    case Verdict::kAdmit:
      break;
    case Verdict::kDuplicate:
      upload->Reply(Answer(v1::UploadResponse::DUPLICATE, admission.reason, admission.message));
      return false;
    case Verdict::kStale:
      upload->Reply(Answer(v1::UploadResponse::STALE, admission.reason, admission.message));
      return false;
    case Verdict::kReject:
      spdlog::warn("update of \"{}\" refused ({}): {}", header.id(), admission.reason,
                   admission.message);
      upload->Reply(Answer(v1::UploadResponse::REJECTED, admission.reason, admission.message));
      return false;
  }
  if (const auto old = tickets_.find(admission.replaces); old != tickets_.end()) {
    if (old->second.upload != nullptr) {
      old->second.upload->Reply(
          Answer(v1::UploadResponse::STALE, "session", "a newer upload of this id replaced it"));
    }
    EndTicket(admission.replaces);
  }
  stragglers_.OfferSeen(header.id(), loop_->Now());
  upload->ticket = admission.ticket;
  tickets_[admission.ticket].upload = upload;
  const uint64_t most = MostEncodedBytes();
  if (header.encoded_bytes() == 0 || header.encoded_bytes() > most) {
    const std::string message = absl::StrCat(
        "the update of \"", header.id(), "\" declares ", header.encoded_bytes(), " bytes; 1 to ",
        most, " are allowed by the layout and [limits] inflight_bytes");
    upload->Reply(Answer(v1::UploadResponse::REJECTED, "size", message));
    RefuseTicket(admission.ticket, "size");
    return false;
  }
  const auto weight = static_cast<int64_t>(admission.weight);
  Receive(upload, [this, upload, weight] {
    const v1::UploadHeader& h = upload->header();
    tickets_[upload->ticket].receiving = true;
    ++receiving_;
    auto assembler = std::make_unique<aggregation::UpdateAssembler>(layout_, grid_, h.id(), weight,
                                                                    h.encoded_bytes());
    assembler->Expect(sketched_);
    upload->Admit(std::move(assembler));
  });
  Rearm();
  return true;
}

void Collector::UploadComplete(const std::shared_ptr<Upload>& upload,
                               std::shared_ptr<const aggregation::EncodedUpdate> update) {
  const uint64_t ticket = upload->ticket;
  if (!Holds(ticket, upload)) return;  // answered already
  UploadRead(ticket);
  auto metrics = aggregation::MetricsToSums(upload->header().metrics());
  if (!metrics.ok()) {
    upload->Reply(Answer(v1::UploadResponse::REJECTED, "malformed", Text(metrics.status())));
    RefuseTicket(ticket, "malformed");
    return;
  }
  if (async_ != nullptr) {
    if (!TakeIntoBuffer(ticket, &update)) {
      if (const auto it = tickets_.find(ticket); it != tickets_.end()) Received(&it->second);
      return;
    }
  } else if (!machine_->Commit(ticket)) {
    const bool again = MayCarry(upload->header()) || MaySupplement(upload->header());
    upload->Reply(Answer(again ? v1::UploadResponse::RETRY : v1::UploadResponse::STALE, "round",
                         again ? "the round has closed; sent again, it may count yet"
                               : "the round closed while the update was on its way"));
    EndTicket(ticket);
    return;
  }
  tickets_[ticket].metrics = *std::move(metrics);
  last_upload_ = loop_->Now();
  stragglers_.Whole(upload->header().id(), update->encoded_bytes(), false, last_upload_);
  bytes_.from_clients += update->encoded_bytes();
  bytes_.below += update->encoded_bytes();
  pool_.Fold(
      std::move(update), [this, ticket] { loop_->Post([this, ticket] { Folded(ticket); }); },
      [this, ticket](uint64_t bytes) {
        loop_->Post([this, ticket, bytes] { Released(ticket, bytes); });
      });
  Received(&tickets_[ticket]);
  callbacks_.passed("upload");
}

void Collector::UploadFailed(const std::shared_ptr<Upload>& upload,
                             const aggregation::Refusal& refusal) {
  std::erase(held_, upload);
  if (!Holds(upload->ticket, upload)) return;
  const uint64_t ticket = upload->ticket;
  const std::string& id = upload->header().id();
  // Damage on the way is worth another try; content is not.
  const bool damaged = refusal.reason.empty() || refusal.reason == "checksum";
  if (damaged) {
    spdlog::warn("upload of \"{}\" for round {} {}", id, spec_.round(),
                 refusal.reason.empty() ? "broke off" : "was damaged on its way");
    upload->Reply(Answer(v1::UploadResponse::RETRY, refusal.reason, refusal.message));
    EndTicket(ticket);
    AttemptAborted(ticket);
    return;
  }
  spdlog::warn("update of \"{}\" for round {} refused ({}): {}", id, spec_.round(), refusal.reason,
               refusal.message);
  upload->Reply(Answer(v1::UploadResponse::REJECTED, refusal.reason, refusal.message));
  RefuseTicket(ticket, refusal.reason);
}

// What others have reported may leave no room, in the number of names or in a sum: a metric that
// does not fit is left out. The update that it came with counts, else one client could keep all
// others out.
void Collector::AddMetrics(const google::protobuf::RepeatedPtrField<v1::MetricSum>& metrics) {
  if (aggregation::MergeMetrics(metrics, &metrics_).ok()) return;
  google::protobuf::RepeatedPtrField<v1::MetricSum> one;
  for (const v1::MetricSum& metric : metrics) {
    one.Clear();
    *one.Add() = metric;
    const absl::Status status = aggregation::MergeMetrics(one, &metrics_);
    if (!status.ok())
      spdlog::warn("round {}: a metric is left out: {}", spec_.round(), Text(status));
  }
}

// What is folded of an update takes no memory any more.
void Collector::Released(uint64_t ticket, uint64_t bytes) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return;
  const uint64_t freed = std::min(bytes, it->second.reserved);
  it->second.reserved -= freed;
  budget_.Release(freed);
}

void Collector::Folded(uint64_t ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end() || (machine_ == nullptr && async_ == nullptr)) return;
  Ticket done = std::move(it->second);
  AddMetrics(done.metrics);
  EndTicket(ticket);
  FoldIfNoMoreComes();
  if (done.upload != nullptr) done.upload->Reply(Answer(v1::UploadResponse::ACCEPTED, "", ""));
  callbacks_.passed("fold");
  AttemptFolded(ticket);
}

}  // namespace tributary::server
