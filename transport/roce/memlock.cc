// The memlock check.
#include "transport/roce/memlock.h"

#include <sys/resource.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace tributary::transport::roce {
namespace {

constexpr int kCapIpcLock = 14;  // linux/capability.h
// A guess at what drivers pin for the queues of a few dozen links: 64 bytes an entry and spare.
constexpr uint64_t kQueueBytes = uint64_t{4} << 20;

}  // namespace

MemlockLimits ReadMemlockLimits() {
  MemlockLimits limits;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  limits.limit_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("CapEff:", 0) != 0) continue;
    limits.exempt = (std::stoull(line.substr(7), nullptr, 16) >> kCapIpcLock & 1) != 0;
  }
  return limits;
}

uint64_t MemlockNeed(size_t arena_bytes, size_t devices) {
  return (arena_bytes + kQueueBytes) * devices;
}

absl::Status CheckMemlock(uint64_t need_bytes, const MemlockLimits& limits) {
  if (limits.exempt || limits.limit_bytes >= need_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "RoCE registers memory and must lock ", need_bytes,
      " bytes of it, but this process may lock ", limits.limit_bytes,
      " (RLIMIT_MEMLOCK); raise it: `ulimit -l ", (need_bytes + 1023) / 1024,
      "` in the shell that starts this, LimitMEMLOCK=infinity in its systemd unit, `--ulimit "
      "memlock=-1` for a container; or lower arena_bytes"));
}

}  // namespace tributary::transport::roce
