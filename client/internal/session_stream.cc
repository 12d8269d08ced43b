// The reactor of a session. It is started from outside gRPC's reactions too, so a hold keeps it
// from ending under a start: one hold while it is open, and one for the length of each start.
#include "client/internal/session_stream.h"

#include <utility>

#include "base/hand_over.h"

namespace tributary::client::internal {

SessionStream::SessionStream(std::shared_ptr<grpc::Channel> channel,
                             std::shared_ptr<SessionHandler> handler)
    : channel_(std::move(channel)),
      stub_(v1::Aggregator::NewStub(channel_)),
      handler_(std::move(handler)) {}

std::shared_ptr<SessionStream> SessionStream::Open(std::shared_ptr<grpc::Channel> channel,
                                                   v1::SessionRequest join,
                                                   std::shared_ptr<SessionHandler> handler) {
  std::shared_ptr<SessionStream> stream(new SessionStream(std::move(channel), std::move(handler)));
  stream->queue_.push_back(std::move(join));
  stream->self_ = stream;
  return stream;
}

void SessionStream::Start() {
  stub_->async()->Session(&context_, this);
  AddHold();
  {
    std::lock_guard lock(mu_);
    open_ = true;
  }
  HandOver(&response_);
  StartRead(&response_);
  StartCall();
  Step();
}

void SessionStream::Send(v1::SessionRequest message) {
  {
    std::lock_guard lock(mu_);
    if (want_finish_ || broken_) return;
    queue_.push_back(std::move(message));
  }
  Step();
}

bool SessionStream::idle() const {
  std::lock_guard lock(mu_);
  return queue_.empty();
}

void SessionStream::Finish() {
  {
    std::lock_guard lock(mu_);
    want_finish_ = true;
  }
  Step();
}

void SessionStream::Cancel() { context_.TryCancel(); }

void SessionStream::Step() {
  const v1::SessionRequest* next = nullptr;
  {
    std::lock_guard lock(mu_);
    if (!open_ || broken_ || writing_ || finishing_) return;
    if (!queue_.empty()) {
      writing_ = true;
      next = &queue_.front();  // stays where it is: only its own OnWriteDone removes it
    } else if (want_finish_) {
      finishing_ = true;
    } else {
      return;
    }
    AddHold();
  }
  if (next != nullptr) {
    HandOver(&queue_);
    StartWrite(next);
  } else {
    StartWritesDone();
  }
  HandOver(this);
  RemoveHold();
}

void SessionStream::OnReadDone(bool ok) {
  const Reaction in_order(&response_, this);
  if (!ok) {
    {
      std::lock_guard lock(mu_);
      open_ = false;
    }
    RemoveHold();
    return;
  }
  std::shared_ptr<SessionHandler> handler;
  {
    std::lock_guard lock(mu_);
    handler = handler_;
  }
  handler->OnStreamMessage(this, std::move(response_));
  response_.Clear();
  HandOver(&response_);
  StartRead(&response_);
}

void SessionStream::OnWriteDone(bool ok) {
  const Reaction in_order(&queue_, this);
  {
    std::lock_guard lock(mu_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      broken_ = true;
      queue_.clear();
    }
  }
  Step();
}

void SessionStream::OnDone(const grpc::Status& status) {
  TakeOver(this);
  std::shared_ptr<SessionHandler> handler;
  std::shared_ptr<SessionStream> self;
  {
    std::lock_guard lock(mu_);
    handler = std::move(handler_);
    self = std::move(self_);
  }
  handler->OnStreamEnd(
      std::move(self),
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
}

}  // namespace tributary::client::internal
