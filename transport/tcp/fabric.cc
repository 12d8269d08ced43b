// The TCP fabric: listening, and the data sockets of the connecting side.
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "transport/internal/acceptor.h"
#include "transport/internal/hello.h"
#include "transport/internal/hello_io.h"
#include "transport/tcp.h"
#include "transport/tcp/core.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/socket.h"

namespace tributary::transport {
namespace tcp {
namespace {

absl::StatusOr<std::unique_ptr<Link>> SetUp(const SocketAddress& address,
                                            const LinkOptions& options, const Deadline& deadline) {
  ASSIGN_OR_RETURN(internal::ReadySockets sockets,
                   Greet(address, options, /*transport=*/"", deadline));
  const std::string& link_id = sockets.hellos.ours.link_id();
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
    return ListenForLinks(address, options,
                          {.make = TcpCore::Start, .peer_text = PeerText, .admit = {}});
  }

  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    return ConnectToAny(address, options,
                        [&](const SocketAddress& candidate, const Deadline& deadline) {
                          return SetUp(candidate, options, deadline);
                        });
  }
};

}  // namespace
}  // namespace tcp

std::unique_ptr<Fabric> MakeTcpFabric() { return std::make_unique<tcp::TcpFabric>(); }

}  // namespace tributary::transport
