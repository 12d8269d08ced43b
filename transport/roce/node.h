// This process's RDMA: the library, the devices that are open, and the options of its links.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/rdma/memlock.h"
#include "transport/roce.h"
#include "transport/roce/arena.h"
#include "transport/roce/cm_api.h"
#include "transport/roce/cuda_api.h"
#include "transport/roce/device.h"
#include "transport/roce/place.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// The libraries that links stand on, as they were found. Only the first must be there.
struct Libraries {
  std::shared_ptr<VerbsApi> verbs;
  absl::StatusOr<std::shared_ptr<CmApi>> cm = absl::FailedPreconditionError("not looked for");
  absl::StatusOr<std::shared_ptr<CudaApi>> cuda = absl::FailedPreconditionError("not looked for");
};

// Shared by fabrics, their listeners and their links. Thread-safe: nothing changes after Open.
class RoceNode {
 public:
  // As OpenRoceDevices says of its errors.
  static absl::StatusOr<std::shared_ptr<RoceNode>> Open(const Libraries& libraries,
                                                        const RoceOptions& options,
                                                        const rdma::MemlockLimit& limit);

  struct Place {
    std::shared_ptr<RoceDevice> device;
    GidPlace at;  // `why` says who chose, and why nobody better did
  };
  // The device, port and GID for a link whose control socket is `fd`: as the kernel would send to
  // the socket's peer, or, where it cannot be asked, those of the socket's own address. What the
  // options name goes before both.
  absl::StatusOr<Place> PlaceFor(int fd, const Deadline& deadline) const;
  const RoceOptions& options() const { return options_; }
  // Of its ports that are up, as `ReachOf` has it.
  std::string Reach() const;

 private:
  RoceNode(const RoceOptions& options, absl::StatusOr<std::shared_ptr<CmApi>> cm)
      : options_(options), cm_(std::move(cm)) {}
  absl::StatusOr<GidPlace> ByRoute(absl::Span<const PortTable> tables, int fd,
                                   const Deadline& deadline) const;
  absl::StatusOr<GidPlace> ByAddress(absl::Span<const PortTable> tables, int fd) const;
  absl::StatusOr<std::vector<PortTable>> Tables() const;

  const RoceOptions options_;
  const absl::StatusOr<std::shared_ptr<CmApi>> cm_;
  std::vector<std::shared_ptr<RoceDevice>> devices_;
};

// What a fabric's links stand on.
struct RocePart {
  std::shared_ptr<RoceNode> node;
  std::shared_ptr<ArenaShare> share;
};

absl::Status CheckRoceOptions(const RoceOptions& options);

// A fabric over any libraries, alone on its devices: what MakeRoceFabric does with those of the
// system.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabricOver(const Libraries& libraries,
                                                       const RoceOptions& options,
                                                       const rdma::MemlockLimit& limit);

}  // namespace tributary::transport::roce
