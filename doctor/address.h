// The address that others will connect to: a pure choice among what the config says and what the
// machine has. Never loopback unless the config asks for it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "doctor/environment.h"

namespace tributary::doctor {

struct HostPort {
  std::string host;  // without brackets; empty, "0.0.0.0" and "::" mean every address
  std::string port;
};
// "host:port", "[v6]:port", ":port".
HostPort SplitHostPort(const std::string& text);

bool IsLoopback(const std::string& address);  // 127.0.0.0/8, ::1, ::ffff:127.…
bool IsWildcard(const std::string& host);

struct Reachable {
  std::string address;      // numeric
  std::string why;          // one phrase
  bool loopback = false;    // only processes of this machine reach it
  bool link_local = false;  // only one network segment does, and a scope has to be given
};

// Where a wildcard listener is reached: devices that are up, not loopback; by preference those with
// the default route, then ordinary ones before bridges and tunnels of containers and virtual
// machines; IPv4 before IPv6; link-local ones last. NOT_FOUND where only loopback is left.
absl::StatusOr<Reachable> PickAddress(const std::vector<InterfaceAddress>& interfaces,
                                      const std::string& default_route_interface);

// The interface of the default route with the least metric in /proc/net/route; empty: none.
std::string DefaultRouteInterface(const std::string& proc_net_route);

}  // namespace tributary::doctor
