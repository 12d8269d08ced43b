// Listeners that take connections and say nothing, as a filtered port looks from afar.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "transport/internal/posix_io.h"

namespace tributary::transport {

// Of shared memory's kind.
class SilentListener {
 public:
  SilentListener() {
    static std::atomic<int> made = 0;
    name_ = "tributary-test-silent-" + std::to_string(getpid()) + "-" + std::to_string(made++);
    sockaddr_un here{};
    here.sun_family = AF_UNIX;
    std::memcpy(here.sun_path + 1, name_.data(), name_.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&here), length), 0);
    EXPECT_EQ(listen(socket_.get(), 4), 0);
  }
  std::string address() const { return "@" + name_; }
  int fd() const { return socket_.get(); }

 private:
  std::string name_;
  const internal::Fd socket_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

// A port of this machine at which connections are made and nothing is ever said.
class SilentPort {
 public:
  SilentPort() {
    fd_ = internal::Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(listen(fd_.get(), 4), 0);  // unbound: any address, any port
  }
  std::string address() const {
    sockaddr_in here{};
    socklen_t length = sizeof(here);
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&here), &length);
    return absl::StrCat("127.0.0.1:", ntohs(here.sin_port));
  }
  int fd() const { return fd_.get(); }

 private:
  internal::Fd fd_;
};

}  // namespace tributary::transport
