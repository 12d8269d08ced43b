// Whether this process may pin the memory that an arena registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace tributary::transport::roce {

// What the kernel holds against a registration.
struct MemlockLimits {
  uint64_t limit_bytes = 0;  // RLIMIT_MEMLOCK; UINT64_MAX where there is none
  bool exempt = false;       // CAP_IPC_LOCK: the limit does not count
};

// Of this process, now.
MemlockLimits ReadMemlockLimits();

// What arenas of `arena_bytes` on `devices` devices need, queues of the drivers included.
uint64_t MemlockNeed(size_t arena_bytes, size_t devices);

// FAILED_PRECONDITION with the need, the limit and the mend for a shell, systemd and containers.
absl::Status CheckMemlock(uint64_t need_bytes, const MemlockLimits& limits);

}  // namespace tributary::transport::roce
