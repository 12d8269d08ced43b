// Finds a port and a GID for a link.
#include "transport/roce/place.h"

#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tributary::transport::roce {
namespace {

rdma::GidEntry EntryOf(const ibv_gid_entry& from) {
  rdma::GidEntry entry;
  entry.index = from.gid_index;
  std::memcpy(entry.gid.data(), from.gid.raw, entry.gid.size());
  if (from.gid_type == IBV_GID_TYPE_IB) entry.type = rdma::GidType::kInfiniband;
  if (from.gid_type == IBV_GID_TYPE_ROCE_V1) entry.type = rdma::GidType::kRoceV1;
  if (from.gid_type == IBV_GID_TYPE_ROCE_V2) entry.type = rdma::GidType::kRoceV2;
  char name[IF_NAMESIZE] = "";
  if (from.ndev_ifindex != 0 && if_indextoname(from.ndev_ifindex, name) != nullptr) {
    entry.netdev = name;
  }
  return entry;
}

std::string Listing(absl::Span<const PortTable> tables) {
  constexpr size_t kMost = 16;  // a table can have hundreds; this is a line in a log
  std::string text;
  size_t shown = 0;
  for (const PortTable& table : tables) {
    for (const rdma::GidEntry& entry : table.gids) {
      if (++shown > kMost) return absl::StrCat(text, ", ...");
      absl::StrAppend(&text, shown == 1 ? "" : ", ", table.name, " port ", table.port, " index ",
                      entry.index, " ", rdma::GidText(entry.gid), " (",
                      rdma::GidTypeText(entry.type), ")");
    }
  }
  return text.empty() ? "none" : text;
}

bool Has(const PortTable& table, int index) {
  for (const rdma::GidEntry& entry : table.gids) {
    if (static_cast<int>(entry.index) == index) return true;
  }
  return false;
}

absl::Status NoPlace(absl::Span<const PortTable> tables, const PlaceWish& wish) {
  const std::string there = absl::StrCat("There are: ", Listing(tables));
  const bool known = std::any_of(tables.begin(), tables.end(),
                                 [&](const PortTable& table) { return table.name == wish.device; });
  if (!wish.device.empty() && !known) {
    return absl::NotFoundError(absl::StrCat("RDMA device \"", wish.device,
                                            "\" is not among the devices opened here. ", there));
  }
  if (wish.index >= 0) {
    return absl::NotFoundError(absl::StrCat(
        "no GID of index ", wish.index, wish.port == 0 ? "" : absl::StrCat(" on port ", wish.port),
        "; choose another gid_index. ", there));
  }
  return absl::NotFoundError(
      absl::StrCat("no RDMA device has the address ", wish.address_text,
                   wish.port == 0 ? "" : absl::StrCat(" on port ", wish.port),
                   " as a RoCE v2 GID; let the link's address be one of the RDMA interface, or "
                   "name device and gid_index. ",
                   there));
}

// The network that a GID's address is one of; empty for what does not leave its cable.
std::string NetworkOf(const rdma::Gid& gid, rdma::LinkLayer layer) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (layer == rdma::LinkLayer::kInfiniband) {
    const std::string subnet(gid.begin(), gid.begin() + 8);
    return absl::StrCat("infiniband/", absl::BytesToHexString(subnet));
  }
  if (std::equal(kMapped.begin(), kMapped.end(), gid.begin())) return "ethernet/ipv4";
  const bool link_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
  return link_local ? "" : "ethernet/ipv6";
}

// The sockaddr of `entry` has the same IP address as `address`.
bool HasAddress(const ifaddrs& entry, const sockaddr_storage& address) {
  if (entry.ifa_addr == nullptr) return false;
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return false;
  return rdma::GidOfAddress(*entry.ifa_addr) ==
         rdma::GidOfAddress(reinterpret_cast<const sockaddr&>(address));
}

}  // namespace

std::vector<PortTable> PortTables(size_t device, const std::string& name,
                                  absl::Span<const ibv_gid_entry> entries) {
  std::map<uint32_t, PortTable> ports;
  for (const ibv_gid_entry& entry : entries) {
    PortTable& table = ports[entry.port_num];
    table.device = device;
    table.name = name;
    table.port = entry.port_num;
    if (entry.gid_type == IBV_GID_TYPE_IB) table.layer = rdma::LinkLayer::kInfiniband;
    table.gids.push_back(EntryOf(entry));
  }
  std::vector<PortTable> tables;
  tables.reserve(ports.size());
  for (auto& [port, table] : ports) tables.push_back(std::move(table));
  return tables;
}

std::string ReachOf(absl::Span<const PortTable> tables, const PlaceWish& wish) {
  std::set<std::string> networks;
  for (const PortTable& table : tables) {
    if (wish.port != 0 && table.port != wish.port) continue;
    rdma::GidWish gid;
    gid.link_layer = table.layer;
    if (wish.index >= 0) gid.index = static_cast<uint32_t>(wish.index);
    for (const rdma::RankedGid& ranked : rdma::RankGids(table.gids, gid)) {
      const bool wished = wish.index < 0 || static_cast<int>(ranked.entry.index) == wish.index;
      if (ranked.usable && wished) networks.insert(NetworkOf(ranked.entry.gid, table.layer));
    }
  }
  networks.erase("");
  return absl::StrJoin(networks, " ");
}

absl::Status ReachFits(const std::string& ours, const std::string& theirs) {
  if (ours.empty() || theirs.empty()) return absl::OkStatus();
  const std::set<std::string> there = absl::StrSplit(theirs, ' ');
  for (const absl::string_view network : absl::StrSplit(ours, ' ')) {
    if (there.contains(std::string(network))) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("no RDMA network in common: ", ours,
                                                    " on this side, ", theirs, " on the other"));
}

absl::StatusOr<GidPlace> PickPlace(absl::Span<const PortTable> tables, const PlaceWish& wish) {
  absl::Status refused;
  for (const PortTable& table : tables) {
    if (!wish.device.empty() && table.name != wish.device) continue;
    if (wish.port != 0 && table.port != wish.port) continue;
    const bool infiniband = table.layer == rdma::LinkLayer::kInfiniband;
    if (wish.index >= 0 ? !Has(table, wish.index) : infiniband && !wish.infiniband.has_value()) {
      continue;
    }
    rdma::GidWish gid;
    gid.link_layer = table.layer;
    if (wish.index >= 0) gid.index = static_cast<uint32_t>(wish.index);
    gid.address = infiniband ? wish.infiniband : wish.address;
    const absl::StatusOr<rdma::RankedGid> picked = rdma::PickGid(table.gids, gid);
    if (picked.ok()) {
      return GidPlace{
          .device = table.device, .port = table.port, .gid = picked->entry, .why = picked->why};
    }
    if (wish.index >= 0) refused = picked.status();
  }
  return refused.ok() ? NoPlace(tables, wish) : refused;
}

std::optional<rdma::Gid> IpoibGidOf(const sockaddr_storage& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  std::optional<rdma::Gid> found;
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
      found.emplace();
      std::memcpy(
          found->data(),
          reinterpret_cast<const uint8_t*>(link->ifa_addr) + offsetof(sockaddr_ll, sll_addr) + 4,
          found->size());
    }
  }
  freeifaddrs(all);
  return found;
}

}  // namespace tributary::transport::roce
