// A plain blocking socket at a link's port, as a stranger has it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"

namespace tributary::transport {

// Connects to a listener's address: "@name" of shared memory, or any port of this machine.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    sockaddr_storage to{};
    socklen_t length = 0;
    if (address.starts_with('@')) {
      auto* name = reinterpret_cast<sockaddr_un*>(&to);
      name->sun_family = AF_UNIX;
      std::memcpy(name->sun_path + 1, address.data() + 1, address.size() - 1);
      length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    } else {
      int port = 0;
      EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
      auto* name = reinterpret_cast<sockaddr_in*>(&to);
      name->sin_family = AF_INET;
      name->sin_port = htons(static_cast<uint16_t>(port));
      name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      length = sizeof(sockaddr_in);
    }
    fd_ = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), length), 0);
    timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() { close(fd_); }
  int fd() const { return fd_; }
  void Say(const std::string& bytes) const {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // All that is answered until the other side closes.
  std::string Hear() const {
    std::string all;
    char buffer[4096];
    ssize_t n = 0;
    // A process that was stopped and goes on finds its wait interrupted.
    while ((n = recv(fd_, buffer, sizeof(buffer), 0)) > 0 || (n < 0 && errno == EINTR)) {
      if (n > 0) all.append(buffer, static_cast<size_t>(n));
    }
    EXPECT_EQ(n, 0) << "the connection was not closed in order: " << std::strerror(errno);
    return all;
  }

 private:
  int fd_;
};

}  // namespace tributary::transport
