// The RDMA devices of a machine: what /sys shows, and what libibverbs adds to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "doctor/environment.h"
#include "doctor/verbs.h"
#include "transport/rdma/gid.h"

namespace tributary::doctor::internal {

struct RdmaPort {
  uint32_t number = 0;
  std::string state;  // "ACTIVE", "DOWN", ...
  std::string phys_state;
  transport::rdma::LinkLayer link_layer = transport::rdma::LinkLayer::kUnknown;
  std::string rate;         // "100 Gb/sec (4X EDR)"
  std::string netdev;       // empty on InfiniBand
  uint32_t netdev_mtu = 0;  // 0: not known
  uint32_t active_mtu = 0;  // bytes; 0: libibverbs could not be asked
  uint16_t lid = 0;
  std::vector<transport::rdma::GidEntry> gids;
  bool active() const { return state == "ACTIVE"; }
};

// An opened device; closed when the last holder lets go.
using VerbsContext = std::shared_ptr<ibv_context>;

struct RdmaDevice {
  std::string name;
  std::string path;    // resolved, of its parent device: where it is plugged in
  int numa_node = -1;  // -1: not known
  std::string firmware;
  std::string node;  // "/dev/infiniband/uverbs0"; empty where /sys names none
  std::vector<RdmaPort> ports;
  bool in_verbs = false;  // libibverbs lists it
  VerbsContext context;   // null: could not be opened; the reason is in open_error
  std::string open_error;
  uint64_t max_mr_bytes = 0;
  int max_queue_pairs = 0;
};

struct Inventory {
  absl::Status verbs_status;  // of loading libibverbs
  std::shared_ptr<const VerbsTable> verbs;
  std::vector<RdmaDevice> devices;
  bool any_active() const;
};

Inventory TakeInventory(const Environment& env);

}  // namespace tributary::doctor::internal
