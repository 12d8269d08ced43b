// Which GID table entry a link uses: by the address that its control socket took, which the kernel
// chose by route. Pure functions but for InterfaceOf.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// An entry of some device's table.
struct GidChoice {
  size_t device = 0;  // index into the list of tables
  ibv_gid_entry entry{};
};

// What must hold of the entry; unset fields may be anything.
struct GidWish {
  ibv_gid local{};               // the control socket's address, IPv4 as ::ffff:a.b.c.d
  std::optional<ibv_gid> ipoib;  // the port's GID, where that address is an IPoIB interface's
  uint32_t port = 0;             // from 1; 0: any
  int index = -1;                // -1: the one that has `local`
  std::string address;           // of the control socket, for messages
};

// One table for each device. NOT_FOUND where none fits, with what there is and how to mend it.
absl::StatusOr<GidChoice> PickGid(absl::Span<const std::vector<ibv_gid_entry>> tables,
                                  const GidWish& wish);

// An address as the GID that it has on RoCE.
ibv_gid GidOf(const sockaddr_storage& address);
// The port GID in the hardware address of the IPoIB interface with this address; nothing on others.
std::optional<ibv_gid> IpoibGidOf(const sockaddr_storage& address);
bool SameGid(const ibv_gid& a, const ibv_gid& b);
// As an IP address, e.g. "::ffff:10.0.0.5".
std::string GidText(const ibv_gid& gid);

}  // namespace tributary::transport::roce
