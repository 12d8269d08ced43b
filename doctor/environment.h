// Everything the doctor asks of the machine, as functions that a test replaces.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sys_files.h"

namespace tributary::doctor {

struct VerbsTable;
struct RdmaCmTable;

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric, without a scope
  bool up = true;
  bool operator==(const InterfaceAddress&) const = default;
};

struct Space {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// What a datagram to UDP port 4791 of a peer met.
enum class UdpAnswer {
  kSilent,       // nothing came back: taken by an RDMA device, or filtered
  kRefused,      // ICMP port unreachable: the host is there and its kernel has nobody on the port
  kUnreachable,  // no route, or an ICMP host or network unreachable
};

struct Route {
  std::string peer;       // the numeric address that was tried
  std::string source;     // our address towards it
  std::string interface;  // that has it; empty where not known
  int mtu = 0;            // that the kernel knows of for the path; 0: none
};

struct Environment {
  std::shared_ptr<const SysFiles> files;
  std::function<absl::StatusOr<std::shared_ptr<const VerbsTable>>()> verbs;
  std::function<absl::StatusOr<std::shared_ptr<const RdmaCmTable>>()> rdma_cm;
  // Addresses of this machine's network devices, loopback among them.
  std::function<std::vector<InterfaceAddress>()> interfaces;
  // Numeric addresses of a host name.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)> resolve;
  // Can a listening socket be had on "host:port" now? ALREADY_EXISTS where the port is taken.
  std::function<absl::Status(const std::string& host_port)> try_listen;
  // Makes, fills and drops an anonymous memory file.
  std::function<absl::Status(uint64_t bytes)> try_memfd;
  // The file system that holds the path.
  std::function<absl::StatusOr<Space>(const std::string& path)> space;
  // May this process open the file for reading and writing?
  std::function<absl::Status(const std::string& path)> may_open;
  // Counters of a network device's driver (ethtool -S), by name.
  std::function<absl::StatusOr<std::map<std::string, uint64_t>>(const std::string& netdev)> ethtool;
  std::function<absl::StatusOr<Route>(const std::string& host)> route;
  std::function<absl::StatusOr<UdpAnswer>(const std::string& address, absl::Duration limit)> udp;
};

// This machine. `prefix` goes before the paths of /sys, /proc and /dev.
Environment RealEnvironment(const std::string& prefix = "");

}  // namespace tributary::doctor
