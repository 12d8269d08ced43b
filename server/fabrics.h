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

// What a node's [transport] asks of its devices and links. Each RDMA device's arena has
// [transport.roce] arena_bytes for links to children, and at a rack room for two to its parent, for
// as many may be at a time; neither side's links take the other's.
transport::RoceOptions RoceOptionsOf(const TransportConfig& config, bool is_root = true);
transport::LinkOptions LinkOptionsOf(const TransportConfig& config);

struct FabricChoice {
  std::unique_ptr<transport::Fabric> fabric;
  std::string listen;  // what its Listen takes
};
// All of a node's, made at its start: it refuses then what it could not do later.
struct NodeFabrics {
  FabricChoice to_children;
  std::unique_ptr<transport::Fabric> to_parent;  // with [transport.faults]; null at a root
};
// UNAVAILABLE or FAILED_PRECONDITION, with the reason and the mend, where this machine cannot do
// the kind.
absl::StatusOr<NodeFabrics> MakeFabrics(const TransportConfig& config, bool is_root);

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
