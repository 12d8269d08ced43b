// The control socket of a link: signs of life, grants, goodbyes, and the end.
#include "transport/internal/controlled_core.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tributary::transport::internal {
namespace {

// How often, and how far apart, the control socket is looked at for the reason of an end that came
// without one.
constexpr std::chrono::milliseconds kLookEvery{50};
constexpr int kLooksForCause = 5;
// More: who knows the cause has waited for ours by then, and has spoken.
constexpr int kLooksWhereItFollows = 20;

int64_t Nanos(std::chrono::steady_clock::time_point at) { return at.time_since_epoch().count(); }

}  // namespace

std::string Hellos::PeerName(const std::string& where) const {
  return absl::StrCat("peer \"", absl::Utf8SafeCHexEscape(theirs.name()), "\" (", where, ")");
}

std::chrono::nanoseconds SilenceLimit(const LinkOptions& ours, const v1::LinkHello& theirs) {
  return absl::ToChronoNanoseconds(
      std::max(ours.heartbeat, absl::Milliseconds(theirs.heartbeat_ms())) * ours.heartbeats_missed);
}

ControlledCore::ControlledCore(const LinkOptions& options, const v1::LinkHello& theirs, Fd control,
                               Waker wake, const LinkState::Config& state)
    : options_(options),
      theirs_(theirs),
      state_(state),
      silence_limit_(SilenceLimit(options, theirs)),
      heard_ns_(Nanos(Clock::now())),
      control_(std::move(control)),
      control_wake_(std::move(wake)) {}

void ControlledCore::StartControl() {
  control_thread_ = std::thread([this] { RunControl(); });
}

absl::Status ControlledCore::Close(Deadline deadline) {
  std::unique_lock lock(mutex_);
  state_.StartClosing();
  WakeSenders();
  const bool flushed =
      deadline.Wait(can_send_, lock, [this] { return state_.failed() || state_.flushed(); });
  if (flushed && !state_.failed() && !goodbye_sent_) {
    goodbye_sent_ = true;
    SendControl(ControlType::kGoodbye, state_.queued());
  }
  deadline.Wait(can_send_, lock, [this] { return state_.failed() || state_.closed(); });
  if (state_.closed()) return absl::OkStatus();
  if (state_.failed()) {
    // The peer left in order and nothing of ours was on its way: there is nothing to be sorry for.
    if (peer_gone_ && state_.peer_done() && state_.queued() == 0) return absl::OkStatus();
    return state_.error();
  }
  return state_.CloseTimeout();
}

void ControlledCore::Fail(absl::Status error, bool local, bool tell) {
  const std::string text(error.message());
  const bool first = state_.Fail(std::move(error), local);
  if (first && tell && !peer_gone_) SendControl(ControlType::kCancel, 0, 0, text);
  WakeSenders();
  WakeReceivers();
  // The control thread cuts the data path once the farewell is out.
  control_wake_.Wake();
  WakeBackend();
}

void ControlledCore::Cancel(const std::string& why) {
  std::lock_guard lock(mutex_);
  Fail(absl::CancelledError(why), /*local=*/true, /*tell=*/true);
}

absl::Status ControlledCore::status() const {
  std::lock_guard lock(mutex_);
  return state_.error();
}

void ControlledCore::BeginShutdown() {
  std::lock_guard lock(mutex_);
  const bool orderly = OrderlyEnd();
  Fail(absl::CancelledError("the link was destroyed"), /*local=*/true, /*tell=*/!orderly);
}

void ControlledCore::EndShutdown() {
  if (control_thread_.joinable()) control_thread_.join();
  // Not earlier: a lease that outlives the link keeps the memory, not the connection.
  control_ = Fd();
}

void ControlledCore::DataEnded(std::string what, EndedBy by) {
  if (state_.failed()) return;
  if (ended_.has_value() && (by != EndedBy::kCause || ended_->by == EndedBy::kCause)) return;
  ended_ = Ended{.what = std::move(what),
                 .by = by,
                 .looks = by == EndedBy::kCause ? kLooksForCause : kLooksWhereItFollows,
                 .next_look = Clock::now() + kLookEvery};
  control_wake_.Wake();
}

