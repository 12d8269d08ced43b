// rdma_resolve_addr → rdma_resolve_route → rdma_connect, each step an event with a deadline.
#include "doctor/peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "doctor/verbs.h"

namespace tributary::doctor {
namespace {

// The discard service's number: RDMA has port numbers of its own, and nobody listens on this one.
constexpr uint16_t kNobodysPort = 9;

// A numeric address; family AF_UNSPEC where the text is none.
sockaddr_storage ParseAddress(const std::string& address) {
  sockaddr_storage out{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out);
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(kNobodysPort);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(kNobodysPort);
  }
  return out;
}

struct CmEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_TIMEWAIT_EXIT;
  int status = 0;  // negative errno
};

// The next event; nothing where the deadline passes first.
absl::StatusOr<std::optional<CmEvent>> NextEvent(const RdmaCmTable& cm, rdma_event_channel* channel,
                                                 const Deadline& deadline) {
  pollfd wait = {.fd = channel->fd, .events = POLLIN, .revents = 0};
  if (poll(&wait, 1, deadline.PollMillis()) <= 0) return std::optional<CmEvent>();
  rdma_cm_event* event = nullptr;
  if (cm.get_cm_event(channel, &event) != 0)
    return absl::UnavailableError(absl::StrCat("rdma_get_cm_event: ", strerror(errno)));
  const CmEvent out = {event->event, event->status};
  cm.ack_cm_event(event);
  return std::optional<CmEvent>(out);
}

// What an address that could not be resolved says.
CmAnswer Unresolved(const CmEvent& event) {
  const bool no_neighbour = event.status == -ETIMEDOUT || event.status == -EHOSTUNREACH;
  return event.type == RDMA_CM_EVENT_ADDR_ERROR && no_neighbour ? CmAnswer::kNoHost
                                                                : CmAnswer::kNoDevice;
}

}  // namespace

absl::StatusOr<CmAnswer> ProbeCm(const RdmaCmTable& cm, const std::string& address,
                                 absl::Duration limit) {
  const Deadline deadline = Deadline::After(limit);
  // Each of the two resolutions; a third of the time is left to the answer.
  const int step_ms = static_cast<int>(absl::ToInt64Milliseconds(limit / 3));
  sockaddr_storage to = ParseAddress(address);
  rdma_event_channel* channel = cm.create_event_channel();
  if (channel == nullptr)
    return absl::UnavailableError(absl::StrCat("rdma_create_event_channel: ", strerror(errno)));
  const absl::Cleanup drop_channel = [&] { cm.destroy_event_channel(channel); };
  rdma_cm_id* id = nullptr;
  if (cm.create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0)
    return absl::UnavailableError(absl::StrCat("rdma_create_id: ", strerror(errno)));
  const absl::Cleanup drop_id = [&] { cm.destroy_id(id); };

  if (cm.resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), step_ms) != 0)
    return CmAnswer::kNoDevice;
  ASSIGN_OR_RETURN(auto event, NextEvent(cm, channel, deadline));
  if (!event.has_value()) return CmAnswer::kSilent;
  if (event->type != RDMA_CM_EVENT_ADDR_RESOLVED) return Unresolved(*event);
  if (id->verbs == nullptr) return CmAnswer::kNoDevice;
  if (cm.resolve_route(id, step_ms) != 0) return CmAnswer::kNoDevice;
  ASSIGN_OR_RETURN(event, NextEvent(cm, channel, deadline));
  if (!event.has_value() || event->type != RDMA_CM_EVENT_ROUTE_RESOLVED) return CmAnswer::kSilent;

  rdma_conn_param parameters{};
  parameters.retry_count = 1;
  parameters.rnr_retry_count = 1;
  parameters.qp_num = 1;  // of no queue pair: the request is to be refused
  if (cm.connect(id, &parameters) != 0)
    return absl::UnavailableError(absl::StrCat("rdma_connect: ", strerror(errno)));
  ASSIGN_OR_RETURN(event, NextEvent(cm, channel, deadline));
  if (!event.has_value()) return CmAnswer::kSilent;
  const bool answered = event->type == RDMA_CM_EVENT_REJECTED ||
                        event->type == RDMA_CM_EVENT_CONNECT_RESPONSE ||
                        event->type == RDMA_CM_EVENT_ESTABLISHED;
  return answered ? CmAnswer::kAnswered : CmAnswer::kSilent;
}

Finding JudgePeer(const std::optional<CmAnswer>& cm, const absl::StatusOr<UdpAnswer>& udp,
                  const std::string& address, Verdict bad) {
  Finding f;
  f.verdict = bad;
  const std::string capture = "tcpdump -ni any udp port 4791  # on the peer, while this runs again";
  if (cm == CmAnswer::kAnswered) {
    f.verdict = Verdict::kOk;
    f.seen = absl::StrCat(address,
                          " answered through its RDMA connection manager: UDP 4791 is "
                          "open both ways");
  } else if (cm == CmAnswer::kNoHost || (udp.ok() && *udp == UdpAnswer::kUnreachable)) {
    f.seen = absl::StrCat("no way to ", address);
    f.mend = absl::StrCat("ip route get ", address, "; ping -c 3 ", address);
  } else if (udp.ok() && *udp == UdpAnswer::kRefused) {
    f.seen =
        absl::StrCat(address, " is there, but nothing takes UDP 4791 on it: it has no RoCE on");
    f.mend = "rdma link show  # on the peer";
  } else if (cm == CmAnswer::kSilent) {
    f.seen = absl::StrCat(address,
                          " did not answer over RDMA: UDP 4791 is filtered on the way, or "
                          "the peer has no RDMA connection manager loaded");
    f.mend = absl::StrCat(capture,
                          "; modprobe rdma_cm; iptables -I INPUT -p udp --dport 4791 -j "
                          "ACCEPT");
  } else if (cm == CmAnswer::kNoDevice) {
    f.seen = absl::StrCat("no RDMA device of this machine has the route to ", address);
    f.mend = absl::StrCat("ip route get ", address,
                          "  # must name an RDMA device's network device: "
                          "rdma link show");
  } else {
    f.verdict = Verdict::kWarn;
    f.seen = absl::StrCat("a datagram to ", address,
                          " port 4791 met no refusal; only a machine with RDMA can tell more");
    f.mend = capture;
  }
  return f;
}

}  // namespace tributary::doctor
