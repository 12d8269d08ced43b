// Ranking GIDs: first by what an address can reach, then by what is known of its type.
#include "transport/rdma/gid.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::rdma {
namespace {

constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// What an address can reach; the order is the preference.
enum class Reach { kIpv4, kIpv6, kIpv4LinkLocal, kIpv6LinkLocal, kNothing };

bool IsMapped(const Gid& gid) { return std::memcmp(gid.data(), kMapped, sizeof(kMapped)) == 0; }
bool IsZero(const Gid& gid) { return gid == Gid{}; }

Reach ReachOf(const Gid& gid) {
  if (IsMapped(gid)) {
    if (gid[12] == 0 || gid[12] == 127 || gid[12] >= 224) return Reach::kNothing;
    return gid[12] == 169 && gid[13] == 254 ? Reach::kIpv4LinkLocal : Reach::kIpv4;
  }
  if (gid[0] == 0xff) return Reach::kNothing;  // multicast
  if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80) return Reach::kIpv6LinkLocal;
  const bool loopback = std::all_of(gid.begin(), gid.end() - 1, [](uint8_t b) { return b == 0; });
  return loopback ? Reach::kNothing : Reach::kIpv6;
}

const char* ReachText(Reach reach) {
  switch (reach) {
    case Reach::kIpv4:
      return "IPv4 address";
    case Reach::kIpv6:
      return "routable IPv6 address";
    case Reach::kIpv4LinkLocal:
      return "IPv4 link-local address (no router passes it on)";
    case Reach::kIpv6LinkLocal:
      return "IPv6 link-local address (no router passes it on)";
    case Reach::kNothing:
      break;
  }
  return "loopback or multicast address";
}

// Fills in missing types where a GID stands more than once on the same network device.
void InferTypes(std::vector<RankedGid>* ranked) {
  std::map<Gid, std::vector<RankedGid*>> same;
  for (RankedGid& r : *ranked) same[r.entry.gid].push_back(&r);
  for (auto& [gid, group] : same) {
    if (group.size() != 2) continue;  // alone, or VLANs that share an address: no order to go by
    std::sort(group.begin(), group.end(),
              [](auto* a, auto* b) { return a->entry.index < b->entry.index; });
    GidEntry& first = group[0]->entry;
    GidEntry& second = group[1]->entry;
    group[0]->type_inferred = first.type == GidType::kUnknown && second.type != GidType::kRoceV1;
    group[1]->type_inferred = second.type == GidType::kUnknown && first.type != GidType::kRoceV2;
    if (group[0]->type_inferred) first.type = GidType::kRoceV1;
    if (group[1]->type_inferred) second.type = GidType::kRoceV2;
  }
}

int TypeRank(const RankedGid& r) {
  if (r.entry.type == GidType::kRoceV2) return r.type_inferred ? 1 : 0;
  return r.entry.type == GidType::kUnknown ? 2 : 3;
}

void JudgeEthernet(const GidWish& wish, RankedGid* r) {
  const Reach reach = ReachOf(r->entry.gid);
  const bool asked = wish.index == r->entry.index;
  const bool other = !wish.index.has_value() && wish.address.has_value();
  // An address that a link has is good enough for it, even that of a loopback.
  r->usable = (asked || other || reach != Reach::kNothing) && r->entry.type != GidType::kRoceV1;
  if (r->entry.type == GidType::kRoceV1) {
    r->why = absl::StrCat("RoCE v1", r->type_inferred ? " by its place in the table" : "",
                          ": routers and RoCE v2 peers do not take it");
    return;
  }
  if (other && r->entry.gid != *wish.address) {
    r->usable = false;
    r->why = "of another address";
    return;
  }
  if (asked) {
    r->why = absl::StrCat("asked for by its index; ", GidTypeText(r->entry.type));
  } else if (r->type_inferred) {
    r->why = "RoCE v2 by its place in the table (its type cannot be read)";
  } else {
    r->why = r->entry.type == GidType::kUnknown ? "type unknown" : "RoCE v2";
  }
  absl::StrAppend(&r->why, ", ", ReachText(reach));
}

auto Key(const RankedGid& r, const GidWish& wish) {
  const bool infiniband = wish.link_layer == LinkLayer::kInfiniband;
  const bool other_netdev = !wish.netdev.empty() && r.entry.netdev != wish.netdev;
  return std::make_tuple(wish.index != r.entry.index, !r.usable,
                         infiniband ? Reach::kIpv4 : ReachOf(r.entry.gid),
                         infiniband ? 0 : TypeRank(r), other_netdev, r.entry.index);
}

}  // namespace

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IsMapped(gid)) {
    inet_ntop(AF_INET, gid.data() + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  }
  return text;
}

