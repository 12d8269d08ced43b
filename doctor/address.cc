// Ranking this machine's addresses by who can reach them.
#include "doctor/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tributary::doctor {
namespace {

bool IsLinkLocal(const std::string& address) {
  in6_addr v6{};
  if (inet_pton(AF_INET6, address.c_str(), &v6) == 1) return IN6_IS_ADDR_LINKLOCAL(&v6);
  return address.starts_with("169.254.");
}

// Bridges and tunnels that container engines and hypervisors make: others rarely have a way there.
bool IsInner(const std::string& interface) {
  constexpr const char* kPrefixes[] = {"docker",  "br-", "veth",   "virbr", "vnet", "cni", "cali",
                                       "flannel", "lxc", "podman", "tun",   "tap",  "ifb"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](const char* prefix) { return interface.starts_with(prefix); });
}

}  // namespace

HostPort SplitHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort out = {text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  if (out.host.starts_with('[') && out.host.ends_with(']'))
    out.host = out.host.substr(1, out.host.size() - 2);
  return out;
}

bool IsLoopback(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, address.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

bool IsWildcard(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "*";
}

absl::StatusOr<Reachable> PickAddress(const std::vector<InterfaceAddress>& interfaces,
                                      const std::string& default_route_interface) {
  const auto key = [&](const InterfaceAddress& i) {
    return std::make_tuple(IsLinkLocal(i.address), i.interface != default_route_interface,
                           IsInner(i.interface), i.address.find(':') != std::string::npos);
  };
  const InterfaceAddress* best = nullptr;
  int others = 0;
  for (const InterfaceAddress& i : interfaces) {
    if (!i.up || IsLoopback(i.address)) continue;
    ++others;
    if (best == nullptr || key(i) < key(*best)) best = &i;
  }
  if (best == nullptr) {
    return absl::NotFoundError(
        "this machine has no address but loopback: nothing outside it can connect");
  }
  Reachable out = {.address = best->address,
                   .why = absl::StrCat("of ", best->interface),
                   .link_local = IsLinkLocal(best->address)};
  if (best->interface == default_route_interface) out.why += ", which has the default route";
  if (others > 1) absl::StrAppend(&out.why, "; ", others - 1, " more");
  return out;
}

std::string DefaultRouteInterface(const std::string& proc_net_route) {
  std::string best;
  uint64_t least = UINT64_MAX;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(proc_net_route, '\n'))) {
    // Iface Destination Gateway Flags RefCnt Use Metric Mask …
    const std::vector<std::string> f =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t metric = 0;
    if (f.size() < 8 || f[1] != "00000000" || f[7] != "00000000" ||
        !absl::SimpleAtoi(f[6], &metric))
      continue;
    if (metric < least) {
      least = metric;
      best = f[0];
    }
  }
  return best;
}

}  // namespace tributary::doctor
