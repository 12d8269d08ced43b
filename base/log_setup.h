// The process's log, for every program alike: for people, or one JSON object a line.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tributary {

struct LogOptions {
  std::string name{};            // of the program
  std::string level = "info";    // trace, debug, info, warn, error
  std::string format = "human";  // or "json": {"time": ..., "level": ..., "message": ...}
  std::string file{};            // appended to; "": standard error
};

// Makes the default spdlog logger. In JSON the message is escaped (RFC 8259), and bytes that are
// not UTF-8 become U+FFFD: a peer's words cannot break a line. PERMISSION_DENIED names the file
// that cannot be appended to. Call it before there are other threads.
absl::Status SetUpLog(const LogOptions& options);

}  // namespace tributary
