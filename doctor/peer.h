// Can a peer be reached for RoCE, whose packets go to UDP port 4791? Asked through the RDMA
// connection manager, which needs nothing of ours on the peer; the judgement is a pure function.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "doctor/environment.h"
#include "doctor/report.h"

namespace tributary::doctor {

enum class CmAnswer {
  kAnswered,  // the peer's connection manager replied, if only to refuse: both directions work
  kSilent,    // no reply
  kNoHost,    // nobody on the network segment has the address, nor a gateway to it
  kNoDevice,  // no RDMA device here has a route to the address
};

// Asks to connect to a port where nobody listens: a peer with RDMA says so within its round trip.
// `limit` bounds the whole. UNAVAILABLE where the connection manager cannot be used.
absl::StatusOr<CmAnswer> ProbeCm(const RdmaCmTable& cm, const std::string& address,
                                 absl::Duration limit);

// `udp`: what a datagram met. `bad`: the verdict of a fault.
Finding JudgePeer(const std::optional<CmAnswer>& cm, const absl::StatusOr<UdpAnswer>& udp,
                  const std::string& address, Verdict bad);

}  // namespace tributary::doctor
