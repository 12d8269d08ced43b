// The connection manager's answer to an address.
#include "transport/roce/route.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::roce {
namespace {

absl::Status Failed(const char* call, int error) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(error)));
}

// The connection manager has no way to an IPv4 address in the clothes of an IPv6 one.
void Unmap(sockaddr_storage* address) {
  const auto v6 = *reinterpret_cast<const sockaddr_in6*>(address);
  if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return;
  *address = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(address);
  v4->sin_family = AF_INET;
  v4->sin_port = v6.sin6_port;
  std::memcpy(&v4->sin_addr, v6.sin6_addr.s6_addr + 12, sizeof(v4->sin_addr));
}

// OK once the address is resolved.
absl::Status AwaitResolved(CmApi& cm, rdma_event_channel* channel, const Deadline& deadline) {
  while (true) {
    rdma_cm_event* event = nullptr;
    if (cm.GetCmEvent(channel, &event) == 0) {
      const rdma_cm_event_type type = event->event;
      const int error = -event->status;
      cm.AckCmEvent(event);
      if (type == RDMA_CM_EVENT_ADDR_RESOLVED) return absl::OkStatus();
      return Failed("no RDMA device is on the route to the peer", error > 0 ? error : ENODEV);
    }
    if (errno != EAGAIN && errno != EINTR) return Failed("rdma_get_cm_event", errno);
    if (!internal::PollOne(channel->fd, POLLIN, deadline)) {
      return absl::UnavailableError("the connection manager did not resolve the address in time");
    }
  }
}

}  // namespace

absl::StatusOr<CmRoute> AskRoute(CmApi& cm, tcp::SocketAddress peer, const Deadline& deadline) {
  rdma_event_channel* channel = cm.CreateEventChannel();
  if (channel == nullptr) {
    return Failed("the kernel's connection manager cannot be had (modprobe rdma_ucm)", errno);
  }
  const absl::Cleanup drop_channel = [&] { cm.DestroyEventChannel(channel); };
  const int flags = fcntl(channel->fd, F_GETFL);
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return Failed("fcntl of the connection manager's channel", errno);
  }
  Unmap(&peer.storage);
  rdma_cm_id* id = nullptr;
  if (cm.CreateId(channel, &id) != 0) return Failed("rdma_create_id", errno);
  const absl::Cleanup drop_id = [&] { cm.DestroyId(id); };
  if (cm.ResolveAddr(id, nullptr, reinterpret_cast<sockaddr*>(&peer.storage),
                     deadline.PollMillis()) != 0) {
    return Failed("no RDMA device is on the route to the peer", errno);
  }
  RETURN_IF_ERROR(AwaitResolved(cm, channel, deadline));
  if (id->verbs == nullptr) return Failed("no RDMA device is on the route to the peer", ENODEV);
  CmRoute route{.device = id->verbs->device->name, .port = id->port_num, .gid = {}};
  std::memcpy(route.gid.data(), id->route.addr.addr.ibaddr.sgid.raw, route.gid.size());
  return route;
}

}  // namespace tributary::transport::roce
