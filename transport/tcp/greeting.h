// Control sockets over TCP, for tcp's own links and for backends that add another data path.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/internal/acceptor.h"
#include "transport/link.h"
#include "transport/tcp/socket.h"

namespace tributary::transport::tcp {

// Listens on the first address that `address` resolves to and can be listened on.
absl::StatusOr<std::unique_ptr<Listener>> ListenForLinks(const std::string& address,
                                                         const LinkOptions& options,
                                                         internal::AcceptorHooks hooks);

// A control socket that both sides have said hello on; `transport` as in AcceptorHooks. No lanes
// yet.
absl::StatusOr<internal::ReadySockets> Greet(const SocketAddress& address,
                                             const LinkOptions& options,
                                             absl::string_view transport, const Deadline& deadline);

using SetUpLink =
    std::function<absl::StatusOr<std::unique_ptr<Link>>(const SocketAddress&, const Deadline&)>;
// Tries `set_up` with one after the other. Each has an even share of the time that is left: one
// that is filtered, and so never answers, is not to take the time of those behind it.
absl::StatusOr<std::unique_ptr<Link>> ConnectToEach(const std::vector<SocketAddress>& candidates,
                                                    const Deadline& deadline,
                                                    const SetUpLink& set_up);
// The same with each address that `address` resolves to, within connect_timeout in all.
absl::StatusOr<std::unique_ptr<Link>> ConnectToAny(const std::string& address,
                                                   const LinkOptions& options,
                                                   const SetUpLink& set_up);

}  // namespace tributary::transport::tcp
