// TCP sockets: addresses, listening, connecting, options.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "transport/internal/posix_io.h"

namespace tributary::transport::tcp {

using internal::ErrnoStatus;
using internal::Fd;
using internal::ReadAll;
using internal::Waker;
using internal::WriteAll;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// "host:port" or "[v6]:port" → addresses. Asks the resolver, which has no deadline of its own.
// INVALID_ARGUMENT where the text is no address, UNAVAILABLE where the name is not known.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& address, bool to_listen);
std::string ToText(const SocketAddress& address);
SocketAddress LocalAddress(int fd);
SocketAddress PeerAddress(int fd);  // of family AF_UNSPEC where it is not connected
std::string PeerText(int fd);

// A non-blocking listening socket.
absl::StatusOr<Fd> ListenOn(const SocketAddress& address);
// A connected, non-blocking socket.
absl::StatusOr<Fd> ConnectTo(const SocketAddress& address, const Deadline& deadline);
// No Nagle, keepalive, and unacknowledged bytes end the connection after `user_timeout`.
void SetLinkOptions(int fd, absl::Duration user_timeout);
absl::Status SetBlocking(int fd);
// Where both ends are on one machine: bounds the send buffer, so that what is under way stays in
// the processor's caches. Elsewhere the kernel sizes it by the path, which is right there.
void BoundBufferOnOneHost(int fd);

}  // namespace tributary::transport::tcp
