// Sizes queues.
#include "transport/roce/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tributary::transport::roce {
namespace {

// Beside chunks and grants a send queue holds two probes, a flush and the marker of its end; a
// receive queue the peer's two probes.
constexpr uint32_t kSendExtra = 4;
constexpr uint32_t kReceiveExtra = 2;

// A send queue may hold every chunk and, since unsignalled requests are accounted for late, twice
// the grants that can be out and a flush for each chunk. A receive queue holds every chunk and
// grant that the peer may send, so that "receiver not ready" cannot happen.
QueuePair::Depths DepthsFor(uint32_t slots, uint32_t grant_room) {
  return {.send = 4 * slots + kSendExtra, .receive = slots + grant_room + kReceiveExtra};
}

bool Fits(const QueuePair::Depths& depths, uint32_t queue_pairs, const QueueLimits& limits) {
  return depths.send <= limits.queue_requests && depths.receive <= limits.queue_requests &&
         (depths.send + depths.receive) * queue_pairs <= limits.completions;
}

}  // namespace

absl::StatusOr<QueuePlan> PlanQueues(uint32_t slots, uint32_t peer_slots, uint32_t queue_pairs,
                                     const QueueLimits& limits) {
  QueuePlan plan{.slots = slots, .grant_room = peer_slots, .depths = {}, .completions = 0};
  while (!Fits(DepthsFor(plan.slots, plan.grant_room), queue_pairs, limits)) {
    if (plan.slots == 1 && plan.grant_room == 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("the device grants ", limits.queue_requests, " requests a queue and ",
                       limits.completions, " completions, too few for even one slot on ",
                       queue_pairs, " queue pairs; lower the link's lanes"));
    }
    // The larger gives way, so that neither direction starves the other.
    uint32_t& more = plan.slots >= plan.grant_room ? plan.slots : plan.grant_room;
    --more;
  }
  plan.depths = DepthsFor(plan.slots, plan.grant_room);
  plan.completions = (plan.depths.send + plan.depths.receive) * queue_pairs;
  return plan;
}

}  // namespace tributary::transport::roce
