// The control socket of a link: signs of life, grants, goodbyes, and the end.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/tcp/core.h"

namespace tributary::transport::tcp {

using internal::ControlMessage;
using internal::ControlType;

namespace {

int64_t Nanos(std::chrono::steady_clock::time_point at) { return at.time_since_epoch().count(); }

}  // namespace

void TcpCore::SendControl(ControlType type, uint64_t a, uint64_t b, std::string text) {
  control_out_ += internal::EncodeControl({.type = type, .a = a, .b = b, .text = std::move(text)});
  FlushControl();
}

void TcpCore::FlushControl() {
  while (!control_out_.empty()) {
    const ssize_t n =
        send(control_.get(), control_out_.data(), control_out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      control_out_.erase(0, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (errno == EAGAIN) {
      control_wake_.Wake();  // the control thread waits for room
      return;
    }
    control_out_.clear();  // broken: the control thread reads the reason
    return;
  }
  if (grant_waits_) {
    grant_waits_ = false;
    SendControl(ControlType::kGrant, state_.our_epoch(), state_.granted());
  }
}

// Grants are cumulative, so behind a full socket one that waits stands for all.
void TcpCore::AnnounceGrant() {
  if (state_.failed() || peer_gone_ || state_.peer_done()) return;
  const std::optional<uint64_t> granted = state_.GrantDue();
  if (!granted.has_value()) return;
  if (!control_out_.empty()) {
    grant_waits_ = true;
    return;
  }
  SendControl(ControlType::kGrant, state_.our_epoch(), *granted);
}

void TcpCore::AnswerGoodbye() {
  if (goodbye_answered_ || !state_.peer_done()) return;
  goodbye_answered_ = true;
  SendControl(ControlType::kArrived);
}

void TcpCore::RunControl() {
  const auto beat = absl::ToChronoNanoseconds(options_.heartbeat);
  Clock::time_point next_beat = Clock::now() + beat;
  while (true) {
    pollfd entries[2] = {{.fd = control_.get(), .events = POLLIN, .revents = 0},
                         {.fd = control_wake_.fd(), .events = POLLIN, .revents = 0}};
    Clock::time_point until = next_beat;
    {
      std::lock_guard lock(mutex_);
      if (state_.failed()) break;
      if (!control_out_.empty()) entries[0].events |= POLLOUT;
      if (reason_until_.has_value()) until = std::min(until, *reason_until_);
      if (peer_gone_) {
        entries[0].fd = -1;  // ended in order: nothing comes any more, wait to be stopped
        until = Clock::time_point::max();
      } else if (!OrderlyEnd()) {
        until = std::min(
            until,
            Clock::time_point(std::chrono::nanoseconds(heard_ns_.load(std::memory_order_relaxed))) +
                silence_limit_);
      }
    }
    int millis = -1;
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      millis = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
    }
    poll(entries, 2, millis);
    if (entries[1].revents != 0) control_wake_.Clear();
    // Read before judging: a process that was stopped finds the signs of life that came meanwhile.
    if (entries[0].fd >= 0 && !ReadControl()) continue;
    const Clock::time_point now = Clock::now();
    CheckLiveness(now);
    std::lock_guard lock(mutex_);
    if (peer_gone_ || state_.failed()) continue;
    FlushControl();
    if (now >= next_beat) {
      next_beat = now + beat;
      if (control_out_.empty()) {
        SendControl(ControlType::kHeartbeat, state_.our_epoch(), state_.granted());
      }
    }
  }
  Farewell();
}

// Reads all that is there; false when the socket ended.
bool TcpCore::ReadControl() {
  uint8_t bytes[4096];
  while (true) {
    const ssize_t n = recv(control_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      ControlEnded(n == 0 ? "" : absl::StrCat(" (", std::strerror(errno), ")"));
      return false;
    }
    heard_ns_.store(Nanos(Clock::now()), std::memory_order_relaxed);
    control_in_.Append({bytes, static_cast<size_t>(n)});
    std::lock_guard lock(mutex_);
    while (true) {
      absl::StatusOr<std::optional<ControlMessage>> message = control_in_.Next();
      if (!message.ok()) {
        Fail(absl::Status(message.status().code(),
                          absl::StrCat(state_.peer(), ": ", message.status().message())),
             /*local=*/false, /*tell=*/true);
        return true;
      }
      if (!message->has_value()) break;
      HandleControl(**message);
    }
  }
}

void TcpCore::HandleControl(const ControlMessage& message) {
  switch (message.type) {
    case ControlType::kHeartbeat:
    case ControlType::kGrant:
      if (state_.OnGrant(message.a, message.b)) can_send_.notify_all();
      return;
    case ControlType::kGoodbye: {
      const absl::Status status = state_.OnGoodbye(message.a);
      if (!status.ok()) return Fail(status, /*local=*/false, /*tell=*/true);
      AnswerGoodbye();
      can_receive_.notify_all();
      return;
    }
    case ControlType::kArrived:
      if (!goodbye_sent_) return;
      state_.OnPeerHasAll();
      can_send_.notify_all();
      return;
    case ControlType::kCancel:
      if (state_.peer_done())
        peer_gone_ = true;  // in order for what we receive; not for what we send
      Fail(absl::UnavailableError(absl::StrCat(state_.peer(), " ended the link: ", message.text)),
           /*local=*/false, /*tell=*/false);
      return;
  }
  // A kind that this version does not know is left alone, so that later ones may add some.
}

void TcpCore::ControlEnded(const std::string& how) {
  std::lock_guard lock(mutex_);
  peer_gone_ = true;
  if (OrderlyEnd()) return;
  Fail(absl::UnavailableError(absl::StrCat(
           state_.peer(), state_.peer_done() ? " closed the link and left" : " is gone", how,
           state_.peer_done() ? "" : ": its control connection ended without a goodbye")),
       /*local=*/false, /*tell=*/false);
}

void TcpCore::CheckLiveness(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  if (OrderlyEnd()) reason_until_.reset();
  if (state_.failed() || peer_gone_ || OrderlyEnd()) return;
  if (reason_until_.has_value() && now >= *reason_until_) {
    Fail(absl::UnavailableError(lane_ended_), /*local=*/false, /*tell=*/true);
    return;
  }
  const auto silent =
      std::chrono::nanoseconds(Nanos(now) - heard_ns_.load(std::memory_order_relaxed));
  if (silent < silence_limit_) return;
  Fail(absl::UnavailableError(absl::StrCat(state_.peer(), " gave no sign of life for ",
                                           absl::FormatDuration(absl::FromChrono(silent)),
                                           " (the limit is ",
                                           absl::FormatDuration(absl::FromChrono(silence_limit_)),
                                           "); it hangs, or the network between is cut")),
       /*local=*/false, /*tell=*/true);
}

// The last word goes out if the socket takes it within a moment; then every socket is cut.
void TcpCore::Farewell() {
  const auto give_up = Clock::now() + std::chrono::milliseconds(200);
  while (Clock::now() < give_up) {
    {
      std::lock_guard lock(mutex_);
      grant_waits_ = false;
      FlushControl();
      if (control_out_.empty()) break;
    }
    pollfd entry{.fd = control_.get(), .events = POLLOUT, .revents = 0};
    poll(&entry, 1, 20);
  }
  shutdown(control_.get(), SHUT_RDWR);
  for (auto& lane : lanes_) shutdown(lane->fd.get(), SHUT_RDWR);
}

}  // namespace tributary::transport::tcp