void ControlledCore::SendControl(ControlType type, uint64_t a, uint64_t b, std::string text) {
  control_out_ += EncodeControl({.type = type, .a = a, .b = b, .text = std::move(text)});
  FlushControl();
}

void ControlledCore::FlushControl() {
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
void ControlledCore::AnnounceGrant() {
  if (state_.failed() || peer_gone_ || state_.peer_done()) return;
  const std::optional<uint64_t> granted = state_.GrantDue();
  if (!granted.has_value()) return;
  if (!control_out_.empty()) {
    grant_waits_ = true;
    return;
  }
  SendControl(ControlType::kGrant, state_.our_epoch(), *granted);
}

void ControlledCore::AnswerGoodbye() {
  if (goodbye_answered_ || !state_.peer_done()) return;
  goodbye_answered_ = true;
  SendControl(ControlType::kArrived);
}

// When the control thread has to look again by itself, and what it waits for until then.
ControlledCore::Clock::time_point ControlledCore::NextLook(Clock::time_point next_beat,
                                                           bool* listen, bool* write) {
  *listen = !peer_gone_;
  *write = !control_out_.empty();
  // Ended in order: nothing comes any more, wait to be stopped.
  if (peer_gone_) return Clock::time_point::max();
  Clock::time_point until = next_beat;
  if (const auto every = TickEvery(); every.count() > 0)
    until = std::min(until, last_tick_ + every);
  if (ended_.has_value()) until = std::min(until, ended_->next_look);
  if (OrderlyEnd()) return until;
  const Clock::time_point heard(
      std::chrono::nanoseconds(heard_ns_.load(std::memory_order_relaxed)));
  return std::min(until, heard + silence_limit_);
}

void ControlledCore::RunControl() {
  const auto beat = absl::ToChronoNanoseconds(options_.heartbeat);
  HeardOfPeer();  // by its hello; this thread may have been slow to begin
  judged_at_ = Clock::now();
  Clock::time_point next_beat = judged_at_ + beat;
  while (true) {
    bool listen = true;
    bool write = false;
    Clock::time_point until;
    {
      std::lock_guard lock(mutex_);
      if (state_.failed()) break;
      until = NextLook(next_beat, &listen, &write);
    }
    pollfd entries[2] = {{.fd = listen ? control_.get() : -1,
                          .events = static_cast<short>(write ? POLLIN | POLLOUT : POLLIN),
                          .revents = 0},
                         {.fd = control_wake_.fd(), .events = POLLIN, .revents = 0}};
    int millis = -1;
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      millis = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
    }
    poll(entries, 2, millis);
    if (entries[1].revents != 0) control_wake_.Clear();
    // Read before judging: a process that was stopped finds the signs of life that came meanwhile.
    if (listen && !ReadControl()) continue;
    CheckReason();
    CheckLiveness();
    std::lock_guard lock(mutex_);
    if (peer_gone_ || state_.failed()) continue;
    FlushControl();
    const Clock::time_point now = Clock::now();
    Tick(now);
    if (now < next_beat) continue;
    next_beat = now + beat;
    if (control_out_.empty()) {
      SendControl(ControlType::kHeartbeat, state_.our_epoch(), state_.granted());
    }
  }
  Farewell();
}

void ControlledCore::Tick(Clock::time_point now) {
  const auto every = TickEvery();
  if (every.count() == 0 || now < last_tick_ + every) return;
  last_tick_ = now;
  OnTick();
}

