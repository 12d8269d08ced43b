// A peer as a process of its own, for tests that kill, stop or restart it.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

extern char** environ;

namespace tributary::transport {

// Runs the helper `transport_peer`, which connects to a listener of this kind and sends chunks,
// their number in tag.index, for ever; `idle`: none.
class PeerProcess {
 public:
  PeerProcess(std::string kind, std::string address, int heartbeat_ms, bool idle = false) {
    std::string program =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "transport_peer").string();
    std::string beat = absl::StrCat(heartbeat_ms);
    std::string does = idle ? "idle" : "sends";
    char* arguments[] = {program.data(), kind.data(), address.data(),
                         beat.data(),    does.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) const { kill(pid_, signal); }

 private:
  pid_t pid_ = -1;
};

}  // namespace tributary::transport
