// Child processes of the demo, the benches and the tests: started, watched, and never left behind.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tributary {

// Not thread-safe. A child dies with its parent (PR_SET_PDEATHSIG), however the parent ends.
class Process {
 public:
  struct Options {
    std::string log_file;      // standard error, and standard output unless piped; "": inherited
    bool pipe_stdout = false;  // read it with stdout_fd()
    int stdin_fd = -1;         // becomes its standard input; -1: inherited
  };
  static absl::StatusOr<Process> Start(const std::vector<std::string>& argv,
                                       const Options& options);
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process();  // kills it

  pid_t pid() const { return pid_; }
  int stdout_fd() const { return stdout_fd_; }
  void Signal(int number) const;
  // The exit code (128 + signal where it was killed). DEADLINE_EXCEEDED while it runs on.
  absl::StatusOr<int> Wait(absl::Duration limit);
  bool Running();
  // Whether its main thread holds this signal back now; false where it has ended, or is not yet
  // the program it was started for.
  bool Holds(int signal) const;
  // Over its life, once Wait has returned its exit code; before that, 0.
  double cpu_seconds() const { return cpu_seconds_; }  // user + system
  uint64_t peak_resident_bytes() const { return peak_resident_bytes_; }

 private:
  Process() = default;
  pid_t pid_ = -1;
  int stdout_fd_ = -1;
  int exit_code_ = -1;
  double cpu_seconds_ = 0;
  uint64_t peak_resident_bytes_ = 0;
};

std::string SelfDirectory();  // where this executable lies

// Where FreePort looks, by where the kernel's own choices begin (those for outgoing connections and
// for listeners on port 0): below them. A machine that leaves the kernel nearly all ports has no
// room there; the usual room is looked through then, and the kernel may choose from it too.
struct PortRange {
  int first;
  int end;  // the first that is beyond
};
PortRange FreePortRange(int first_ephemeral);

// A TCP port of 127.0.0.1 that nobody has now and that nobody is likely to get before it is used:
// it lies in FreePortRange, and no other caller, in this process or another, is given it before
// this process ends. Holds one file descriptor for each port. kUnavailable where none is left.
absl::StatusOr<int> FreePort();

}  // namespace tributary
