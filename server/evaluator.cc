// Lines to and from the evaluator.
#include "server/evaluator.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tributary::server {
namespace {

constexpr size_t kMostLineBytes = 64 * 1024;
constexpr size_t kMostNumbers = 32;
constexpr size_t kMostNameBytes = 64;

absl::StatusOr<std::map<std::string, double>> Numbers(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the evaluator's answer is no JSON object: ", line.substr(0, 200)));
  }
  if (const auto error = json.find("error"); error != json.end()) {
    return absl::AbortedError(error->is_string() ? error->get<std::string>().substr(0, 1000)
                                                 : "an error without words");
  }
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) continue;
    if (name.size() <= kMostNameBytes) numbers[name] = value.get<double>();
    if (numbers.size() == kMostNumbers) break;
  }
  if (!numbers.empty()) return numbers;
  return absl::InvalidArgumentError(
      absl::StrCat("the evaluator's answer has no number: ", line.substr(0, 200)));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& program) {
  const auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  if (program.find('/') != std::string::npos) {
    if (runs(program)) return program;
    return absl::NotFoundError(absl::StrCat("no program ", program));
  }
  const std::string beside = absl::StrCat(SelfDirectory(), "/", program);
  if (runs(beside)) return beside;
  const char* const path = std::getenv("PATH");
  const std::string directories = path == nullptr ? "" : path;
  for (const absl::string_view directory : absl::StrSplit(directories, ':', absl::SkipEmpty())) {
    if (std::string found = absl::StrCat(directory, "/", program); runs(found)) return found;
  }
  return absl::NotFoundError(
      absl::StrCat("no program \"", program, "\" beside ", SelfDirectory(), "/ nor in PATH"));
}

Evaluator::Evaluator(std::vector<std::string> command, const Clock* clock)
    : command_(std::move(command)),
      clock_(clock),
      cancelled_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Evaluator::~Evaluator() {
  Stop();
  if (cancelled_ >= 0) close(cancelled_);
}

void Evaluator::Cancel() { eventfd_write(cancelled_, 1); }

// Until `fd` is ready for `events`, or the other end is gone.
absl::Status Evaluator::Await(int fd, int16_t events, absl::Duration deadline) const {
  while (true) {
    const absl::Duration left = deadline - clock_->Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("the evaluator did not answer in [evaluation] timeout_s");
    }
    pollfd entries[2] = {{.fd = fd, .events = events, .revents = 0},
                         {.fd = cancelled_, .events = POLLIN, .revents = 0}};
    const int64_t wait = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1 << 30);
    const int ready = poll(entries, 2, static_cast<int>(wait));
    if (ready > 0 && entries[1].revents != 0) return absl::CancelledError("the root ends");
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("poll: ", std::strerror(errno)));
    }
  }
}

absl::Status Evaluator::Start() {
  ASSIGN_OR_RETURN(std::string program, FindProgram(command_.front()));
  // A socket, since writing to a pipe whose reader has died raises a signal.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("no socket pair: ", std::strerror(errno)));
  }
  std::vector<std::string> argv = command_;
  argv.front() = std::move(program);
  auto process = Process::Start(argv, {.log_file = "", .pipe_stdout = true, .stdin_fd = ends[1]});
  close(ends[1]);
  if (!process.ok()) {
    close(ends[0]);
    return process.status();
  }
  process_.emplace(*std::move(process));
  input_ = ends[0];
  unread_.clear();
  return absl::OkStatus();
}

void Evaluator::Stop() {
  if (input_ >= 0) close(std::exchange(input_, -1));
  process_.reset();
}

absl::Status Evaluator::Send(const std::string& line, absl::Duration deadline) {
  for (size_t at = 0; at < line.size();) {
    const ssize_t n = send(input_, line.data() + at, line.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      at += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(Await(input_, POLLOUT, deadline));
    } else if (n >= 0 || errno != EINTR) {
      return absl::UnavailableError("the evaluator has ended");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Evaluator::Receive(absl::Duration deadline) {
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (unread_.size() > kMostLineBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the evaluator's answer passes ", kMostLineBytes, " bytes in a line"));
    }
    RETURN_IF_ERROR(Await(process_->stdout_fd(), POLLIN, deadline));
    char bytes[4096];
    const ssize_t n = read(process_->stdout_fd(), bytes, sizeof bytes);
    if (n > 0) {
      unread_.append(bytes, static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      const auto code = process_->Wait(absl::Seconds(1));
      return absl::UnavailableError(code.ok()
                                        ? absl::StrCat("the evaluator has ended with code ", *code)
                                        : "the evaluator has closed its standard output");
    }
  }
}

absl::StatusOr<std::map<std::string, double>> Evaluator::Evaluate(const std::string& model_file,
                                                                  absl::Duration limit) {
  const absl::Duration deadline = clock_->Monotonic() + limit;
  absl::Status status;
  if (!process_.has_value()) status = Start();
  if (status.ok()) status = Await(input_, POLLOUT, deadline);
  if (status.ok()) status = Send(absl::StrCat(model_file, "\n"), deadline);
  if (status.ok()) {
    auto line = Receive(deadline);
    auto numbers = line.ok() ? Numbers(*line) : line.status();
    // What a program in disorder says next might be about an earlier model.
    if (!numbers.ok() && !absl::IsAborted(numbers.status())) Stop();
    return numbers;
  }
  Stop();
  return status;
}

}  // namespace tributary::server
