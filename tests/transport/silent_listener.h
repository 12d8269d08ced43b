// A listener of shared memory's kind that takes connections and says nothing, as a filtered port
// looks from afar.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>

#include "transport/internal/posix_io.h"

namespace tributary::transport {

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

 private:
  std::string name_;
  const internal::Fd socket_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

}  // namespace tributary::transport
