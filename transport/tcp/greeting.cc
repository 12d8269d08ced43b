// Control sockets over TCP.
#include "transport/tcp/greeting.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"
#include "transport/internal/hello_io.h"

namespace tributary::transport::tcp {

absl::StatusOr<std::unique_ptr<Listener>> ListenForLinks(const std::string& address,
                                                         const LinkOptions& options,
                                                         internal::AcceptorHooks hooks) {
  RETURN_IF_ERROR(internal::CheckLinkOptions(options));
  ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, Resolve(address, /*to_listen=*/true));
  absl::StatusOr<Fd> fd = absl::UnavailableError(absl::StrCat("no address in \"", address, "\""));
  for (const SocketAddress& one : addresses) {
    fd = ListenOn(one);
    if (fd.ok()) break;
  }
  if (!fd.ok()) return fd.status();
  std::string bound = ToText(LocalAddress(fd->get()));
  return internal::Acceptor::Start(std::move(*fd), std::move(bound), options, std::move(hooks));
}

absl::StatusOr<internal::ReadySockets> Greet(const SocketAddress& address,
                                             const LinkOptions& options,
                                             absl::string_view transport,
                                             const Deadline& deadline) {
  internal::ReadySockets sockets;
  sockets.hellos.ours =
      internal::ControlHello(options, internal::RandomLinkId(), internal::RandomEpoch());
  sockets.hellos.ours.set_transport(std::string(transport));
  ASSIGN_OR_RETURN(sockets.control, ConnectTo(address, deadline));
  ASSIGN_OR_RETURN(v1::LinkHelloReply reply,
                   internal::ExchangeHello(sockets.control.get(), sockets.hellos.ours, deadline));
  sockets.hellos.theirs = reply.hello();
  RETURN_IF_ERROR(internal::CheckAnswer(sockets.hellos.theirs, options, transport));
  return sockets;
}

absl::StatusOr<std::unique_ptr<Link>> ConnectToEach(const std::vector<SocketAddress>& candidates,
                                                    const Deadline& deadline,
                                                    const SetUpLink& set_up) {
  absl::Status status = absl::UnavailableError("there is no address");
  auto untried = static_cast<int64_t>(candidates.size());
  for (const SocketAddress& candidate : candidates) {
    const Deadline share =
        deadline.infinite() ? deadline : Deadline::After(deadline.Left() / untried--);
    absl::StatusOr<std::unique_ptr<Link>> link = set_up(candidate, share);
    if (link.ok()) return link;
    // The first candidate's words, unless a later one got further than not being reached.
    if (absl::IsUnavailable(status)) status = link.status();
    if (deadline.Expired()) break;
  }
  return status;
}

absl::StatusOr<std::unique_ptr<Link>> ConnectToAny(const std::string& address,
                                                   const LinkOptions& options,
                                                   const SetUpLink& set_up) {
  RETURN_IF_ERROR(internal::CheckLinkOptions(options));
  const Deadline deadline = Deadline::After(options.connect_timeout);
  ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, Resolve(address, /*to_listen=*/false));
  absl::StatusOr<std::unique_ptr<Link>> link = ConnectToEach(candidates, deadline, set_up);
  if (link.ok()) return link;
  return Annotate(link.status(), absl::StrCat("link to ", address));
}

}  // namespace tributary::transport::tcp
