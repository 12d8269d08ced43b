// The accepting side of RoCE links.
#include "transport/roce/listener.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/roce/core.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/set_up.h"
#include "transport/tcp/greeting.h"

namespace tributary::transport::roce {

namespace {

// Links that are being set up or wait to be accepted: as tcp's bound, far above any tier's fan-in.
constexpr size_t kMaxWaiting = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> RoceListener::Start(RocePart part,
                                                              const std::string& address,
                                                              const LinkOptions& options) {
  std::unique_ptr<RoceListener> listener(new RoceListener(std::move(part), options));
  // The first peer may come before the next line has stored the listener: Take does not need it.
  internal::AcceptorHooks hooks;
  hooks.peer_text = tcp::PeerText;
  hooks.data_sockets = false;
  hooks.transport = "roce";
  hooks.take = [raw = listener.get()](internal::ReadySockets sockets) {
    raw->Take(std::move(sockets));
  };
  ASSIGN_OR_RETURN(listener->sockets_, tcp::ListenForLinks(address, options, std::move(hooks)));
  return listener;
}

RoceListener::~RoceListener() {
  Cancel();
  sockets_.reset();  // no Take after this
  std::list<SetUp> set_ups;
  {
    std::lock_guard lock(mutex_);
    for (SetUp& one : set_ups_) {
      if (one.control >= 0) shutdown(one.control, SHUT_RDWR);
    }
    // Nodes keep their place: the threads' references stay good.
    set_ups.splice(set_ups.begin(), set_ups_);
  }
  for (SetUp& one : set_ups) one.thread.join();
}

void RoceListener::Cancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<Link>> RoceListener::Accept(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool ready =
      deadline.Wait(changed_, lock, [this] { return cancelled_ || !ready_.empty(); });
  if (cancelled_) {
    return absl::CancelledError(absl::StrCat("accepting links on ", address(), " was cancelled"));
  }
  if (!ready) {
    return absl::DeadlineExceededError(absl::StrCat("no link came to ", address(), " in time"));
  }
  std::unique_ptr<Link> link = std::move(ready_.front());
  ready_.pop_front();
  return link;
}

void RoceListener::Reap() {
  for (auto it = set_ups_.begin(); it != set_ups_.end();) {
    if (!it->done) {
      ++it;
      continue;
    }
    it->thread.join();
    it = set_ups_.erase(it);
  }
}

void RoceListener::Take(internal::ReadySockets sockets) {
  absl::Status refusal;
  const int control = sockets.control.get();
  {
    std::lock_guard lock(mutex_);
    Reap();
    if (set_ups_.size() + ready_.size() >= kMaxWaiting) {
      refusal =
          absl::ResourceExhaustedError("too many links are being set up here; try again later");
    } else {
      SetUp& one = set_ups_.emplace_back();
      one.control = control;
      try {
        one.thread = std::thread([this, &one,
                                  moved = std::make_shared<internal::ReadySockets>(std::move(
                                      sockets))]() mutable { RunSetUp(one, std::move(*moved)); });
        return;
      } catch (const std::system_error& error) {
        // The sockets went with the thread's function and are closed.
        set_ups_.pop_back();
        refused_.fetch_add(1, std::memory_order_relaxed);
        spdlog::error("links: cannot start a thread for a link's set-up: {}", error.what());
        return;
      }
    }
  }
  refused_.fetch_add(1, std::memory_order_relaxed);
  const std::string words = EncodeSetUpRefusal(refusal);
  send(control, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void RoceListener::RunSetUp(SetUp& at, internal::ReadySockets sockets) {
  const std::string peer = tcp::PeerText(sockets.control.get());
  absl::StatusOr<ReadyWire> wire =
      SetUpWire(part_, sockets, options_, Deadline::After(options_.connect_timeout));
  {
    std::lock_guard lock(mutex_);
    at.control = -1;
  }
  absl::StatusOr<std::unique_ptr<Link>> link =
      wire.ok() ? RoceCore::Start(std::move(*wire), std::move(sockets), options_,
                                  part_.node->options().spin)
                : absl::StatusOr<std::unique_ptr<Link>>(wire.status());
  if (!link.ok()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("links over RoCE: no link with {}: {}", peer, Text(link.status()));
  }
  {
    std::lock_guard lock(mutex_);
    if (link.ok()) ready_.push_back(std::move(*link));
    at.done = true;
  }
  changed_.notify_all();
}

}  // namespace tributary::transport::roce
