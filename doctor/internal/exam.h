// What the checks share, and the checks themselves. Private to doctor/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "doctor/address.h"
#include "doctor/doctor.h"
#include "doctor/environment.h"
#include "doctor/internal/inventory.h"
#include "doctor/report.h"
#include "server/config.h"

namespace tributary::doctor::internal {

enum class RdmaWish {
  kNone,   // the transport uses no RDMA
  kMaybe,  // it would be used if it were there: "auto", or no config
  kMust,   // "roce"
};

struct Exam {
  const Environment& env;
  const server::Config& config;
  std::string file;  // for the mends; "FILE" where there is none
  RdmaWish wish = RdmaWish::kMaybe;
  bool shm = false;  // links through shared memory may be used
  std::string peer;
  Report& report;

  // What a fault of RDMA amounts to.
  Verdict Bad() const { return wish == RdmaWish::kMust ? Verdict::kFail : Verdict::kWarn; }
  void Add(std::string name, Verdict verdict, std::string seen, std::string mend) const {
    report.Add({std::move(name), verdict, std::move(seen), std::move(mend)});
  }
};

// How many links the checks look for: the number of children is not in a config. A guess at a small
// tree, used for warnings only.
inline constexpr uint32_t kLinksToPlanFor = 8;

// The address that other aggregators' links will go to.
absl::StatusOr<Reachable> LinkAddress(const Exam& exam);

// How a finding calls a port: "mlx5_0/1".
std::string PortName(const RdmaDevice& device, const RdmaPort& port);

// What the config asks of a port's GID.
transport::rdma::GidWish WishOf(const Exam& exam, const RdmaDevice& device, const RdmaPort& port);

// rdma.libraries, .devices, .nodes, .netns, .fork
void CheckRdmaBasis(const Exam& exam, const Inventory& inventory);
// rdma.memlock; false where the arenas cannot be registered.
bool CheckMemlock(const Exam& exam, const Inventory& inventory);
// rdma.port, .mtu, .gids, .bond of every port; rdma.address
void CheckPorts(const Exam& exam, const Inventory& inventory);
// rdma.self_test, rdma.counters of every active port; `may_register`: what CheckMemlock said
void CheckTraffic(const Exam& exam, const Inventory& inventory, bool may_register);
// numa, gpu
void CheckTopology(const Exam& exam, const Inventory& inventory);
// peer.route, rdma.udp_4791
void CheckPeer(const Exam& exam, const Inventory& inventory);
// shm.memfd, shm.dev_shm
void CheckSharedMemory(const Exam& exam);
// files, address.*, ports.*
void CheckHost(const Exam& exam);

}  // namespace tributary::doctor::internal
