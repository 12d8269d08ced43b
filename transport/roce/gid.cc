// Picks a GID table entry.
#include "transport/roce/gid.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if_arp.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tributary::transport::roce {
namespace {

const char* TypeText(uint32_t type) {
  if (type == IBV_GID_TYPE_IB) return "InfiniBand";
  return type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1" : "RoCE v2";
}

std::string Listing(absl::Span<const std::vector<ibv_gid_entry>> tables) {
  constexpr size_t kMost = 16;  // a table can have hundreds; this is a line in a log
  std::string text;
  size_t shown = 0;
  for (const auto& table : tables) {
    for (const ibv_gid_entry& entry : table) {
      if (++shown > kMost) return absl::StrCat(text, ", ...");
      absl::StrAppend(&text, shown == 1 ? "" : ", ", "port ", entry.port_num, " index ",
                      entry.gid_index, " ", GidText(entry.gid), " (", TypeText(entry.gid_type),
                      ")");
    }
  }
  return text.empty() ? "none" : text;
}

bool Fits(const ibv_gid_entry& entry, const GidWish& wish) {
  if (wish.port != 0 && entry.port_num != wish.port) return false;
  if (wish.index >= 0) return entry.gid_index == static_cast<uint32_t>(wish.index);
  if (entry.gid_type == IBV_GID_TYPE_IB) {
    return wish.ipoib.has_value() && SameGid(entry.gid, *wish.ipoib);
  }
  return entry.gid_type == IBV_GID_TYPE_ROCE_V2 && SameGid(entry.gid, wish.local);
}

// The sockaddr of `entry` has the same IP address as `address`.
bool HasAddress(const ifaddrs& entry, const sockaddr_storage& address) {
  if (entry.ifa_addr == nullptr) return false;
  sockaddr_storage other{};
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return false;
  std::memcpy(&other, entry.ifa_addr,
              family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return SameGid(GidOf(other), GidOf(address));
}

}  // namespace

absl::StatusOr<GidChoice> PickGid(absl::Span<const std::vector<ibv_gid_entry>> tables,
                                  const GidWish& wish) {
  for (size_t device = 0; device < tables.size(); ++device) {
    for (const ibv_gid_entry& entry : tables[device]) {
      if (!Fits(entry, wish)) continue;
      if (entry.gid_type == IBV_GID_TYPE_ROCE_V1) {
        return absl::FailedPreconditionError(
            absl::StrCat("GID index ", wish.index,
                         " is of RoCE v1, which is not routed; choose one "
                         "of RoCE v2. There are: ",
                         Listing(tables)));
      }
      return GidChoice{.device = device, .entry = entry};
    }
  }
  if (wish.index >= 0) {
    return absl::NotFoundError(absl::StrCat(
        "no GID of index ", wish.index, wish.port == 0 ? "" : absl::StrCat(" on port ", wish.port),
        "; there are: ", Listing(tables)));
  }
  return absl::NotFoundError(absl::StrCat("no RDMA device has the address ", wish.address,
                                          " of the link's control socket as a RoCE v2 "
                                          "GID; let the link's address be one of the RDMA "
                                          "interface, or name device and gid_index. There "
                                          "are: ",
                                          Listing(tables)));
}

ibv_gid GidOf(const sockaddr_storage& address) {
  ibv_gid gid{};
  if (address.ss_family == AF_INET6) {
    std::memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  } else if (address.ss_family == AF_INET) {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return gid;
}

std::optional<ibv_gid> IpoibGidOf(const sockaddr_storage& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  std::optional<ibv_gid> found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (!HasAddress(*one, address)) continue;
    for (const ifaddrs* link = all; link != nullptr; link = link->ifa_next) {
      if (link->ifa_addr == nullptr || link->ifa_addr->sa_family != AF_PACKET ||
          std::strcmp(link->ifa_name, one->ifa_name) != 0) {
        continue;
      }
      // An IPoIB hardware address: 4 bytes of flags and queue pair, then the port's GID. It is
      // longer than the struct's array, and getifaddrs gives it room.
      if (reinterpret_cast<const sockaddr_ll*>(link->ifa_addr)->sll_hatype != ARPHRD_INFINIBAND) {
        continue;
      }
      ibv_gid gid{};
      std::memcpy(
          gid.raw,
          reinterpret_cast<const uint8_t*>(link->ifa_addr) + offsetof(sockaddr_ll, sll_addr) + 4,
          16);
      found = gid;
    }
  }
  freeifaddrs(all);
  return found;
}

bool SameGid(const ibv_gid& a, const ibv_gid& b) { return std::memcmp(a.raw, b.raw, 16) == 0; }

std::string GidText(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.raw, text, sizeof(text)) == nullptr ? "?" : text;
}

}  // namespace tributary::transport::roce
