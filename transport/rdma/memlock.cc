// RLIMIT_MEMLOCK against what is to be registered.
#include "transport/rdma/memlock.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tributary::transport::rdma {
namespace {

constexpr int kCapIpcLock = 14;  // linux/capability.h

// The kernel asks for the capability in the initial user namespace, whose map is the identity.
bool InInitialUserNamespace(const SysFiles& files) {
  const auto map = files.Read("/proc/self/uid_map");
  if (!map.ok()) return true;  // a kernel without user namespaces
  const std::vector<std::string> fields =
      absl::StrSplit(*map, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return fields == std::vector<std::string>{"0", "0", "4294967295"};
}

}  // namespace

uint64_t MemlockNeedBytes(const RegistrationPlan& plan) {
  uint64_t device = 0, all = 0;
  const bool over = __builtin_add_overflow(plan.arena_bytes, kQueueBytes, &device) ||
                    __builtin_mul_overflow(device, uint64_t{plan.devices}, &all);
  return over ? UINT64_MAX : all;
}

absl::StatusOr<MemlockLimit> ReadMemlockLimit(const SysFiles& files) {
  ASSIGN_OR_RETURN(const ProcessLimit limit, ReadProcessLimit(files, "Max locked memory"));
  MemlockLimit out = {.bytes = limit.soft, .hard_bytes = limit.hard};
  if (const auto pinned = ReadProcessStatus(files, "VmPin"); pinned.ok()) {
    uint64_t kib = 0;
    const std::vector<absl::string_view> fields = absl::StrSplit(*pinned, ' ');
    if (absl::SimpleAtoi(fields[0], &kib)) out.pinned_bytes = kib << 10;
  }
  ASSIGN_OR_RETURN(const std::string effective, ReadProcessStatus(files, "CapEff"));
  uint64_t capabilities = 0;
  if (!absl::SimpleHexAtoi(effective, &capabilities)) {
    return absl::InvalidArgumentError(
        absl::StrCat("/proc/self/status: CapEff is \"", effective, "\", not hexadecimal"));
  }
  out.exempt = ((capabilities >> kCapIpcLock) & 1) != 0 && InInitialUserNamespace(files);
  return out;
}

bool MemlockSuffices(uint64_t need, const MemlockLimit& limit) {
  if (limit.exempt || limit.bytes == ProcessLimit::kUnlimited) return true;
  return need <= limit.bytes - std::min(limit.bytes, limit.pinned_bytes);
}

std::string MemlockMend(uint64_t need) {
  const uint64_t kib = need / 1024 + (need % 1024 != 0 ? 1 : 0);
  return absl::StrCat(
      "shell: ulimit -l ", kib,
      " (as root, or after raising memlock in /etc/security/limits.conf) | systemd: "
      "LimitMEMLOCK=infinity under [Service] | container: --ulimit memlock=-1:-1 "
      "--cap-add IPC_LOCK | or lower [transport.roce] arena_bytes");
}

absl::Status CheckMemlock(uint64_t need, const MemlockLimit& limit) {
  if (MemlockSuffices(need, limit)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "RDMA has to lock ", BytesText(need), " (", need,
      " bytes) of memory, and this process may lock ", BytesText(limit.bytes),
      limit.pinned_bytes > 0
          ? absl::StrCat(", of which ", BytesText(limit.pinned_bytes), " are taken")
          : "",
      " (RLIMIT_MEMLOCK): ", MemlockMend(need + std::min(limit.pinned_bytes, UINT64_MAX - need))));
}

absl::Status RequireMemlock(const RegistrationPlan& plan, const SysFiles& files) {
  ASSIGN_OR_RETURN(const MemlockLimit limit, ReadMemlockLimit(files));
  return CheckMemlock(MemlockNeedBytes(plan), limit);
}

}  // namespace tributary::transport::rdma
