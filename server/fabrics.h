// From [transport] kind to a fabric: the one place where the server names transports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config.h"
#include "transport/link.h"
#include "transport/roce.h"

namespace tributary::server {

// The kinds of this build, for the config's check.
const std::vector<std::string>& TransportKinds();

// What a node's [transport] asks of its fabrics and links. `links` as below.
transport::RoceOptions RoceOptionsOf(const TransportConfig& config, uint32_t links = 0);
transport::LinkOptions LinkOptionsOf(const TransportConfig& config);

struct FabricChoice {
  std::unique_ptr<transport::Fabric> fabric;
  std::string listen;  // what its Listen takes
};
// UNAVAILABLE or FAILED_PRECONDITION, with the reason and the mend, where this machine cannot do
// the kind. `links`: how many at most, where that is known, so that no more memory is registered
// for RDMA than they take; 0: [transport.roce] arena_bytes.
absl::StatusOr<FabricChoice> MakeFabric(const TransportConfig& config, uint32_t links = 0);
// A child's, towards its parent: two links at most, with [transport.faults] on each.
absl::StatusOr<std::unique_ptr<transport::Fabric>> MakeFabricToParent(
    const TransportConfig& config);

// Where a parent's links are: what it tells its children, and what they make of it.
struct LinkPlace {
  std::string transport;
  std::string address;
};
// `bound` is the listener's address, of this kind. Children are told `advertise`, or else only the
// port: they reach it by the host under which they reached the front door. An auto listener is
// also offered by each transport of it, for children that want that one.
std::vector<LinkPlace> PlacesToTell(const std::string& kind, const std::string& bound,
                                    const std::string& advertise);
// The place that a child of this kind connects to, its host filled in; empty where none is
// offered. A child with "auto" also takes a parent's single transports.
std::string PlaceToTake(const std::string& kind, const std::vector<LinkPlace>& offered,
                        const std::string& parent_host);

}  // namespace tributary::server
