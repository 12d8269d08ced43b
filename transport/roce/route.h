// Which device, port and GID the kernel would send to a peer with: asked of the RDMA connection
// manager, which looks at the route.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "transport/rdma/gid.h"
#include "transport/roce/cm_api.h"
#include "transport/tcp/socket.h"

namespace tributary::transport::roce {

struct CmRoute {
  std::string device;  // "mlx5_0"
  uint32_t port = 0;   // from 1
  rdma::Gid gid{};     // of ours: RoCE: the source address; InfiniBand: the port's own
};

// rdma_create_id, rdma_resolve_addr and its event on a channel of its own, until `deadline` at
// most. UNAVAILABLE in words where the kernel has no connection manager or no RDMA device on the
// route.
absl::StatusOr<CmRoute> AskRoute(CmApi& cm, tcp::SocketAddress peer, const Deadline& deadline);

}  // namespace tributary::transport::roce
