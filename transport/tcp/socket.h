// Small pieces of POSIX sockets: an owned descriptor, an eventfd, addresses, options, timed set-up
// I/O.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "transport/internal/deadline.h"

namespace tributary::transport::tcp {

// Owns a file descriptor. Move-only.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// An eventfd to end another thread's poll. Thread-safe.
class Waker {
 public:
  static absl::StatusOr<Waker> Create();
  void Wake() const;
  void Clear() const;
  int fd() const { return fd_.get(); }

 private:
  explicit Waker(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// `what: strerror(error)`, UNAVAILABLE.
absl::Status ErrnoStatus(absl::string_view what, int error);

// "host:port" or "[v6]:port" → addresses. Asks the resolver, which has no deadline of its own.
// INVALID_ARGUMENT where the text is no address, UNAVAILABLE where the name is not known.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& address, bool to_listen);
std::string ToText(const SocketAddress& address);
SocketAddress LocalAddress(int fd);
std::string PeerText(int fd);

// A non-blocking listening socket.
absl::StatusOr<Fd> ListenOn(const SocketAddress& address);
// A connected, non-blocking socket.
absl::StatusOr<Fd> ConnectTo(const SocketAddress& address, const internal::Deadline& deadline);
// No Nagle, keepalive, and unacknowledged bytes end the connection after `user_timeout`.
void SetLinkOptions(int fd, absl::Duration user_timeout);
absl::Status SetBlocking(int fd);

// For set-up: all bytes or an error within the deadline; `fd` is non-blocking.
absl::Status WriteAll(int fd, absl::string_view bytes, const internal::Deadline& deadline);
absl::Status ReadAll(int fd, uint8_t* to, size_t bytes, const internal::Deadline& deadline);

}  // namespace tributary::transport::tcp
