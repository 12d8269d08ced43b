// The session keeper.
#include "client/internal/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/internal/channels.h"
#include "client/internal/for_good.h"

namespace tributary::client::internal {
namespace {

constexpr absl::Duration kDefaultHeartbeat = absl::Seconds(5);  // where the aggregator names none
constexpr absl::Duration kGoodbye = absl::Seconds(1);

absl::Duration Now() { return RealClock().Monotonic(); }

}  // namespace

std::shared_ptr<Connection> Connection::Create(const ClientOptions& options,
                                               std::shared_ptr<Mailbox> mailbox) {
  return std::shared_ptr<Connection>(new Connection(options, std::move(mailbox)));
}

Connection::Connection(const ClientOptions& options, std::shared_ptr<Mailbox> mailbox)
    : options_(options),
      mailbox_(std::move(mailbox)),
      rotation_(options.endpoints.size(), options.backoff_min, options.backoff_max,
                SeededHash(options.epoch, "reconnect", options.id)),
      spread_(SeededHash(options.epoch, "heartbeat", options.id)) {}

void Connection::Start() {
  {
    std::lock_guard lock(mu_);
    last_answer_ = Now();
  }
  Connect();
}

void Connection::SetTimer(absl::Duration after, void (Connection::*then)(uint64_t)) {
  timer_.Set(after, [weak = weak_from_this(), attempt = attempt_, then] {
    if (const auto self = weak.lock()) (self.get()->*then)(attempt);
  });
}

v1::SessionRequest Connection::JoinRequest() const {
  const Presence presence = mailbox_->presence();
  v1::SessionRequest request;
  v1::Join& join = *request.mutable_join();
  join.set_protocol(1);
  join.set_run(options_.run);
  join.set_id(options_.id);
  join.set_role(v1::CLIENT);
  join.set_epoch(options_.epoch);
  join.set_examples(options_.examples);
  join.set_held_sha256(presence.held_sha256);
  join.set_committed_round(presence.committed_round);
  join.set_software(options_.software);
  return request;
}

void Connection::Connect() {
  v1::SessionRequest join = JoinRequest();
  std::shared_ptr<SessionStream> stream;
  {
    std::lock_guard lock(mu_);
    if (state_ != State::kWaiting) return;
    state_ = State::kConnecting;
    ++attempt_;
    retry_after_ = absl::ZeroDuration();
    channel_ = OpenChannel(endpoint(), options_.own_connection, options_.connect_timeout,
                           options_.tls.get());
    stream_ = stream = SessionStream::Open(channel_, std::move(join), shared_from_this());
    mailbox_->StreamOpened();
    stream_joined_ = false;
    SetTimer(options_.connect_timeout, &Connection::OnConnectTimeout);
  }
  stream->Start();
}

void Connection::OnConnectTimeout(uint64_t attempt) {
  std::shared_ptr<SessionStream> stream;
  {
    std::lock_guard lock(mu_);
    if (state_ != State::kConnecting || attempt != attempt_) return;
    stream = stream_;
  }
  stream->Cancel();
}

void Connection::Beat(uint64_t attempt) {
  const Presence presence = mailbox_->presence();
  std::shared_ptr<SessionStream> stream;
  {
    std::lock_guard lock(mu_);
    if (state_ != State::kUp || attempt != attempt_) return;
    stream = stream_;
    SetTimer(heartbeat_ * 0.6, &Connection::Beat);  // so that a late timer is no missed heartbeat
  }
  if (!stream->idle()) return;  // the aggregator does not read; more would not help
  v1::SessionRequest request;
  request.mutable_heartbeat()->set_round(presence.round);
  request.mutable_heartbeat()->set_phase(presence.phase);
  stream->Send(std::move(request));
}

bool Connection::Current(const SessionStream* stream) const {
  std::lock_guard lock(mu_);
  return stream_.get() == stream && state_ != State::kClosed;
}

void Connection::OnStreamMessage(const SessionStream* stream, v1::SessionResponse message) {
  if (!Current(stream)) return;
  switch (message.message_case()) {
    case v1::SessionResponse::kJoined:
      Joined(stream, std::move(*message.mutable_joined()));
      break;
    case v1::SessionResponse::kRefused:
      Refused(stream, message.refused());
      break;
    case v1::SessionResponse::kTask:
      mailbox_->PostTask(std::move(*message.mutable_task()));
      break;
    case v1::SessionResponse::kOutcome:
      mailbox_->PostOutcome(std::move(*message.mutable_outcome()));
      break;
    case v1::SessionResponse::kGrant:
      mailbox_->PostGrant(message.grant().round());
      break;
    case v1::SessionResponse::kStop:
      Stopped(stream, message.stop());
      break;
    case v1::SessionResponse::kCollect:  // for racks
    case v1::SessionResponse::kClaims:
    case v1::SessionResponse::kVerdicts:
    case v1::SessionResponse::MESSAGE_NOT_SET:
      break;  // of a later release: not for us
  }
}

void Connection::Joined(const SessionStream* stream, v1::Joined joined) {
  std::shared_ptr<grpc::Channel> channel;
  {
    std::lock_guard lock(mu_);
    if (stream_.get() != stream || state_ != State::kConnecting) return;
    state_ = State::kUp;
    stream_joined_ = true;
    rotation_.Succeeded();
    suspicion_.Dispel(endpoint());
    last_answer_ = Now();
    heartbeat_ = joined.heartbeat_ms() > 0
                     ? std::clamp(absl::Milliseconds(static_cast<int64_t>(
                                      std::min<uint64_t>(joined.heartbeat_ms(), 3'600'000))),
                                  absl::Milliseconds(10), absl::Hours(1))
                     : kDefaultHeartbeat;
    // Thousands of clients in one process join at once: their heartbeats need not.
    SetTimer(heartbeat_ * (0.1 + 0.5 * spread_.NextDouble()), &Connection::Beat);
    channel = channel_;
  }
  mailbox_->PostJoined(std::move(joined), std::move(channel));
}

void Connection::Refused(const SessionStream* stream, const v1::Refused& refused) {
  std::shared_ptr<SessionStream> ended;
  std::string where;
  {
    std::lock_guard lock(mu_);
    if (stream_.get() != stream) return;
    last_answer_ = Now();
    retry_after_ = absl::Milliseconds(static_cast<int64_t>(refused.retry_after_ms()));
    where = endpoint();
    ended = stream_;
  }
  if (refused.retry_after_ms() == 0) {
    End(absl::FailedPreconditionError(absl::StrCat("aggregator ", where, " refused client \"",
                                                   options_.id,
                                                   "\" for good: ", refused.reason())));
  }
  ended->Cancel();
}

void Connection::Stopped(const SessionStream* stream, const v1::Stop& stop) {
  const std::string reason = stop.reason().empty() ? "" : absl::StrCat(": ", stop.reason());
  switch (stop.kind()) {
    case v1::Stop::FINISHED:
      return End(absl::OkStatus());
    case v1::Stop::FAILED:
      return End(absl::AbortedError(absl::StrCat("the run failed", reason)));
    case v1::Stop::SUPERSEDED:
      return End(absl::AlreadyExistsError(absl::StrCat("a newer session with the id \"",
                                                       options_.id, "\" has taken over", reason,
                                                       "; ids must be unique in a run")));
    default:
      break;  // GOING_AWAY, or a kind of a later release, which ends this session all the same
  }
  if (Current(stream)) MoveOn(absl::Milliseconds(static_cast<int64_t>(stop.retry_after_ms())));
}

void Connection::MoveOn(absl::Duration retry_after) {
  std::shared_ptr<SessionStream> stream;
  {
    std::lock_guard lock(mu_);
    if (state_ != State::kUp && state_ != State::kConnecting) return;
    last_answer_ = Now();
    retry_after_ = std::max(retry_after_, retry_after);
    stream = stream_;
  }
  stream->Cancel();  // OnStreamEnd goes on from here
}

void Connection::OnStreamEnd(std::shared_ptr<SessionStream> stream, const absl::Status& why) {
  bool was_up = false;
  bool closed = false;
  std::string suspect;
  {
    std::lock_guard lock(mu_);
    was_up = state_ == State::kUp;
    closed = state_ == State::kClosed;
    const bool failed = state_ == State::kConnecting;
    if (failed && suspicion_.Raised(endpoint(), Text(why), Now())) suspect = endpoint();
    if (!closed) state_ = State::kWaiting;
    stream_ = nullptr;
    channel_ = nullptr;
  }
  // Before the next attempt is set up, so that its Joined cannot come first.
  if (was_up) mailbox_->PostLost();
  if (!suspect.empty()) mailbox_->PostTrouble(std::move(suspect));
  if (!closed) {
    if (absl::Status end = Reconnect(was_up, why); !end.ok()) End(std::move(end));
  }
  mailbox_->Retire(std::move(stream));
}

absl::Status Connection::Reconnect(bool was_up, const absl::Status& why) {
  std::lock_guard lock(mu_);
  if (state_ != State::kWaiting) return absl::OkStatus();
  if (!was_up && ForGood(why)) {
    return absl::FailedPreconditionError(absl::StrCat("aggregator ", endpoint(),
                                                      " refused client \"", options_.id,
                                                      "\" for good: ", why.message()));
  }
  const absl::Duration now = Now();
  if (was_up) last_answer_ = now;
  const absl::Duration give_up = last_answer_ + options_.give_up_after;
  if (now >= give_up && !was_up) {
    return absl::UnavailableError(
        absl::StrCat("no aggregator answered client \"", options_.id, "\" for ",
                     absl::FormatDuration(options_.give_up_after), "; tried ",
                     absl::StrJoin(options_.endpoints, ", "), "; the last error: ", why.message(),
                     "; check that one is running and that the addresses are right"));
  }
  const absl::Duration due = rotation_.Next(now, retry_after_);
  // An attempt is made when the patience ends, whatever the backoff says: it is the last.
  SetTimer(std::min(due, std::max(give_up, now + options_.backoff_min)) - now, &Connection::OnDue);
  return absl::OkStatus();
}

void Connection::OnDue(uint64_t) { Connect(); }

void Connection::Send(v1::SessionRequest message) {
  std::shared_ptr<SessionStream> stream;
  {
    std::lock_guard lock(mu_);
    if (state_ != State::kUp) return;
    stream = stream_;
  }
  stream->Send(std::move(message));
}

void Connection::End(absl::Status status) {
  {
    std::lock_guard lock(mu_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    timer_.Cancel();
  }
  mailbox_->PostEnd(std::move(status));
}

void Connection::Close(const std::string& leave) {
  std::shared_ptr<SessionStream> stream;
  bool up = false;
  bool joined = false;
  {
    std::lock_guard lock(mu_);
    if (std::exchange(closed_, true)) return;
    up = state_ == State::kUp;
    joined = stream_joined_;
    state_ = State::kClosed;
    timer_.Cancel();
    stream = stream_;
  }
  const auto ended = [this] { return !mailbox_->streams_open(); };
  if (stream != nullptr && joined) {
    if (up && !leave.empty()) {
      v1::SessionRequest request;
      request.mutable_leave()->set_reason(leave);
      stream->Send(std::move(request));
    }
    stream->Finish();
    mailbox_->Wait(kGoodbye, ended);
  }
  if (stream != nullptr) stream->Cancel();
  mailbox_->Wait(absl::InfiniteDuration(), ended);
  mailbox_->Clear();
}

}  // namespace tributary::client::internal
