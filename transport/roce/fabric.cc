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
  explicit RoceFabric(std::shared_ptr<RoceNode> node) : node_(std::move(node)) {}
  std::string_view name() const override { return "roce"; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    return RoceListener::Start(node_, address, Clamped(options));
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
          ASSIGN_OR_RETURN(ReadyWire wire, SetUpWire(*node_, sockets, wanted, deadline));
          return RoceCore::Start(std::move(wire), std::move(sockets), wanted,
                                 node_->options().spin);
        });
  }

 private:
  const std::shared_ptr<RoceNode> node_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabricOver(const Libraries& libraries,
                                                       const RoceOptions& options,
                                                       const rdma::MemlockLimit& limit) {
  ASSIGN_OR_RETURN(std::shared_ptr<RoceNode> node, RoceNode::Open(libraries, options, limit));
  return std::make_unique<RoceFabric>(std::move(node));
}

absl::StatusOr<AutoCandidate> MakeCandidateOver(const Libraries& libraries,
                                                const RoceOptions& options,
                                                const rdma::MemlockLimit& limit,
                                                const std::string& listen) {
  ASSIGN_OR_RETURN(std::shared_ptr<RoceNode> node, RoceNode::Open(libraries, options, limit));
  AutoCandidate candidate;
  candidate.listen = listen;
  candidate.preference = 200;
  candidate.self = node->Reach();
  candidate.fits = ReachFits;
  candidate.fabric = std::make_unique<RoceFabric>(std::move(node));
  return candidate;
}

}  // namespace roce

namespace {

absl::StatusOr<roce::Libraries> LoadLibraries(const RoceOptions& options) {
  RETURN_IF_ERROR(roce::CheckRoceOptions(options));
  roce::Libraries libraries;
  ASSIGN_OR_RETURN(libraries.verbs, roce::LoadVerbs());
  libraries.cm = roce::LoadCm();
  if (options.arena_memory == MemoryKind::kCuda) libraries.cuda = roce::LoadCuda();
  return libraries;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> MakeRoceFabric(const RoceOptions& options) {
  ASSIGN_OR_RETURN(const roce::Libraries libraries, LoadLibraries(options));
  ASSIGN_OR_RETURN(const rdma::MemlockLimit limit, rdma::ReadMemlockLimit(SysFiles()));
  return roce::MakeFabricOver(libraries, options, limit);
}

absl::StatusOr<AutoCandidate> RoceCandidate(const RoceOptions& options, const std::string& listen) {
  ASSIGN_OR_RETURN(const roce::Libraries libraries, LoadLibraries(options));
  ASSIGN_OR_RETURN(const rdma::MemlockLimit limit, rdma::ReadMemlockLimit(SysFiles()));
  return roce::MakeCandidateOver(libraries, options, limit, listen);
}

}  // namespace tributary::transport
