// fork, exec, wait.
#include "base/process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"

namespace tributary {

absl::StatusOr<Process> Process::Start(const std::vector<std::string>& argv,
                                       const Options& options) {
  int fds[2] = {-1, -1};
  if (options.pipe_stdout && pipe2(fds, O_CLOEXEC) != 0) return absl::InternalError("no pipe");
  std::vector<char*> args;
  args.reserve(argv.size() + 1);
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  int log = -1;
  if (!options.log_file.empty()) {
    log = open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0)
      return absl::PermissionDeniedError(absl::StrCat("cannot write ", options.log_file));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", argv[0], ": ", strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    // Ctrl-C is the parent's business: it ends its children in order.
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (options.stdin_fd >= 0) dup2(options.stdin_fd, 0);
    if (log >= 0) dup2(log, 2);
    if (options.pipe_stdout) {
      dup2(fds[1], 1);
    } else if (log >= 0) {
      dup2(log, 1);
    }
    execv(args[0], args.data());
    _exit(127);
  }
  if (log >= 0) close(log);
  Process out;
  out.pid_ = pid;
  if (options.pipe_stdout) {
    close(fds[1]);
    out.stdout_fd_ = fds[0];
  }
  return out;
}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(stdout_fd_, other.stdout_fd_);
  std::swap(exit_code_, other.exit_code_);
  std::swap(cpu_seconds_, other.cpu_seconds_);
  std::swap(peak_resident_bytes_, other.peak_resident_bytes_);
  return *this;
}

Process::~Process() {
  if (pid_ > 0 && exit_code_ < 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (stdout_fd_ >= 0) close(stdout_fd_);
}

void Process::Signal(int number) const {
  if (pid_ > 0 && exit_code_ < 0) kill(pid_, number);
}

absl::StatusOr<int> Process::Wait(absl::Duration limit) {
  if (exit_code_ >= 0) return exit_code_;
  // A pidfd becomes readable when the process ends: no polling.
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (fd < 0) return absl::InternalError(absl::StrCat("pidfd_open: ", strerror(errno)));
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  const Deadline deadline = Deadline::After(limit);
  int ready = 0;
  do {
    ready = poll(&entry, 1, deadline.PollMillis());
  } while (ready < 0 && errno == EINTR);
  close(fd);
  if (ready == 0) return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs"));
  int status = 0;
  rusage usage = {};
  wait4(pid_, &status, 0, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  cpu_seconds_ = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  peak_resident_bytes_ = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

bool Process::Running() { return !Wait(absl::ZeroDuration()).ok(); }

bool Process::Holds(int signal) const {
  // Between fork and exec it is this program still, which may hold back all signals for a moment.
  std::error_code error;
  const auto program = std::filesystem::read_symlink(absl::StrCat("/proc/", pid_, "/exe"), error);
  if (error || program == std::filesystem::read_symlink("/proc/self/exe", error)) return false;
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(status, line);) {
    uint64_t held = 0;  // bit 0 is signal 1
    if (line.starts_with("SigBlk:") &&
        absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line.substr(7)), &held)) {
      return (held >> (signal - 1) & 1) != 0;
    }
  }
  return false;
}

std::string SelfDirectory() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return path.parent_path().string();
}

namespace {

bool Bindable(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return bound;
}

// A name in the kernel's abstract namespace, which goes with the process that holds it.
bool ReserveAmongProcesses(int port) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const int length =
      std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "tributary-port-%d", port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&name),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) == 0) {
    return true;  // open until the process ends
  }
  close(fd);
  return false;
}

// Where the kernel's own choices begin (outgoing connections, and listeners on port 0).
int FirstEphemeralPort() {
  int first = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  return range >> first ? first : 32768;
}

}  // namespace

PortRange FreePortRange(int first_ephemeral) {
  constexpr int kLowest = 10240;
  constexpr int kUsualEnd = 32768;
  constexpr int kEnough = 1000;  // for tests that run side by side
  return {kLowest, first_ephemeral >= kLowest + kEnough ? first_ephemeral : kUsualEnd};
}

absl::StatusOr<int> FreePort() {
  const PortRange range = FreePortRange(FirstEphemeralPort());
  std::random_device random;
  std::uniform_int_distribution<int> any(range.first, range.end - 1);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = any(random);
    if (Bindable(port) && ReserveAmongProcesses(port)) return port;
  }
  return absl::UnavailableError("no free TCP port on 127.0.0.1");
}

}  // namespace tributary
