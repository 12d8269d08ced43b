// Signal masks by the bare system call.
#include "base/early_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace tributary {
namespace {

void ChangeMask(int how) {
  // The kernel's own form of a set: one bit a signal, from 1.
  const uint64_t signals = (uint64_t{1} << (SIGTERM - 1)) | (uint64_t{1} << (SIGINT - 1));
  syscall(SYS_rt_sigprocmask, how, &signals, nullptr, sizeof(signals));
}

}  // namespace

void HoldEndSignals() { ChangeMask(SIG_BLOCK); }
void ReleaseEndSignals() { ChangeMask(SIG_UNBLOCK); }

}  // namespace tributary
