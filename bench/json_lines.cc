// Lines out of what a pipe delivers in pieces.
#include "bench/json_lines.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::bench {

absl::StatusOr<nlohmann::json> JsonLines::Next(Deadline limit) {
  while (true) {
    for (size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      auto line = nlohmann::json::parse(text_.substr(0, end), nullptr, false);
      text_.erase(0, end + 1);
      if (!line.is_discarded()) return line;
    }
    RETURN_IF_ERROR(Read(limit));
  }
}

std::vector<nlohmann::json> JsonLines::Rest() {
  std::vector<nlohmann::json> lines;
  for (auto line = Next(); line.ok(); line = Next()) lines.push_back(*std::move(line));
  return lines;
}

absl::Status JsonLines::Read(Deadline limit) {
  pollfd entry = {.fd = fd_, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&entry, 1, limit.PollMillis());
  } while ((ready < 0 && errno == EINTR) || (ready == 0 && !limit.Expired()));
  if (ready == 0) return absl::DeadlineExceededError("no further line has come");
  char buffer[4096];
  const ssize_t n = ready < 0 ? -1 : read(fd_, buffer, sizeof(buffer));
  if (n < 0) return absl::InternalError(absl::StrCat("reading a pipe: ", strerror(errno)));
  if (n == 0) return absl::OutOfRangeError("the writer has ended");
  text_.append(buffer, static_cast<size_t>(n));
  return absl::OkStatus();
}

}  // namespace tributary::bench