absl::StatusOr<Gid> ParseGid(const std::string& text) {
  Gid gid{};
  if (inet_pton(AF_INET6, text.c_str(), gid.data()) == 1) return gid;
  if (inet_pton(AF_INET, text.c_str(), gid.data() + 12) == 1) {
    std::memcpy(gid.data(), kMapped, sizeof(kMapped));
    return gid;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a GID: eight groups of hexadecimal digits"));
}

const char* GidTypeText(GidType type) {
  switch (type) {
    case GidType::kInfiniband:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
    case GidType::kUnknown:
      break;
  }
  return "type unknown";
}

Gid GidOfAddress(const sockaddr& address) {
  Gid gid{};
  if (address.sa_family == AF_INET6) {
    std::memcpy(gid.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, gid.size());
  } else if (address.sa_family == AF_INET) {
    std::memcpy(gid.data(), kMapped, sizeof(kMapped));
    std::memcpy(gid.data() + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return gid;
}

std::vector<RankedGid> RankGids(const std::vector<GidEntry>& table, const GidWish& wish) {
  std::vector<RankedGid> ranked;
  for (const GidEntry& entry : table) {
    if (IsZero(entry.gid)) continue;
    ranked.emplace_back();
    ranked.back().entry = entry;
  }
  if (wish.link_layer == LinkLayer::kInfiniband) {
    for (RankedGid& r : ranked) {
      r.entry.type = GidType::kInfiniband;
      r.usable =
          wish.index.has_value() || !wish.address.has_value() || r.entry.gid == *wish.address;
      r.why = wish.index == r.entry.index ? "asked for by its index"
              : r.usable                  ? "InfiniBand port GID"
                                          : "of another port";
    }
  } else {
    InferTypes(&ranked);
    for (RankedGid& r : ranked) JudgeEthernet(wish, &r);
  }
  std::sort(ranked.begin(), ranked.end(), [&wish](const RankedGid& a, const RankedGid& b) {
    return Key(a, wish) < Key(b, wish);
  });
  return ranked;
}

absl::StatusOr<RankedGid> PickGid(const std::vector<GidEntry>& table, const GidWish& wish) {
  const std::vector<RankedGid> ranked = RankGids(table, wish);
  if (ranked.empty()) {
    return absl::NotFoundError(
        "the GID table is empty: give the port's network device an address and bring it up (ip "
        "addr add …, ip link set … up)");
  }
  if (wish.index.has_value() && ranked[0].entry.index != *wish.index) {
    return absl::NotFoundError(absl::StrCat("GID index ", *wish.index, " is empty; the best is ",
                                            ranked[0].entry.index, " (",
                                            GidText(ranked[0].entry.gid), ", ", ranked[0].why,
                                            "): set that, or leave the choice open"));
  }
  if (!ranked[0].usable && wish.index.has_value()) {
    return absl::NotFoundError(absl::StrCat("GID index ", *wish.index, " (",
                                            GidText(ranked[0].entry.gid), ") is ", ranked[0].why,
                                            "; choose one of RoCE v2, or leave the choice open"));
  }
  if (!ranked[0].usable) {
    return absl::NotFoundError(absl::StrCat(
        "none of ", ranked.size(), " GIDs can be used; the first is ", ranked[0].entry.index, " (",
        GidText(ranked[0].entry.gid), ", ", ranked[0].why,
        "): give the port's network device an IPv4 or a global IPv6 address, and have RoCE v2 on"));
  }
  return ranked[0];
}

absl::StatusOr<std::vector<GidEntry>> ReadGidTable(const SysFiles& files, const std::string& device,
                                                   uint32_t port) {
  const std::string base = absl::StrCat("/sys/class/infiniband/", device, "/ports/", port);
  if (!files.Exists(base)) return absl::NotFoundError(absl::StrCat(base, " is not there"));
  std::vector<GidEntry> table;
  for (const std::string& name : files.List(base + "/gids")) {
    GidEntry entry;
    if (!absl::SimpleAtoi(name, &entry.index)) continue;
    const auto text = files.Read(absl::StrCat(base, "/gids/", name));
    if (!text.ok()) continue;  // a hole in the table: some kernels say so with an error
    ASSIGN_OR_RETURN(entry.gid, ParseGid(*text));
    if (IsZero(entry.gid)) continue;
    const auto type = files.Read(absl::StrCat(base, "/gid_attrs/types/", name));
    if (type.ok() && *type == "RoCE v2") entry.type = GidType::kRoceV2;
    if (type.ok() && *type == "IB/RoCE v1") entry.type = GidType::kRoceV1;
    const auto netdev = files.Read(absl::StrCat(base, "/gid_attrs/ndevs/", name));
    if (netdev.ok()) entry.netdev = *netdev;
    table.push_back(std::move(entry));
  }
  return table;
}

}  // namespace tributary::transport::rdma
