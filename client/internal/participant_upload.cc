// Sending an update until it is in, and what becomes of it when it is not.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/for_good.h"
#include "client/internal/participant.h"
#include "client/internal/upload_call.h"

namespace tributary::client::internal {

void Participant::SendUpdate() {
  const TaskKey key = open_->key;
  mailbox_->SetWork(key.round, "upload");
  while (true) {
    const Uplink uplink = mailbox_->uplink();
    // The round's outcome is no reason to break off: the answer, which came first, may be under
    // way.
    const auto interrupted = [&] {
      return mailbox_->Superseded(key) || mailbox_->Lost(uplink.generation);
    };
    // Kept: where the round is still open, its task comes again.
    if (interrupted() || !AwaitGrant(uplink, interrupted)) return;
    const uint64_t covered = mailbox_->last_sequence();
    ++open_->attempts;
    const UploadAttempt attempt =
        Upload(uplink.channel, open_->header, open_->delta, mailbox_, interrupted);
    counters_.uploaded_bytes += attempt.sent_bytes;
    if (!attempt.response.ok() && interrupted()) return;
    absl::Duration wait;
    switch (Judge(attempt.response, &wait)) {
      case Next::kDone:
        open_->covered = covered;
        return;
      case Next::kLeft:
        return;
      case Next::kAgain:
        Pause(wait, interrupted);
    }
  }
}

bool Participant::AwaitGrant(const Uplink& uplink, const std::function<bool()>& interrupted) {
  const uint64_t bytes = open_->delta.bytes;
  if (!options_.offer_updates || uplink.offer_above_bytes == 0 ||
      bytes <= uplink.offer_above_bytes) {
    return true;
  }
  const TaskKey key = open_->key;
  v1::SessionRequest request;
  request.mutable_offer()->set_round(key.round);
  request.mutable_offer()->set_encoded_bytes(bytes);
  mailbox_->ExpectGrant();
  connection_->Send(std::move(request));
  // No patience of its own: the session's heartbeats tell whether the aggregator lives, and the
  // round's end whether there is something to wait for.
  const auto over = [&] { return interrupted() || mailbox_->Over(key); };
  mailbox_->Wait(absl::InfiniteDuration(), [&] { return over() || mailbox_->Granted(key.round); });
  return !over();
}

Participant::Next Participant::Judge(const absl::StatusOr<v1::UploadResponse>& answer,
                                     absl::Duration* wait) {
  if (!answer.ok()) {
    const std::string why(answer.status().message());
    if (!ForGood(answer.status())) return Retry(why, 0, wait);
    Drop(absl::StrCat("rejected: ", why));
    return Next::kDone;
  }
  const std::string why = absl::StrCat(answer->reason(), ": ", answer->message());
  switch (answer->status()) {
    case v1::UploadResponse::ACCEPTED:
    case v1::UploadResponse::DUPLICATE:
      if (!std::exchange(open_->accepted, true)) ++counters_.accepted;
      return Next::kDone;
    case v1::UploadResponse::STALE:
      // Without a note: should its task come again, the round is open again, and trained for anew.
      open_->delta.segments = nullptr;
      return Next::kDone;
    case v1::UploadResponse::REJECTED:
      Drop(absl::StrCat("rejected: ", why));
      return Next::kDone;
    case v1::UploadResponse::RETRY_ELSEWHERE: {
      const Next next = Retry(why, answer->retry_after_ms(), wait);
      if (next != Next::kAgain) return next;
      connection_->MoveOn(*wait);
      return Next::kLeft;
    }
    default:
      return Retry(why, answer->retry_after_ms(), wait);
  }
}

Participant::Next Participant::Retry(const std::string& why, uint64_t retry_after_ms,
                                     absl::Duration* wait) {
  if (open_->attempts >= options_.upload_attempts) {
    Drop(absl::StrCat("given up after ", open_->attempts,
                      " attempts at uploading; the last: ", why));
    Decline(open_->key, open_->note);
    return Next::kDone;
  }
  *wait = std::max(
      Backoff(open_->attempts),
      absl::Milliseconds(static_cast<int64_t>(std::min<uint64_t>(retry_after_ms, 3'600'000))));
  return Next::kAgain;
}

void Participant::Drop(const std::string& why) {
  open_->delta.segments = nullptr;
  open_->note = why;
}

}  // namespace tributary::client::internal
