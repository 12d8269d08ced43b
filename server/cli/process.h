// Child processes of the demo and the benches: started, watched, and never left behind.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tributary::cli {

// Not thread-safe. A child dies with its parent (PR_SET_PDEATHSIG), however the parent ends.
class Process {
 public:
  struct Options {
    std::string log_file;      // standard error, and standard output unless piped; "": inherited
    bool pipe_stdout = false;  // read it with stdout_fd()
  };
  static absl::StatusOr<Process> Start(const std::vector<std::string>& argv, const Options& options);
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process();  // kills it

  pid_t pid() const { return pid_; }
  int stdout_fd() const { return stdout_fd_; }
  void Signal(int number) const;
  // The exit code (128 + signal where it was killed). DEADLINE_EXCEEDED while it runs on.
  absl::StatusOr<int> Wait(absl::Duration limit);
  bool Running();
  // From /proc: user + system CPU seconds, resident bytes. 0 where it is gone.
  double CpuSeconds() const;
  uint64_t ResidentBytes() const;
  uint64_t PeakResidentBytes() const;

 private:
  Process() = default;
  pid_t pid_ = -1;
  int stdout_fd_ = -1;
  int exit_code_ = -1;
};

std::string SelfDirectory();          // where this executable lies
absl::StatusOr<int> FreePort();       // a TCP port of 127.0.0.1 that nobody has now

}  // namespace tributary::cli
