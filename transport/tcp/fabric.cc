// The TCP fabric: listening, and the connecting side of the hello.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/acceptor.h"
#include "transport/internal/hello.h"
#include "transport/internal/hello_io.h"
#include "transport/tcp.h"
#include "transport/tcp/core.h"
#include "transport/tcp/socket.h"

namespace tributary::transport {
namespace tcp {
namespace {

using internal::Deadline;

absl::StatusOr<std::unique_ptr<Link>> SetUp(const SocketAddress& address,
                                            const LinkOptions& options, const Deadline& deadline) {
  const std::string link_id = internal::RandomLinkId();
  internal::ReadySockets sockets;
  sockets.hellos.ours = internal::ControlHello(options, link_id, internal::RandomEpoch());
  ASSIGN_OR_RETURN(sockets.control, ConnectTo(address, deadline));
  ASSIGN_OR_RETURN(v1::LinkHelloReply reply,
                   internal::ExchangeHello(sockets.control.get(), sockets.hellos.ours, deadline));
  sockets.hellos.theirs = reply.hello();
  RETURN_IF_ERROR(internal::CheckAnswer(sockets.hellos.theirs, options));
  for (uint32_t lane = 0; lane < sockets.hellos.theirs.lanes(); ++lane) {
    ASSIGN_OR_RETURN(Fd fd, ConnectTo(address, deadline));
    RETURN_IF_ERROR(
        internal::ExchangeHello(fd.get(), internal::LaneHello(link_id, lane), deadline).status());
    sockets.lanes.push_back(std::move(fd));
  }
  return TcpCore::Start(std::move(sockets), options);
}

class TcpFabric final : public Fabric {
 public:
  std::string_view name() const override { return "tcp"; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, Resolve(address, /*to_listen=*/true));
    absl::StatusOr<Fd> fd = absl::UnavailableError(absl::StrCat("no address in \"", address, "\""));
    for (const SocketAddress& one : addresses) {
      fd = ListenOn(one);
      if (fd.ok()) break;
    }
    if (!fd.ok()) return fd.status();
    std::string bound = ToText(LocalAddress(fd->get()));
    return internal::Acceptor::Start(std::move(*fd), std::move(bound), options,
                                     {.make = TcpCore::Start, .peer_text = PeerText, .admit = {}});
  }

  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    const Deadline deadline = Deadline::After(options.connect_timeout);
    ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, Resolve(address, /*to_listen=*/false));
    absl::Status status;
    for (const SocketAddress& candidate : candidates) {
      absl::StatusOr<std::unique_ptr<Link>> link = SetUp(candidate, options, deadline);
      if (link.ok()) return link;
      // The first candidate's words, unless a later one got further than not being reached.
      if (status.ok() || absl::IsUnavailable(status)) status = link.status();
      if (deadline.Expired()) break;
    }
    return Annotate(status, absl::StrCat("link to ", address));
  }
};

}  // namespace
}  // namespace tcp

std::unique_ptr<Fabric> MakeTcpFabric() { return std::make_unique<tcp::TcpFabric>(); }

}  // namespace tributary::transport
