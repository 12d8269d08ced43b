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
// A Join is kept for as long as its session.
constexpr size_t kMostJoinBytes = 4096;
// Messages that the handler has not come to yet; then the stream is not read, and gRPC's flow
// control holds the peer. Racks have more to say: claims, and words on them.
constexpr int kMostUnhandled = 16;
constexpr int kMostUnhandledOfARack = 256;
// But an aggregator's claims are answered at once, whatever their number.
static_assert(kMostClaims * (kMostIdBytes + kBesideAnId) / kMostIdsInMessage < kMostQueued - 16);
}  // namespace

SessionReactor* SessionReactor::Start(DoorState* door, grpc::CallbackServerContext* context) {
  auto reactor = std::shared_ptr<SessionReactor>(new SessionReactor(door, context));
  reactor->self_ = reactor;
  door->watch.Add(reactor);
  HandOver(&reactor->self_);
  if (door->sessions.fetch_add(1) >= door->max_sessions) {
    reactor->FinishWith(grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("this aggregator holds ", door->max_sessions,
                     " sessions, its limit; try another, or raise [limits] max_sessions")));
    HandOver(reactor.get());  // nothing begins before gRPC has been given it
  } else {
    HandOver(&reactor->request_);
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
  if (join.ByteSizeLong() > kMostJoinBytes) {
    return absl::InvalidArgumentError(absl::StrCat("Join has ", join.ByteSizeLong(),
                                                   " bytes; at most ", kMostJoinBytes,
                                                   " are allowed: shorten its run or software"));
  }
  if (join.role() != v1::CLIENT && join.role() != v1::AGGREGATOR) {
    return absl::InvalidArgumentError("Join.role is neither CLIENT nor AGGREGATOR");
  }
  return absl::OkStatus();
}

void SessionReactor::OnReadDone(bool ok) {
  const Reaction in_order(&request_, this);
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
    {
      std::lock_guard lock(mu_);
      ++unhandled_;
    }
    door_->handler->OnMessage(self_, std::move(request_));
  }
  request_.Clear();
  ReadOn();
}

void SessionReactor::ReadOn() {
  {
    std::lock_guard lock(mu_);
    read_waits_ =
        unhandled_ >= (join_.role() == v1::AGGREGATOR ? kMostUnhandledOfARack : kMostUnhandled);
    if (read_waits_) return;
  }
  HandOver(&request_);
  StartRead(&request_);
}

void SessionReactor::Handled() {
  {
    std::lock_guard lock(mu_);
    --unhandled_;
    if (!read_waits_ || finished_) return;
    read_waits_ = false;
    ++busy_;
  }
  HandOver(&request_);
  StartRead(&request_);
  {
    std::lock_guard lock(mu_);
    --busy_;
  }
  Step();
}

void SessionReactor::CutIfSilent(absl::Duration now, const Patience& patience) {
  if (!joined_ && now - last_heard() > patience.session) {
    FinishWith(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no Join came"));
  }
  {
    std::lock_guard lock(mu_);
    if (!want_finish_ || finished_ || now - finish_asked_ <= patience.session) return;
  }
  Cancel();
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
    finish_asked_ = MonotonicNow();
    status_ = status;
  }
  Step();
}

void SessionReactor::Cancel() {
  {
    std::lock_guard lock(mu_);
    if (finished_) return;
    ++busy_;
    if (!want_finish_) finish_asked_ = MonotonicNow();
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
    HandOver(&queue_);
    StartWrite(write);
  } else {
    HandOver(this);
    grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>::Finish(status);
  }
}

void SessionReactor::OnWriteDone(bool ok) {
  const Reaction in_order(&queue_, this);
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

// The peer is gone, or this node shuts down. Where the stream is not being read, nothing else says
// so.
void SessionReactor::OnCancel() {
  const Reaction in_order(&self_, this);
  FinishWith(grpc::Status(grpc::StatusCode::CANCELLED, "the session was cut off"));
}

void SessionReactor::OnDone() {
  TakeOver(this);
  door_->watch.Remove(this);
  door_->sessions.fetch_sub(1);
  if (joined_) door_->handler->OnSessionEnd(self_);
  HandOver(door_);
  // The last thing: this may destroy the reactor.
  const std::shared_ptr<SessionReactor> self = std::move(self_);
}

}  // namespace tributary::server::door
