// How the base model of a task is come by: held, in the task, or downloaded; whole, or as steps
// from the one that is held.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "aggregation/model_delta.h"
#include "base/checksum.h"
#include "base/status.h"
#include "client/internal/download_call.h"
#include "client/internal/participant.h"

namespace tributary::client::internal {
namespace {

// A client whose arithmetic is another one's downloads steps in vain each round: it stops asking.
constexpr int kMostBadChains = 3;

ByteSpan BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

void Participant::Keep(std::vector<uint8_t> bytes, const std::string& sha256) {
  // Not a const vector: Advance may take it back.
  model_ = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  model_sha256_ = sha256;
  mailbox_->SetHeld(sha256);
}

void Participant::DropModel() {
  model_ = nullptr;
  model_sha256_.clear();
  mailbox_->SetHeld("");
}

absl::Status Participant::Advance(const v1::DeltaChain& chain, ByteSpan deltas,
                                  const TaskKey& key) {
  std::vector<uint8_t> bytes;
  // Where the trainer has kept it, it is copied.
  if (model_.use_count() == 1) {
    bytes = std::move(*std::const_pointer_cast<std::vector<uint8_t>>(model_));
  } else {
    bytes = *model_;
  }
  DropModel();
  absl::Status status = aggregation::ApplyChain(*layout_, chain, deltas, bytes);
  if (status.ok()) {
    if (const std::string sha256 = Sha256Of(bytes); sha256 != key.base_sha256) {
      status = absl::DataLossError(absl::StrCat("their SHA-256 is ", absl::BytesToHexString(sha256),
                                                ", the task says ",
                                                absl::BytesToHexString(key.base_sha256)));
    }
  }
  if (status.ok()) {
    bad_chains_ = 0;
    Keep(std::move(bytes), key.base_sha256);
    return status;
  }
  trainer_->OnNotice(absl::StrCat(
      "round ", key.round, ": ", chain.steps_size(), " steps from the model held do not lead to ",
      "the round's base model (", status.message(), "); it is downloaded whole",
      ++bad_chains_ < kMostBadChains ? ""
                                     : ", from now on always: look for what this machine "
                                       "computes otherwise than the aggregator"));
  return status;
}

absl::StatusOr<ModelBytes> Participant::FetchModel(v1::Task* task, const TaskKey& key) {
  if (!options_.wants_model) return ModelBytes();
  const bool holds = model_ != nullptr && model_->size() == layout_->model_bytes();
  if (holds && model_sha256_ == key.base_sha256) return model_;
  const std::string& inlined = task->model();
  const v1::DeltaChain& chain = task->chain();
  if (chain.steps_size() > 0) {
    if (holds && model_sha256_ == chain.base_sha256() &&
        aggregation::ChainFits(*layout_, chain, inlined.size()) &&
        Advance(chain, BytesOf(inlined), key).ok()) {
      return model_;
    }  // else the steps are not for this client, or came to nothing
  } else if (!inlined.empty() || layout_->model_bytes() == 0) {
    std::vector<uint8_t> bytes(inlined.begin(), inlined.end());
    if (bytes.size() == layout_->model_bytes() && Sha256Of(bytes) == key.base_sha256) {
      Keep(std::move(bytes), key.base_sha256);
      return model_;
    }  // else it was damaged: the whole one may be had
  }
  // Where no steps can come, there is room for the next one.
  if (!holds || task->spec().downlink_codec().empty() || bad_chains_ >= kMostBadChains) DropModel();
  return DownloadModel(key, task->spec().has_asynchronous());
}

absl::StatusOr<ModelBytes> Participant::DownloadModel(const TaskKey& key, bool asynchronous) {
  mailbox_->SetWork(key.round, "download");
  DownloadTarget target;
  target.request.set_run(run_);
  target.request.set_id(options_.id);
  target.request.set_sha256(key.base_sha256);
  target.layout = layout_;
  absl::Status error;
  for (uint32_t attempt = 1; attempt <= options_.upload_attempts;) {
    const Uplink uplink = mailbox_->uplink();
    const auto interrupted = [&] {
      return mailbox_->Over(key) || mailbox_->Lost(uplink.generation);
    };
    if (interrupted()) return absl::CancelledError("the round is over or the session lost");
    target.request.set_held_sha256(model_sha256_);
    absl::StatusOr<Downloaded> got =
        Download(uplink.channel, target, mailbox_, interrupted, &counters_.downloaded_bytes);
    if (got.ok() && got->chain.steps_size() == 0) {
      Keep(std::move(got->bytes), key.base_sha256);
      return model_;
    }
    if (got.ok()) {
      if (Advance(got->chain, got->bytes, key).ok()) return model_;
      continue;  // nothing is held now: the next answer is the whole model
    }
    error = got.status();
    // Damaged: should it be for the steps, the whole model helps.
    if (absl::IsDataLoss(error)) DropModel();
    // Another version has been made since: declined, it is given a task for that.
    if (asynchronous && absl::IsNotFound(error)) break;
    Pause(Backoff(attempt++), interrupted);
  }
  return Annotate(error, absl::StrCat("the base model could not be fetched in ",
                                      options_.upload_attempts, " attempts"));
}

}  // namespace tributary::client::internal
