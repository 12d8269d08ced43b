// What this process holds and has used, for tests that nothing is left behind and nobody spins.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace tributary::transport {

inline size_t OpenFds() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(fds), end(fds)));
}

inline size_t ResidentBytes() {
  size_t pages = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Of those, what is no page of a file: code that runs for the first time does not count.
inline size_t OwnedBytes() {
  std::ifstream status("/proc/self/status");
  size_t sum = 0;
  for (std::string word; status >> word;) {
    size_t kilobytes = 0;
    if ((word == "RssAnon:" || word == "RssShmem:") && status >> kilobytes) sum += kilobytes;
  }
  return sum * 1024;
}

// Whether these say something: what a sanitizer keeps hides what is left behind.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMemoryCounts = false;
#else
inline constexpr bool kMemoryCounts = true;
#endif

inline double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                               absl::DurationFromTimeval(usage.ru_stime));
}

// Until no more are open than `most`, looking again every millisecond: threads of listeners and
// links let go of their last sockets a moment later. The number that are open then.
inline size_t AwaitFds(size_t most, absl::Duration patience = absl::Seconds(30)) {
  const Deadline limit = Deadline::After(patience);
  while (OpenFds() > most && !limit.Expired()) absl::SleepFor(absl::Milliseconds(1));
  return OpenFds();
}

}  // namespace tributary::transport
