// Which device, port and GID a link uses: within what the config leaves open, those of the route to
// the peer. The GID policy is transport/rdma/gid.h; here are the tables of opened devices.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/rdma/gid.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// The GIDs of one port of a device.
struct PortTable {
  size_t device = 0;  // index into the list of devices
  std::string name;   // of the device
  uint32_t port = 1;
  rdma::LinkLayer layer = rdma::LinkLayer::kEthernet;
  std::vector<rdma::GidEntry> gids;
};

// The ports of a device, as libibverbs lists their GIDs.
std::vector<PortTable> PortTables(size_t device, const std::string& name,
                                  absl::Span<const ibv_gid_entry> entries);

// What must hold of the place; unset fields may be anything.
struct PlaceWish {
  std::string device;
  uint32_t port = 0;  // from 1; 0: any
  int index = -1;     // -1: the GID that has the address
  rdma::Gid address{};
  // The port's GID, where the address is that of an InfiniBand port's IP interface.
  std::optional<rdma::Gid> infiniband;
  std::string address_text;  // for messages
};

// The networks that links from these ports can be on, as auto's offers tell the other side:
// "ethernet/ipv4 ethernet/ipv6 infiniband/fe80000000000000", the last with its subnet. Link-local
// addresses, which every Ethernet port has, name none. Empty where nothing fits `wish` (its port
// and index): an address may yet come.
std::string ReachOf(absl::Span<const PortTable> tables, const PlaceWish& wish);
// OK where two such have a network in common, or a side says nothing of itself. The same with its
// arguments exchanged.
absl::Status ReachFits(const std::string& ours, const std::string& theirs);

struct GidPlace {
  size_t device = 0;
  uint32_t port = 1;
  rdma::GidEntry gid;
  std::string why;  // one phrase for the log
};

// The first port with a GID that fits. NOT_FOUND where none does, with what there is and the mend.
absl::StatusOr<GidPlace> PickPlace(absl::Span<const PortTable> tables, const PlaceWish& wish);

// The port GID in the hardware address of the IPoIB interface with this address; nothing on others.
std::optional<rdma::Gid> IpoibGidOf(const sockaddr_storage& address);

}  // namespace tributary::transport::roce
