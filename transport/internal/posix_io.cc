// Descriptors, wakers and timed set-up I/O.
#include "transport/internal/posix_io.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tributary::transport::internal {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Waker> Waker::Create() {
  Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus("eventfd", errno);
  return Waker(std::move(fd));
}

void Waker::Wake() const {
  const uint64_t one = 1;
  // Only a full counter can fail, and then the poll ends anyway.
  [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof(one));
}

void Waker::Clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd_.get(), &count, sizeof(count));
}

absl::Status ErrnoStatus(absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, "; raise the limit on open files or free memory"));
  }
  return absl::UnavailableError(message);
}

absl::Status WriteAll(int fd, absl::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus("sending the link hello", errno);
    } else if (!PollOne(fd, POLLOUT, deadline)) {
      return absl::DeadlineExceededError("the peer did not take the link hello in time");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, uint8_t* to, size_t bytes, const Deadline& deadline) {
  while (bytes > 0) {
    const ssize_t n = recv(fd, to, bytes, 0);
    if (n > 0) {
      to += n;
      bytes -= static_cast<size_t>(n);
    } else if (n == 0) {
      return absl::UnavailableError(
          "the peer closed the connection instead of answering the hello");
    } else if (errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus("waiting for the answer to the link hello", errno);
    } else if (!PollOne(fd, POLLIN, deadline)) {
      return absl::DeadlineExceededError("the peer did not answer the link hello in time");
    }
  }
  return absl::OkStatus();
}

bool PollOne(int fd, short events, const Deadline& deadline) {
  while (true) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int n = poll(&entry, 1, deadline.PollMillis());
    if (n > 0) return true;
    if (n == 0 && deadline.Expired()) return false;
  }
}

}  // namespace tributary::transport::internal
