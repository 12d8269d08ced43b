// What a child process reports on its standard output, one JSON value a line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"

namespace tributary::bench {

// Reads a pipe that stays its owner's. Lines that are not JSON are passed over.
class JsonLines {
 public:
  explicit JsonLines(int fd) : fd_(fd) {}
  // Waits for the next. DEADLINE_EXCEEDED where it does not come by then (one that is there already
  // is returned in any case), OUT_OF_RANGE where the writer has ended.
  absl::StatusOr<nlohmann::json> Next(Deadline limit = Deadline::Infinite());
  // All that come until the writer ends.
  std::vector<nlohmann::json> Rest();

 private:
  absl::Status Read(Deadline limit);

  int fd_;
  std::string text_;  // not yet returned
};

}  // namespace tributary::bench
