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
  uint64_t arena_bytes = uint64_t{256} << 20;  // of each device, registered at the start
  uint32_t devices = 1;
};

// Queues are memory of the process too, and count: what drivers pin on a device for those of a few
// dozen links. A guess on the high side (mlx5: 40 KiB a queue pair with its completion queue).
inline constexpr uint64_t kQueueBytes = uint64_t{4} << 20;

// What a link takes of an arena: send and receive slots, each a chunk and its header in whole
// pages.
constexpr uint64_t LinkArenaBytes(uint32_t slots, uint64_t chunk_bytes) {
  constexpr uint64_t kPage = 4096;
  return uint64_t{2} * slots * (chunk_bytes + 2 * kPage);
}

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

// OK, or FAILED_PRECONDITION with what may be locked, what is needed, and MemlockMend of that and
// of what is pinned already.
absl::Status CheckMemlock(uint64_t need, const MemlockLimit& limit);

// The lines for a shell, for systemd and for containers, and the other way out.
std::string MemlockMend(uint64_t need);

// What a transport that registers memory calls before it starts: reads the limit and checks it.
absl::Status RequireMemlock(const RegistrationPlan& plan, const SysFiles& files = SysFiles());

}  // namespace tributary::transport::rdma
