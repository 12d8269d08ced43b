// May this process lock the memory that a link's registered arena needs? Asked before anything is
// registered, so that the refusal carries the number and the mend instead of "Cannot allocate
// memory".
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sys_files.h"

namespace tributary::transport::rdma {

struct RegistrationPlan {
  uint64_t chunk_bytes = 0;
  uint32_t slots = 0;        // receive slots a link; as many send slots are registered
  uint32_t links = 1;        // to the parent, and from children
  uint32_t queue_pairs = 1;  // a link
};

// Queues are memory of the process too, and count: send and receive ring and completion queue of
// one queue pair. A guess on the high side (mlx5: 64 entries of 192 B, rounded to pages, come to
// about 40 KiB).
inline constexpr uint64_t kQueuePairBytes = uint64_t{128} << 10;

// Bytes that stay locked while the links live. Saturates at UINT64_MAX.
uint64_t MemlockNeedBytes(const RegistrationPlan& plan);

struct MemlockLimit {
  uint64_t bytes = ProcessLimit::kUnlimited;  // RLIMIT_MEMLOCK, soft
  uint64_t hard_bytes = ProcessLimit::kUnlimited;
  uint64_t pinned_bytes = 0;  // registered already by this process (VmPin)
  // CAP_IPC_LOCK in the initial user namespace: the limit does not bind. In a user namespace of a
  // container's own the capability is there, and does nothing.
  bool exempt = false;
};

// From /proc/self/{limits,status,uid_map}.
absl::StatusOr<MemlockLimit> ReadMemlockLimit(const SysFiles& files);

// Can `need` bytes more be locked?
bool MemlockSuffices(uint64_t need, const MemlockLimit& limit);

// OK, or FAILED_PRECONDITION with what may be locked, what is needed, and MemlockMend.
absl::Status CheckMemlock(uint64_t need, const MemlockLimit& limit);

// The lines for a shell, for systemd and for containers.
std::string MemlockMend(uint64_t need);

// What a transport that registers memory calls before it starts: reads the limit and checks it.
absl::Status RequireMemlock(const RegistrationPlan& plan, const SysFiles& files = SysFiles());

}  // namespace tributary::transport::rdma
