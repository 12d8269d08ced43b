// This process's RDMA: the library, the devices that are open, and the options of its links.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/roce.h"
#include "transport/roce/device.h"
#include "transport/roce/gid.h"
#include "transport/roce/memlock.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// Shared by a fabric, its listeners and its links. Thread-safe: nothing changes after Open.
class RoceNode {
 public:
  // As MakeRoceFabric says of its errors.
  static absl::StatusOr<std::shared_ptr<RoceNode>> Open(std::shared_ptr<VerbsApi> api,
                                                        const RoceOptions& options,
                                                        const MemlockLimits& limits);

  struct Place {
    std::shared_ptr<RoceDevice> device;
    ibv_gid_entry gid{};
  };
  // The device and GID for a link whose control socket is `fd`.
  absl::StatusOr<Place> PlaceFor(int fd) const;
  const RoceOptions& options() const { return options_; }

 private:
  explicit RoceNode(const RoceOptions& options) : options_(options) {}
  const RoceOptions options_;
  std::vector<std::shared_ptr<RoceDevice>> devices_;
};

absl::Status CheckRoceOptions(const RoceOptions& options);

// A fabric over any VerbsApi: what MakeRoceFabric does with libibverbs.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabricOver(std::shared_ptr<VerbsApi> api,
                                                       const RoceOptions& options,
                                                       const MemlockLimits& limits);

}  // namespace tributary::transport::roce
