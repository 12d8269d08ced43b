// Small pieces of POSIX that every backend needs: an owned descriptor, an eventfd, timed set-up
// I/O.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/deadline.h"

namespace tributary::transport::internal {

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

// `what: strerror(error)`, UNAVAILABLE; RESOURCE_EXHAUSTED where descriptors or memory ran out.
absl::Status ErrnoStatus(absl::string_view what, int error);

// Waits for `events` on one descriptor; false at the deadline.
bool PollOne(int fd, short events, const Deadline& deadline);

// For set-up, over any stream socket: all bytes or an error within the deadline; `fd` is
// non-blocking.
absl::Status WriteAll(int fd, absl::string_view bytes, const Deadline& deadline);
absl::Status ReadAll(int fd, uint8_t* to, size_t bytes, const Deadline& deadline);

}  // namespace tributary::transport::internal