// Reads all that is there; false when the socket ended.
bool ControlledCore::ReadControl() {
  uint8_t bytes[4096];
  while (true) {
    const ssize_t n = recv(control_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      ControlEnded(n == 0 ? "" : absl::StrCat(" (", std::strerror(errno), ")"));
      return false;
    }
    HeardOfPeer();
    control_in_.Append({bytes, static_cast<size_t>(n)});
    while (true) {
      absl::StatusOr<std::optional<ControlMessage>> message = control_in_.Next();
      if (!message.ok()) {
        std::lock_guard lock(mutex_);
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

void ControlledCore::OnGrant(uint64_t epoch, uint64_t granted) {
  if (state_.OnGrant(epoch, granted)) WakeSenders();
}

void ControlledCore::HandleControl(const ControlMessage& message) {
  if (message.type == ControlType::kGoodbye || message.type == ControlType::kCancel) {
    TakeInArrived();
  }
  std::lock_guard lock(mutex_);
  switch (message.type) {
    case ControlType::kHeartbeat:
    case ControlType::kGrant:
      return OnGrant(message.a, message.b);
    case ControlType::kGoodbye: {
      const absl::Status status = state_.OnGoodbye(message.a);
      if (!status.ok()) return Fail(status, /*local=*/false, /*tell=*/true);
      AnswerGoodbye();
      return WakeReceivers();
    }
    case ControlType::kArrived:
      if (!goodbye_sent_) return;
      state_.OnPeerHasAll();
      return WakeSenders();
    case ControlType::kCancel:
      // In order for what we receive; not for what we send.
      if (state_.peer_done()) peer_gone_ = true;
      return Fail(
          absl::UnavailableError(absl::StrCat(state_.peer(), " ended the link: ", message.text)),
          /*local=*/false, /*tell=*/false);
  }
  // A kind that this version does not know is left alone, so that later ones may add some.
}

void ControlledCore::ControlEnded(const std::string& how) {
  TakeInArrived();
  std::lock_guard lock(mutex_);
  peer_gone_ = true;
  if (OrderlyEnd()) return;
  Fail(absl::UnavailableError(absl::StrCat(
           state_.peer(), state_.peer_done() ? " closed the link and left" : " is gone", how,
           state_.peer_done() ? "" : ": its control connection ended without a goodbye")),
       /*local=*/false, /*tell=*/false);
}

// Fails once a better reason than DataEnded's was looked for often enough.
void ControlledCore::CheckReason() {
  {
    std::lock_guard lock(mutex_);
    if (OrderlyEnd()) ended_.reset();
    const Clock::time_point now = Clock::now();
    if (!ended_.has_value() || now < ended_->next_look) return;
    ended_->next_look = now + kLookEvery;
    if (--ended_->looks > 0) return;
  }
  TakeInArrived();  // it may hold the cause
  std::lock_guard lock(mutex_);
  if (state_.failed() || peer_gone_ || OrderlyEnd() || ended_->looks > 0) return;
  Fail(absl::UnavailableError(ended_->what), /*local=*/false, /*tell=*/true);
}

void ControlledCore::CheckLiveness() {
  std::lock_guard lock(mutex_);
  if (state_.failed() || peer_gone_ || OrderlyEnd()) return;
  const Clock::time_point now = Clock::now();
  int64_t heard = heard_ns_.load(std::memory_order_relaxed);
  // This thread sleeps for a heartbeat at most. What is more, it was stopped, and maybe the machine
  // and a peer on it: that is not the peer's silence.
  const auto stopped = (now - judged_at_) - absl::ToChronoNanoseconds(options_.heartbeat);
  judged_at_ = now;
  if (stopped.count() > 0) {
    const int64_t later = std::min<int64_t>(heard + stopped.count(), Nanos(now));
    if (heard_ns_.compare_exchange_strong(heard, later)) heard = later;  // else it was heard of
  }
  const std::chrono::nanoseconds silent(Nanos(now) - heard);
  if (silent < silence_limit_) return;
  Fail(absl::UnavailableError(absl::StrCat(state_.peer(), " gave no sign of life for ",
                                           absl::FormatDuration(absl::FromChrono(silent)),
                                           " (the limit is ",
                                           absl::FormatDuration(absl::FromChrono(silence_limit_)),
                                           "); it hangs, or the network between is cut")),
       /*local=*/false, /*tell=*/true);
}

// The last word goes out if the socket takes it within a moment; then every socket is cut.
void ControlledCore::Farewell() {
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
  CutData();
}

}  // namespace tributary::transport::internal
