// How deep a link's queues are and how many slots it has, within what the device grants. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "transport/roce/queue_pair.h"

namespace tributary::transport::roce {

struct QueuePlan {
  uint32_t slots = 0;       // for sending, and as many for receiving
  uint32_t grant_room = 0;  // grants of the peer that the receive queues have room for
  QueuePair::Depths depths;
  uint32_t completions = 0;  // entries of the completion queue: it can never overflow
};

struct QueueLimits {
  uint32_t queue_requests = 0;  // max_qp_wr
  uint32_t completions = 0;     // max_cqe
};

// For `slots` wished for here and `peer_slots` there over `queue_pairs` queue pairs. Takes less
// where the device grants less. FAILED_PRECONDITION where it does not even grant one slot.
absl::StatusOr<QueuePlan> PlanQueues(uint32_t slots, uint32_t peer_slots, uint32_t queue_pairs,
                                     const QueueLimits& limits);

}  // namespace tributary::transport::roce
