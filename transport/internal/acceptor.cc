// The accept loop of links.
#include "transport/internal/acceptor.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"

namespace tributary::transport::internal {

namespace {

// Bounds on what strangers can make this process hold. Guesses: far above any tier's fan-in, far
// below the usual limit on open files.
constexpr size_t kMaxPending = 256;
constexpr size_t kMaxSetups = 256;
constexpr size_t kMaxReady = 256;
// How long a refused peer may take to read its refusal before the socket is closed.
constexpr auto kLinger = std::chrono::seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Acceptor::Start(Fd fd, std::string address,
                                                          const LinkOptions& options,
                                                          AcceptorHooks hooks) {
  ASSIGN_OR_RETURN(Waker wake, Waker::Create());
  std::unique_ptr<Acceptor> listener(
      new Acceptor(std::move(fd), std::move(address), std::move(wake), options, std::move(hooks)));
  try {
    listener->thread_ = std::thread([raw = listener.get()] { raw->Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the thread that accepts links: ", error.what()));
  }
  return listener;
}

Acceptor::Acceptor(Fd fd, std::string address, Waker wake, const LinkOptions& options,
                   AcceptorHooks hooks)
    : options_(options),
      hooks_(std::move(hooks)),
      fd_(std::move(fd)),
      wake_(std::move(wake)),
      address_(std::move(address)) {}

Acceptor::~Acceptor() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    stopping_ = true;
  }
  changed_.notify_all();
  wake_.Wake();
  if (thread_.joinable()) thread_.join();
}

void Acceptor::Cancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<Link>> Acceptor::Accept(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool ready =
      deadline.Wait(changed_, lock, [this] { return cancelled_ || !ready_.empty(); });
  if (cancelled_) {
    return absl::CancelledError(absl::StrCat("accepting links on ", address_, " was cancelled"));
  }
  if (!ready) {
    return absl::DeadlineExceededError(absl::StrCat("no link came to ", address_, " in time"));
  }
  std::unique_ptr<Link> link = std::move(ready_.front());
  ready_.pop_front();
  return link;
}

void Acceptor::Run() {
  std::vector<pollfd> entries;
  while (true) {
    entries.assign({{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                    {.fd = accepting_paused_ ? -1 : fd_.get(), .events = POLLIN, .revents = 0}});
    for (const Pending& pending : pending_) {
      const short events = pending.stage == Pending::Stage::kWriting ? POLLOUT : POLLIN;
      entries.push_back({.fd = pending.fd.get(), .events = events, .revents = 0});
    }
    poll(entries.data(), entries.size(), PollMillis());
    if (entries[0].revents != 0) wake_.Clear();
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    size_t at = 2;
    for (auto it = pending_.begin(); it != pending_.end(); ++at) {
      const bool keep = entries[at].revents == 0 || Serve(*it);
      it = keep ? std::next(it) : pending_.erase(it);
    }
    Expire(Clock::now());
    if (entries[1].revents != 0) AcceptSockets();
  }
}

int Acceptor::PollMillis() const {
  Clock::time_point until = Clock::time_point::max();
  for (const Pending& pending : pending_) until = std::min(until, pending.until);
  for (const auto& [id, setup] : setups_) until = std::min(until, setup->until);
  if (accepting_paused_) until = std::min(until, paused_until_);
  if (until == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

void Acceptor::AcceptSockets() {
  while (true) {
    Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // The listening socket stays readable: without a pause this loop would spin.
        accepting_paused_ = true;
        paused_until_ = Clock::now() + std::chrono::milliseconds(100);
        spdlog::warn("links on {}: {}", address_, Text(ErrnoStatus("accept", errno)));
      }
      return;
    }
    if (pending_.size() >= kMaxPending) {
      // Whoever has been silent longest makes room: a flood of silent sockets shuts nobody out.
      LogRefusal(pending_.front(), "dropped for newer connections before it said hello");
      pending_.pop_front();
    }
    Pending& pending = pending_.emplace_back();
    pending.fd = std::move(fd);
    pending.until = Clock::now() + absl::ToChronoNanoseconds(options_.connect_timeout);
  }
}

bool Acceptor::Serve(Pending& pending) {
  switch (pending.stage) {
    case Pending::Stage::kReading:
      return Read(pending);
    case Pending::Stage::kWriting:
      return Write(pending);
    case Pending::Stage::kLingering:
      return Linger(pending);
    case Pending::Stage::kDone:
      break;
  }
  return false;
}

bool Acceptor::Read(Pending& pending) {
  while (pending.stage == Pending::Stage::kReading) {
    // Exactly the hello is read: what follows it belongs to the link.
    const size_t wanted = kHelloPrefixBytes + pending.length.value_or(0);
    const size_t have = pending.in.size();
    pending.in.resize(wanted);
    const ssize_t n = recv(pending.fd.get(), pending.in.data() + have, wanted - have, 0);
    pending.in.resize(have + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0 && have == 0) return false;  // a port scan or a health check: not worth a word
    if (n <= 0) {
      Refuse(pending, absl::InvalidArgumentError("the connection ended inside its link hello"),
             true);
      break;
    }
    if (pending.in.size() < wanted) continue;
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(pending.in.data()), pending.in.size());
    if (!pending.length.has_value()) {
      const absl::StatusOr<size_t> length = DecodePrefix(bytes);
      if (!length.ok()) {
        Refuse(pending, length.status(), true);
        break;
      }
      pending.length = *length;
      if (*length > 0) continue;
    }
    HandleHello(pending, bytes.subspan(kHelloPrefixBytes));
  }
  return Write(pending);
}

void Acceptor::HandleHello(Pending& pending, ByteSpan message) {
  absl::StatusOr<v1::LinkHello> hello = DecodeHello(message);
  absl::Status status = hello.status();
  if (status.ok()) {
    status =
        hello->socket() == 0 ? StartSetup(pending, std::move(*hello)) : ClaimLane(pending, *hello);
  }
  if (!status.ok()) return Refuse(pending, status);
  pending.stage = Pending::Stage::kWriting;
}

absl::Status Acceptor::StartSetup(Pending& pending, v1::LinkHello hello) {
  RETURN_IF_ERROR(CheckFit(hello, options_, hooks_.transport));
  if (hooks_.admit) RETURN_IF_ERROR(hooks_.admit(pending.fd.get()));
  if (FindSetup(hello.link_id()) != nullptr) {
    return absl::AlreadyExistsError("a link with this id is being set up; pick a new random id");
  }
  {
    std::lock_guard lock(mutex_);
    if (setups_.size() >= kMaxSetups || ready_.size() >= kMaxReady) {
      return absl::ResourceExhaustedError("too many links are being set up here; try again later");
    }
  }
  auto setup = std::make_unique<Setup>();
  setup->until = pending.until;
  v1::LinkHello ours = ControlHello(options_, hello.link_id(), RandomEpoch());
  ours.set_lanes(std::min(options_.lanes, hello.lanes()));
  ours.set_transport(hooks_.transport);
  const uint32_t lanes = hooks_.data_sockets ? ours.lanes() : 0;
  setup->sockets.lanes.resize(lanes);
  setup->claimed.resize(lanes, false);
  v1::LinkHelloReply reply;
  reply.set_version(kHelloVersion);
  *reply.mutable_hello() = ours;
  pending.out = EncodeReply(reply);
  pending.link_id = hello.link_id();
  setup->sockets.hellos.ours = std::move(ours);
  setup->sockets.hellos.theirs = std::move(hello);
  setups_.emplace_back(pending.link_id, std::move(setup));
  return absl::OkStatus();
}

absl::Status Acceptor::ClaimLane(Pending& pending, const v1::LinkHello& hello) {
  Setup* setup = FindSetup(hello.link_id());
  const uint32_t lane = hello.socket() - 1;
  if (setup == nullptr) {
    return absl::NotFoundError(
        "a data socket of a link that is not being set up here (it may have timed out)");
  }
  if (lane >= setup->claimed.size() || setup->claimed[lane]) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane ", lane, " was not asked for, or is taken"));
  }
  setup->claimed[lane] = true;
  v1::LinkHelloReply reply;
  reply.set_version(kHelloVersion);
  pending.out = EncodeReply(reply);
  pending.link_id = hello.link_id();
  pending.socket = hello.socket();
  return absl::OkStatus();
}

void Acceptor::Refuse(Pending& pending, const absl::Status& why, bool no_hello) {
  LogRefusal(pending, Text(why));
  pending.refused = true;
  pending.stage = Pending::Stage::kWriting;
  pending.out = no_hello ? AnswerToGarbage(pending.in, why) : EncodeRefusal(why);
}

bool Acceptor::Write(Pending& pending) {
  while (!pending.out.empty()) {
    const ssize_t n = send(pending.fd.get(), pending.out.data(), pending.out.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n < 0) return false;
    pending.out.erase(0, static_cast<size_t>(n));
  }
  if (pending.refused) {
    // Closing with bytes unread would reset the connection and could destroy the refusal on its
    // way.
    shutdown(pending.fd.get(), SHUT_WR);
    pending.stage = Pending::Stage::kLingering;
    pending.until = std::min(pending.until, Clock::now() + kLinger);
    return Linger(pending);
  }
  Adopt(pending);
  return false;
}

bool Acceptor::Linger(Pending& pending) {
  char waste[4096];
  while (true) {
    const ssize_t n = recv(pending.fd.get(), waste, sizeof(waste), 0);
    if (n > 0) {
      if (Clock::now() >= pending.until) return false;
      continue;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
  }
}

void Acceptor::Adopt(Pending& pending) {
  Setup* setup = FindSetup(pending.link_id);
  if (setup == nullptr) return;  // timed out meanwhile; closing the socket says so
  if (pending.socket == 0) {
    setup->sockets.control = std::move(pending.fd);
    setup->control_answered = true;
  } else {
    setup->sockets.lanes[pending.socket - 1] = std::move(pending.fd);
    ++setup->lanes_ready;
  }
  if (setup->control_answered && setup->lanes_ready == setup->claimed.size()) {
    Finish(pending.link_id);
  }
}

void Acceptor::Finish(const std::string& link_id) {
  const auto it = std::find_if(setups_.begin(), setups_.end(),
                               [&](const auto& entry) { return entry.first == link_id; });
  std::unique_ptr<Setup> setup = std::move(it->second);
  setups_.erase(it);
  if (hooks_.take) return hooks_.take(std::move(setup->sockets));
  absl::StatusOr<std::unique_ptr<Link>> link = hooks_.make(std::move(setup->sockets), options_);
  if (!link.ok()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    spdlog::error("links on {}: {}", address_, Text(link.status()));
    return;
  }
  {
    std::lock_guard lock(mutex_);
    ready_.push_back(std::move(*link));
  }
  changed_.notify_all();
}

void Acceptor::Expire(Clock::time_point now) {
  if (accepting_paused_ && now >= paused_until_) accepting_paused_ = false;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (now < it->until) {
      ++it;
      continue;
    }
    if (!it->refused) LogRefusal(*it, "dropped: no whole link hello within connect_timeout");
    it = pending_.erase(it);
  }
  std::erase_if(setups_, [now](const auto& entry) { return now >= entry.second->until; });
}

Acceptor::Setup* Acceptor::FindSetup(const std::string& link_id) {
  for (auto& [id, setup] : setups_) {
    if (id == link_id) return setup.get();
  }
  return nullptr;
}

void Acceptor::LogRefusal(const Pending& pending, const std::string& why) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  const Clock::time_point now = Clock::now();
  // At most one line a second: a scanner must not fill the disk.
  if (now - last_log_ < std::chrono::seconds(1)) {
    ++unlogged_;
    return;
  }
  spdlog::warn(
      "links on {}: refused {}: {}{}", address_, hooks_.peer_text(pending.fd.get()), why,
      unlogged_ == 0 ? "" : absl::StrCat(" (and ", unlogged_, " more since the last line)"));
  last_log_ = now;
  unlogged_ = 0;
}

}  // namespace tributary::transport::internal
