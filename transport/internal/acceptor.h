// Accepts links on a stream socket (TCP or Unix): one thread and one poll loop in which no socket
// can hold up another. Backends say how a listening socket is made and what becomes of a set-up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "transport/internal/controlled_core.h"
#include "transport/internal/posix_io.h"
#include "transport/link.h"

namespace tributary::transport::internal {

// Both hellos were exchanged, every socket is there: what a link is made of.
struct ReadySockets {
  Fd control;
  std::vector<Fd> lanes;
  Hellos hellos;
};

// What a backend adds to the accept loop. Called on its thread; nothing here may block.
struct AcceptorHooks {
  // Makes the link once its set-up is complete.
  std::function<absl::StatusOr<std::unique_ptr<Link>>(ReadySockets, const LinkOptions&)> make;
  // Where a socket comes from, for messages.
  std::function<std::string(int fd)> peer_text;
  // Refuses a control socket after its hello was read; empty: all may come.
  std::function<absl::Status(int fd)> admit;
  // Whether a link has data sockets beside its control socket, which bring their own hellos.
  bool data_sockets = true;
  // Told in the hello and asked of the peer's, where the port does not say it: empty for the
  // others.
  std::string transport = {};
  // Instead of `make`, where making a link takes longer than the accept loop may: takes the sockets
  // away, and Accept never returns that link.
  std::function<void(ReadySockets)> take = nullptr;
};

class Acceptor final : public Listener {
 public:
  // `fd` listens and is non-blocking; `address` is what Listener::address says.
  static absl::StatusOr<std::unique_ptr<Listener>> Start(Fd fd, std::string address,
                                                         const LinkOptions& options,
                                                         AcceptorHooks hooks);
  ~Acceptor() override;

  absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) override;
  std::string address() const override { return address_; }
  void Cancel() override;
  uint64_t refused() const override { return refused_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  // A socket between accept(2) and being part of a link. Reads a hello, then writes an answer.
  struct Pending {
    enum class Stage { kReading, kWriting, kLingering, kDone };
    Fd fd;
    Clock::time_point until;
    Stage stage = Stage::kReading;
    std::string in;
    std::optional<size_t> length;  // of the hello, once its prefix is read
    std::string out;
    bool refused = false;
    std::string link_id;  // of the set-up that it belongs to, once accepted
    uint32_t socket = 0;
  };
  // A link whose control socket has said hello and whose lanes are coming.
  struct Setup {
    Clock::time_point until;
    ReadySockets sockets;
    bool control_answered = false;
    uint32_t lanes_ready = 0;
    std::vector<bool> claimed;  // lanes whose hello was accepted
  };

  Acceptor(Fd fd, std::string address, Waker wake, const LinkOptions& options, AcceptorHooks hooks);
  void Run();
  void AcceptSockets();
  bool Serve(Pending& pending);  // false: forget the socket
  bool Read(Pending& pending);
  bool Write(Pending& pending);
  bool Linger(Pending& pending);
  void HandleHello(Pending& pending, ByteSpan message);
  void Refuse(Pending& pending, const absl::Status& why, bool no_hello = false);
  absl::Status StartSetup(Pending& pending, v1::LinkHello hello);
  absl::Status ClaimLane(Pending& pending, const v1::LinkHello& hello);
  void Adopt(Pending& pending);  // an answered socket joins its set-up
  void Finish(const std::string& link_id);
  void Expire(Clock::time_point now);
  int PollMillis() const;
  void LogRefusal(const Pending& pending, const std::string& why);

  const LinkOptions options_;
  const AcceptorHooks hooks_;
  const Fd fd_;
  const Waker wake_;
  const std::string address_;
  std::atomic<uint64_t> refused_ = 0;

  // The thread's alone.
  std::list<Pending> pending_;  // oldest first
  std::vector<std::pair<std::string, std::unique_ptr<Setup>>> setups_;
  Setup* FindSetup(const std::string& link_id);
  bool accepting_paused_ = false;  // out of descriptors: until one comes free
  Clock::time_point paused_until_;
  Clock::time_point last_log_;
  uint64_t unlogged_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Link>> ready_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tributary::transport::internal
