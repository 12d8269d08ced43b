// The TCP fabric: listening, and the connecting side of the hello.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"
#include "transport/tcp.h"
#include "transport/tcp/core.h"
#include "transport/tcp/listener.h"
#include "transport/tcp/socket.h"

namespace tributary::transport {
namespace tcp {
namespace {

using internal::Deadline;

absl::StatusOr<v1::LinkHelloReply> Exchange(int fd, const v1::LinkHello& hello,
                                            const Deadline& deadline) {
  // A peer that refuses may close before it has read all: its words count, not our write error.
  const absl::Status written = WriteAll(fd, internal::EncodeHello(hello), deadline);
  std::array<uint8_t, internal::kHelloPrefixBytes> prefix;
  const absl::Status read = ReadAll(fd, prefix.data(), prefix.size(), deadline);
  if (!read.ok()) return written.ok() ? read : written;
  absl::StatusOr<size_t> length = internal::DecodePrefix(prefix);
  if (!length.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("what answers there is no Tributary link port: ", length.status().message()));
  }
  std::vector<uint8_t> message(*length);
  RETURN_IF_ERROR(ReadAll(fd, message.data(), message.size(), deadline));
  return internal::DecodeReply(message);
}

absl::StatusOr<std::unique_ptr<Link>> SetUp(const SocketAddress& address,
                                            const LinkOptions& options, const Deadline& deadline) {
  const std::string link_id = internal::RandomLinkId();
  ReadySockets sockets;
  sockets.ours = internal::ControlHello(options, link_id, internal::RandomEpoch());
  ASSIGN_OR_RETURN(sockets.control, ConnectTo(address, deadline));
  ASSIGN_OR_RETURN(v1::LinkHelloReply reply,
                   Exchange(sockets.control.get(), sockets.ours, deadline));
  sockets.theirs = reply.hello();
  RETURN_IF_ERROR(internal::CheckControlHello(sockets.theirs));
  RETURN_IF_ERROR(internal::CheckFit(sockets.theirs, options));
  if (sockets.theirs.lanes() > options.lanes) {
    return absl::FailedPreconditionError(absl::StrCat("the peer wants ", sockets.theirs.lanes(),
                                                      " lanes, more than the ", options.lanes,
                                                      " offered; it breaks the link protocol"));
  }
  for (uint32_t lane = 0; lane < sockets.theirs.lanes(); ++lane) {
    ASSIGN_OR_RETURN(Fd fd, ConnectTo(address, deadline));
    RETURN_IF_ERROR(Exchange(fd.get(), internal::LaneHello(link_id, lane), deadline).status());
    sockets.lanes.push_back(std::move(fd));
  }
  return TcpCore::Start(std::move(sockets), options);
}

class TcpFabric final : public Fabric {
 public:
  std::string_view name() const override { return "tcp"; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    return TcpListener::Start(address, options);
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
