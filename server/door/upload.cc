// One upload: header -> the handler admits -> segments are checked as they come -> trailer.
#include <utility>

#include "base/status.h"
#include "server/door/reactors.h"

namespace tributary::server::door {

UploadReactor* UploadReactor::Start(DoorState* door, grpc::CallbackServerContext* context,
                                    grpc::ByteBuffer* response) {
  auto reactor = std::shared_ptr<UploadReactor>(new UploadReactor(door, context, response));
  reactor->self_ = reactor;
  door->watch.Add(reactor);
  HandOver(&reactor->self_);
  HandOver(&reactor->message_);
  reactor->StartRead(&reactor->message_);
  return reactor.get();
}

UploadReactor::UploadReactor(DoorState* door, grpc::CallbackServerContext* context,
                             grpc::ByteBuffer* response)
    : door_(door),
      response_(response),
      peer_(context->peer()),
      last_progress_(absl::ToInt64Nanoseconds(MonotonicNow())) {}

void UploadReactor::OnReadDone(bool ok) {
  const Reaction in_order(&message_, this);
  last_progress_ = absl::ToInt64Nanoseconds(MonotonicNow());
  if (ok) {
    TakeMessage();
    return;
  }
  if (complete_) return;  // the end of a whole upload
  if (!started_) {
    v1::UploadResponse response;
    response.set_status(v1::UploadResponse::REJECTED);
    response.set_reason("malformed");
    response.set_message("the upload ended before its header");
    Reply(response);
    return;
  }
  Fail({});
}

void UploadReactor::Fail(aggregation::Refusal refusal) {
  complete_ = true;
  assembler_.reset();
  door_->handler->OnUploadFailed(shared_from_this(), std::move(refusal));
}

void UploadReactor::TakeMessage() {
  auto slices = MessageSlices::From(&message_);
  message_.Clear();
  absl::StatusOr<UploadMessage> parsed = slices.ok()
                                             ? ParseUploadMessage((*slices)->bytes())
                                             : absl::StatusOr<UploadMessage>(slices.status());
  const bool header_missing = parsed.ok() && !started_ && !parsed->header.has_value();
  if (!parsed.ok() || header_missing || (parsed->header.has_value() && started_)) {
    const std::string why = !parsed.ok()     ? std::string(parsed.status().message())
                            : header_missing ? "the first message of an upload has no header"
                                             : "the upload has a second header";
    if (started_) {
      Fail({"malformed", why});
      return;
    }
    v1::UploadResponse response;
    response.set_status(v1::UploadResponse::REJECTED);
    response.set_reason("malformed");
    response.set_message(why);
    Reply(response);
    return;
  }
  slices_ = *std::move(slices);
  parsed_ = *std::move(parsed);
  if (!started_) {
    started_ = true;
    door_->watch.Remove(this);  // from here the handler looks after it
    header_ = std::move(*parsed_.header);
    door_->handler->OnUploadStart(shared_from_this());  // goes on in Admit, or ends in Reply
    return;
  }
  TakeContent();
}

void UploadReactor::Admit(std::unique_ptr<aggregation::UpdateAssembler> assembler) {
  assembler_ = std::move(assembler);
  last_progress_ = absl::ToInt64Nanoseconds(MonotonicNow());
  TakeContent();
}

void UploadReactor::TakeContent() {
  door_->counters.upload_bytes += parsed_.segments.size();
  if (parsed_.segments.size() > 0 && !assembler_->Add(parsed_.segments, slices_)) {
    Fail(assembler_->refusal());
    return;
  }
  slices_.reset();
  if (!parsed_.trailer.has_value()) {
    ReadOn();
    return;
  }
  auto update = assembler_->Finish(parsed_.trailer->encoded_bytes(), parsed_.trailer->crc32c());
  if (update == nullptr) {
    Fail(assembler_->refusal());
    return;
  }
  complete_ = true;
  assembler_.reset();
  parsed_ = {};
  door_->handler->OnUploadComplete(shared_from_this(), std::move(update));
}

void UploadReactor::ReadOn() {
  bool ended = false;
  {
    std::lock_guard lock(mu_);
    ended = replied_;
    if (!ended) ++busy_;
  }
  if (ended) {  // answered or cancelled while it waited to be admitted
    Fail({});
    return;
  }
  HandOver(&message_);
  StartRead(&message_);
  {
    std::lock_guard lock(mu_);
    --busy_;
  }
  FinishIfDue();
}

void UploadReactor::CutIfSilent(absl::Duration now, const Patience& patience) {
  if (now - last_progress() <= patience.session) return;
  v1::UploadResponse response;
  response.set_status(v1::UploadResponse::RETRY);
  response.set_message("no header came; send it first");
  Reply(response);
}

void UploadReactor::Reply(const v1::UploadResponse& response) {
  {
    std::lock_guard lock(mu_);
    if (replied_) return;
    replied_ = true;
    answer_ = response;
  }
  FinishIfDue();
}

void UploadReactor::FinishIfDue() {
  {
    std::lock_guard lock(mu_);
    if (!replied_ || finished_ || busy_ > 0) return;
    finished_ = true;
    *response_ = ToByteBuffer(answer_);
  }
  HandOver(this);
  Finish(grpc::Status::OK);
}

void UploadReactor::OnCancel() {
  const Reaction in_order(&self_, this);
  // The client is gone, or this node shuts down: without a Finish the call would never end.
  v1::UploadResponse response;
  response.set_status(v1::UploadResponse::RETRY_ELSEWHERE);
  response.set_reason("shutdown");
  Reply(response);
}

void UploadReactor::OnDone() {
  TakeOver(this);
  door_->watch.Remove(this);
  HandOver(door_);
  // The last thing: this may destroy the reactor.
  const std::shared_ptr<UploadReactor> self = std::move(self_);
}

}  // namespace tributary::server::door
