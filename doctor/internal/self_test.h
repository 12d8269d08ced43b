// A short test of one RDMA port against itself: two reliable-connection queue pairs, RDMA writes
// from one to the other through the device. It proves registration, the GID and the queue pairs; it
// sends nothing over a cable.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "doctor/internal/inventory.h"

namespace tributary::doctor::internal {

struct SelfTestResult {
  uint64_t bytes = 0;  // written and acknowledged
  absl::Duration took;
};

// 256 writes of 64 KiB, fewer where `limit` passes. The error names the step and, for a failed
// write, the completion's status.
absl::StatusOr<SelfTestResult> RunSelfTest(const VerbsTable& verbs, ibv_context* context,
                                           const RdmaPort& port,
                                           const transport::rdma::GidEntry& gid,
                                           absl::Duration limit);

}  // namespace tributary::doctor::internal
