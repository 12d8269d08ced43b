// One control stream: Join first, then messages both ways; writes queue, one in flight.
#include <algorithm>
#include <utility>

#include "aggregation/round.h"
#include "base/status.h"
#include "server/claim_messages.h"
#include "server/door/reactors.h"

namespace tributary::server::door {
namespace {

using aggregation::kMostClaims;
using aggregation::kMostIdBytes;

// A healthy peer reads a task and an outcome a round; this many unread means that it does not read.
constexpr size_t kMostQueued = 64;
// But an aggregator's claims are answered at once, whatever their number.
static_assert(kMostClaims * (kMostIdBytes + kBesideAnId) / kMostIdsInMessage < kMostQueued - 16);
}  // namespace

SessionReactor* SessionReactor::Start(DoorState* door, grpc::CallbackServerContext* context) {
  auto reactor = std::shared_ptr<SessionReactor>(new SessionReactor(door, context));
  reactor->self_ = reactor;
  if (door->sessions.fetch_add(1) >= door->max_sessions) {
    reactor->FinishWith(grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("this aggregator holds ", door->max_sessions,
                     " sessions, its limit; try another, or raise [limits] max_sessions")));
  } else {
    reactor->StartRead(&reactor->request_);
  }
  return reactor.get();
}

SessionReactor::SessionReactor(DoorState* door, grpc::CallbackServerContext* context)
    : door_(door),
      context_(context),
      peer_(context->peer()),
      last_heard_(absl::ToInt64Nanoseconds(MonotonicNow())) {}

absl::Status SessionReactor::CheckJoin() const {
  if (!request_.has_join()) {
    return absl::InvalidArgumentError("the first message of a session must be Join");
  }
  const v1::Join& join = request_.join();
  if (join.protocol() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("protocol ", join.protocol(),
                     " is not known here (1 is); use a client of the same release"));
  }
  if (join.id().empty() || join.id().size() > kMostIdBytes ||
      std::any_of(join.id().begin(), join.id().end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20; })) {
    return absl::InvalidArgumentError(absl::StrCat("Join.id has ", join.id().size(),
                                                   " bytes or control characters; 1 to ",
                                                   kMostIdBytes, " printable bytes are allowed"));
  }
  if (join.role() != v1::CLIENT && join.role() != v1::AGGREGATOR) {
    return absl::InvalidArgumentError("Join.role is neither CLIENT nor AGGREGATOR");
  }
  return absl::OkStatus();
}

void SessionReactor::OnReadDone(bool ok) {
  if (!ok) {
    FinishWith(grpc::Status::OK);
    return;
  }
  last_heard_ = absl::ToInt64Nanoseconds(MonotonicNow());
  if (!joined_) {
    if (const absl::Status status = CheckJoin(); !status.ok()) {
      FinishWith(grpc::Status(static_cast<grpc::StatusCode>(status.code()), Text(status)));
      return;
    }
    join_ = std::move(*request_.mutable_join());
    joined_ = true;
    door_->handler->OnJoin(self_);
  } else if (!request_.has_join()) {
    door_->handler->OnMessage(self_, std::move(request_));
  }
  request_.Clear();
  StartRead(&request_);
}

void SessionReactor::Send(std::shared_ptr<const v1::SessionResponse> message) {
  bool too_slow = false;
  {
    std::lock_guard lock(mu_);
    if (want_finish_ || finished_) return;
    queue_.push_back(std::move(message));
    too_slow = queue_.size() > kMostQueued;
  }
  if (too_slow) {
    Cancel();
    return;
  }
  Step();
}

void SessionReactor::FinishWith(const grpc::Status& status) {
  {
    std::lock_guard lock(mu_);
    if (want_finish_) return;
    want_finish_ = true;
    status_ = status;
  }
  Step();
}

void SessionReactor::Cancel() {
  {
    std::lock_guard lock(mu_);
    if (finished_) return;
    ++busy_;
    want_finish_ = true;
    status_ = grpc::Status(grpc::StatusCode::CANCELLED, "cut off by the aggregator");
    // What is not being written yet will never be.
    if (queue_.size() > 1) queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
  }
  context_->TryCancel();
  {
    std::lock_guard lock(mu_);
    --busy_;
  }
  Step();
}

void SessionReactor::Step() {
  const v1::SessionResponse* write = nullptr;
  grpc::Status status;
  {
    std::lock_guard lock(mu_);
    if (finished_ || writing_ || busy_ > 0) return;
    if (!queue_.empty()) {
      writing_ = true;
      write = queue_.front().get();
    } else if (want_finish_) {
      finished_ = true;
      status = status_;
    } else {
      return;
    }
  }
  if (write != nullptr) {
    StartWrite(write);
  } else {
    grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>::Finish(status);
  }
}

void SessionReactor::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mu_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      queue_.clear();
      want_finish_ = true;
    }
  }
  Step();
}

void SessionReactor::OnDone() {
  door_->sessions.fetch_sub(1);
  if (joined_) door_->handler->OnSessionEnd(self_);
  // The last thing: this may destroy the reactor.
  const std::shared_ptr<SessionReactor> self = std::move(self_);
}

}  // namespace tributary::server::door
