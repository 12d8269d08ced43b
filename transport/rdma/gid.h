// Which entry of a port's GID table a link uses: the one policy, pure, for the links and for the
// doctor; and the reading of the table from /sys.
//
// A GID is 128 bits, an IPv6 address in form; IPv4 addresses stand in it as ::ffff:a.b.c.d
// (InfiniBand Architecture Specification, annexes A16 and A17). The table holds an entry for each
// address of the port's network device and each RoCE version; index 0 is usually the link-local
// address in version 1, which neither routers nor most fabrics carry.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sys_files.h"

namespace tributary::transport::rdma {

using Gid = std::array<uint8_t, 16>;  // network byte order

enum class LinkLayer { kUnknown, kEthernet, kInfiniband };
// kUnknown: the kernel would not say. Containers see that: gid_attrs/types/N fails with EINVAL.
enum class GidType { kUnknown, kInfiniband, kRoceV1, kRoceV2 };

struct GidEntry {
  uint32_t index = 0;
  Gid gid{};
  GidType type = GidType::kUnknown;
  std::string netdev;  // the network device whose address it is; empty where not known
};

struct GidWish {
  LinkLayer link_layer = LinkLayer::kEthernet;
  std::optional<uint32_t> index;  // the config's choice: taken whatever its rank, but for version 1
  std::string netdev;             // prefer this network device's entries; empty: any
  // Only entries of this address: what the route of a link has. Of no weight where `index` is set.
  std::optional<Gid> address;
};

struct RankedGid {
  GidEntry entry;              // its type as told, or as inferred
  bool type_inferred = false;  // from the order of the table
  bool usable = false;
  std::string why;  // one phrase: what speaks for it, or why it cannot be used
};

// The address as people write it: "10.0.0.5" for an IPv4-mapped one, else as RFC 5952 has it.
std::string GidText(const Gid& gid);
// "fe80:0000:0000:0000:0e42:a1ff:fe5c:1234" (as in /sys), any IPv6 text, or an IPv4 address, which
// is mapped. INVALID_ARGUMENT otherwise.
absl::StatusOr<Gid> ParseGid(const std::string& text);
const char* GidTypeText(GidType type);
// The IP address of a socket's end as the GID that it has on RoCE; all zero for other families.
Gid GidOfAddress(const sockaddr& address);

// All entries that are not empty, the best first. On Ethernet: a known RoCE v2 before one of
// unknown type; version 1 is never usable, since routers and RoCE v2 peers do not take it. IPv4
// (private or public alike) before global and unique-local IPv6, before 169.254/16, before
// fe80::/10; then the wished network device; then the lower index. On InfiniBand: by index.
//
// Types that are missing are inferred where the same GID stands twice: drivers list a GID's
// version 1 before its version 2.
std::vector<RankedGid> RankGids(const std::vector<GidEntry>& table, const GidWish& wish);

// The first usable of RankGids. NOT_FOUND says what the table has instead, and the mend.
absl::StatusOr<RankedGid> PickGid(const std::vector<GidEntry>& table, const GidWish& wish);

// The table of /sys/class/infiniband/<device>/ports/<port>: entries that are not all zero. A type
// or network device that cannot be read is left unknown. NOT_FOUND where there is no such port.
absl::StatusOr<std::vector<GidEntry>> ReadGidTable(const SysFiles& files, const std::string& device,
                                                   uint32_t port);

}  // namespace tributary::transport::rdma
