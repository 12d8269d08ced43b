// The shared-memory fabric: listening, and the connecting side of the hello.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/acceptor.h"
#include "transport/internal/hello.h"
#include "transport/internal/hello_io.h"
#include "transport/shm.h"
#include "transport/shm/core.h"
#include "transport/shm/region.h"
#include "transport/shm/unix_socket.h"

namespace tributary::transport {
namespace shm {
namespace {

using internal::Fd;

Shape ShapeOf(const v1::LinkHello& acceptor, const v1::LinkHello& connecter) {
  return {.chunk_bytes = acceptor.chunk_bytes(),
          .acceptor_slots = acceptor.slots(),
          .connecter_slots = connecter.slots()};
}

absl::StatusOr<Region> Offer(const internal::ReadySockets& sockets) {
  const Shape shape = ShapeOf(sockets.hellos.ours, sockets.hellos.theirs);
  ASSIGN_OR_RETURN(const Fd memory, Region::CreateMemory(shape));
  ASSIGN_OR_RETURN(Region region, Region::Map(memory, shape));
  RETURN_IF_ERROR(SendDescriptor(sockets.control.get(), memory.get()));
  return region;
}

absl::StatusOr<std::unique_ptr<Link>> MakeAccepted(internal::ReadySockets sockets,
                                                   const LinkOptions& options) {
  absl::StatusOr<Region> region = Offer(sockets);
  if (!region.ok()) {
    SendNoDescriptor(sockets.control.get(), region.status());
    return region.status();
  }
  return ShmCore::Start(std::move(sockets), options, std::move(*region), ShmCore::Role::kAcceptor);
}

absl::StatusOr<std::unique_ptr<Link>> SetUp(const std::string& name, const LinkOptions& options) {
  const Deadline deadline = Deadline::After(options.connect_timeout);
  internal::ReadySockets sockets;
  internal::Hellos& hellos = sockets.hellos;
  hellos.ours = internal::ControlHello(options, internal::RandomLinkId(), internal::RandomEpoch());
  ASSIGN_OR_RETURN(sockets.control, ConnectTo(name, deadline));
  const int fd = sockets.control.get();
  // Anybody may listen under a name: nothing is said to another user's process.
  RETURN_IF_ERROR(CheckSameUser(fd));
  ASSIGN_OR_RETURN(v1::LinkHelloReply reply, internal::ExchangeHello(fd, hellos.ours, deadline));
  hellos.theirs = reply.hello();
  RETURN_IF_ERROR(internal::CheckAnswer(hellos.theirs, options));
  ASSIGN_OR_RETURN(const Fd memory, ReceiveDescriptor(fd, deadline));
  ASSIGN_OR_RETURN(Region region, Region::Map(memory, ShapeOf(hellos.theirs, hellos.ours)));
  return ShmCore::Start(std::move(sockets), options, std::move(region), ShmCore::Role::kConnecter);
}

class ShmFabric final : public Fabric {
 public:
  std::string_view name() const override { return "shm"; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    ASSIGN_OR_RETURN(std::string name, CheckName(address));
    ASSIGN_OR_RETURN(Fd fd, ListenOn(name));
    return internal::Acceptor::Start(std::move(fd), std::move(name), options,
                                     {.make = MakeAccepted,
                                      .peer_text = PeerText,
                                      .admit = CheckSameUser,
                                      .data_sockets = false});
  }

  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    ASSIGN_OR_RETURN(const std::string name, CheckName(address));
    auto link = SetUp(name, options);
    if (!link.ok()) return Annotate(link.status(), absl::StrCat("link to ", address));
    return link;
  }
};

}  // namespace
}  // namespace shm

std::unique_ptr<Fabric> MakeShmFabric() { return std::make_unique<shm::ShmFabric>(); }

}  // namespace tributary::transport
