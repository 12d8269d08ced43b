// Abstract Unix sockets and what is passed over them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/internal/posix_io.h"

namespace tributary::transport::shm {

// "@name" checked and returned; "@" and "" become a random name. INVALID_ARGUMENT for anything
// else.
absl::StatusOr<std::string> CheckName(const std::string& address);

// A non-blocking listening socket under an abstract name; UNAVAILABLE where the name is taken.
absl::StatusOr<internal::Fd> ListenOn(const std::string& name);
// A connected, non-blocking socket.
absl::StatusOr<internal::Fd> ConnectTo(const std::string& name, const Deadline& deadline);

// PERMISSION_DENIED where the other end belongs to another user.
absl::Status CheckSameUser(int fd);
// "pid 4711 on this machine".
std::string PeerText(int fd);

// Sends a descriptor with a word of its own; the socket must have room (it is fresh).
absl::Status SendDescriptor(int fd, int descriptor);
// Sends a refusal in its place.
void SendNoDescriptor(int fd, const absl::Status& why);
// What the other end sent by one of these two: the descriptor, or the refusal as its status.
absl::StatusOr<internal::Fd> ReceiveDescriptor(int fd, const Deadline& deadline);

}  // namespace tributary::transport::shm
