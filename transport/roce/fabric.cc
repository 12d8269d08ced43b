// The RoCE fabric: listening, and the connecting side.
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/sys_files.h"
#include "transport/auto.h"
#include "transport/internal/hello.h"
#include "transport/rdma/memlock.h"
#include "transport/roce.h"
#include "transport/roce/core.h"
#include "transport/roce/listener.h"
#include "transport/roce/node.h"
#include "transport/roce/set_up.h"
#include "transport/tcp/greeting.h"

namespace tributary::transport {
namespace roce {
namespace {

constexpr uint32_t kMaxQueuePairs = 8;

LinkOptions Clamped(LinkOptions options) {
  options.lanes = std::min(options.lanes, kMaxQueuePairs);
  return options;
}

class RoceFabric final : public Fabric {
 public:
  explicit RoceFabric(RocePart part) : part_(std::move(part)) {}
  std::string_view name() const override { return "roce"; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    return RoceListener::Start(part_, address, Clamped(options));
  }

  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    const LinkOptions wanted = Clamped(options);
    return tcp::ConnectToAny(
        address, wanted,
        [&](const tcp::SocketAddress& candidate,
            const Deadline& deadline) -> absl::StatusOr<std::unique_ptr<Link>> {
          ASSIGN_OR_RETURN(internal::ReadySockets sockets,
                           tcp::Greet(candidate, wanted, "roce", deadline));
          ASSIGN_OR_RETURN(ReadyWire wire, SetUpWire(part_, sockets, wanted, deadline));
          return RoceCore::Start(std::move(wire), std::move(sockets), wanted,
                                 part_.node->options().spin);
        });
  }

 private:
  const RocePart part_;
};

absl::StatusOr<Libraries> LoadLibraries(const RoceOptions& options) {
  RETURN_IF_ERROR(CheckRoceOptions(options));
  Libraries libraries;
  ASSIGN_OR_RETURN(libraries.verbs, LoadVerbs());
  libraries.cm = LoadCm();
  if (options.arena_memory == MemoryKind::kCuda) libraries.cuda = LoadCuda();
  return libraries;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabricOver(const Libraries& libraries,
                                                       const RoceOptions& options,
                                                       const rdma::MemlockLimit& limit) {
  ASSIGN_OR_RETURN(RoceDevices node, RoceNode::Open(libraries, options, limit));
  return MakeRoceFabric(std::move(node), options.arena_bytes, 0);
}

}  // namespace roce

absl::StatusOr<RoceDevices> OpenRoceDevices(const RoceOptions& options) {
  ASSIGN_OR_RETURN(const roce::Libraries libraries, roce::LoadLibraries(options));
  ASSIGN_OR_RETURN(const rdma::MemlockLimit limit, rdma::ReadMemlockLimit(SysFiles()));
  return roce::RoceNode::Open(libraries, options, limit);
}

std::unique_ptr<Fabric> MakeRoceFabric(RoceDevices devices, size_t arena_bytes, size_t kept_bytes) {
  return std::make_unique<roce::RoceFabric>(roce::RocePart{
      std::move(devices), std::make_shared<roce::ArenaShare>(arena_bytes, kept_bytes)});
}

absl::StatusOr<std::unique_ptr<Fabric>> MakeRoceFabric(const RoceOptions& options) {
  ASSIGN_OR_RETURN(RoceDevices devices, OpenRoceDevices(options));
  return MakeRoceFabric(std::move(devices), options.arena_bytes, 0);
}

AutoCandidate RoceCandidate(const std::shared_ptr<roce::RoceNode>& devices, size_t arena_bytes,
                            size_t kept_bytes, const std::string& listen) {
  AutoCandidate candidate;
  candidate.listen = listen;
  candidate.preference = 200;
  candidate.self = devices->Reach();
  candidate.fits = roce::ReachFits;
  candidate.fabric = MakeRoceFabric(devices, arena_bytes, kept_bytes);
  return candidate;
}

}  // namespace tributary::transport
