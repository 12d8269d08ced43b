// Abstract Unix sockets, credentials, descriptors in flight.
#include "transport/shm/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"

namespace tributary::transport::shm {
namespace {

using internal::Fd;

// Goes with the descriptor. As long as a hello's prefix, so that a refusal can stand in its place.
constexpr absl::string_view kWord("TRIBSHM1memory\0\0", 16);
static_assert(kWord.size() == internal::kHelloPrefixBytes);

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

Name AbstractName(const std::string& name) {
  Name out;
  out.address.sun_family = AF_UNIX;
  // An abstract name starts with a zero byte where the text has '@', and has no zero at its end.
  std::memcpy(out.address.sun_path + 1, name.data() + 1, name.size() - 1);
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return out;
}

absl::StatusOr<Fd> Socket() {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return internal::ErrnoStatus("socket", errno);
  return fd;
}

absl::StatusOr<ucred> Credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return internal::ErrnoStatus("SO_PEERCRED", errno);
  }
  return peer;
}

// The one descriptor that came with a message; invalid where there is none. Of more than one, which
// are then not what was agreed on, none is kept.
Fd TakeDescriptor(msghdr& message) {
  std::vector<Fd> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      taken.emplace_back(descriptor);
    }
  }
  return taken.size() == 1 ? std::move(taken.front()) : Fd();
}

}  // namespace

absl::StatusOr<std::string> CheckName(const std::string& address) {
  if (address.empty() || address == "@") {
    return absl::StrCat("@tributary-", absl::BytesToHexString(internal::RandomLinkId()));
  }
  if (address.front() != '@' || address.size() > sizeof(sockaddr_un::sun_path) ||
      address.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(address), "\" is no shared-memory address; write \"@\"",
                     " and a name of 1 to ", sizeof(sockaddr_un::sun_path) - 1, " bytes, e.g. ",
                     "@tributary-rack0, or \"@\" alone for a random name"));
  }
  return address;
}

absl::StatusOr<Fd> ListenOn(const std::string& name) {
  ASSIGN_OR_RETURN(Fd fd, Socket());
  const Name at = AbstractName(name);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0 ||
      listen(fd.get(), 512) != 0) {
    return internal::ErrnoStatus(absl::StrCat("cannot listen for links on ", name), errno);
  }
  return fd;
}

absl::StatusOr<Fd> ConnectTo(const std::string& name, const Deadline& deadline) {
  ASSIGN_OR_RETURN(Fd fd, Socket());
  const Name at = AbstractName(name);
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED) {
      return absl::UnavailableError(
          absl::StrCat("nobody listens on ", name,
                       " in this network namespace of this machine; is the peer up, ",
                       "on the same machine, and not in a container with a network of its own?"));
    }
    if (errno != EAGAIN) return internal::ErrnoStatus(absl::StrCat("connect to ", name), errno);
    // Its backlog is full, which poll cannot wait for.
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat(name, " did not accept in time"));
    }
    usleep(1000);
  }
  return fd;
}

absl::Status CheckSameUser(int fd) {
  ASSIGN_OR_RETURN(const ucred peer, Credentials(fd));
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the peer runs as user ", peer.uid, ", this side as user ", geteuid(),
                   "; shared memory is for one user: run both as the same, or use tcp"));
}

std::string PeerText(int fd) {
  const auto peer = Credentials(fd);
  if (!peer.ok()) return "disconnected";
  return absl::StrCat("pid ", peer->pid, " on this machine");
}

absl::Status SendDescriptor(int fd, int descriptor) {
  std::string word(kWord);
  iovec piece{word.data(), word.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  ssize_t n = 0;
  do {
    n = sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(word.size())) return absl::OkStatus();
  return internal::ErrnoStatus("handing over the memory of a link", n < 0 ? errno : EMSGSIZE);
}

void SendNoDescriptor(int fd, const absl::Status& why) {
  const std::string refusal = internal::EncodeRefusal(why);
  // The link is not made either way; whoever cannot read this sees the socket close.
  [[maybe_unused]] const ssize_t n = send(fd, refusal.data(), refusal.size(), MSG_NOSIGNAL);
}

absl::StatusOr<Fd> ReceiveDescriptor(int fd, const Deadline& deadline) {
  std::array<uint8_t, internal::kHelloPrefixBytes> word{};
  iovec piece{word.data(), word.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  while ((n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EAGAIN && errno != EINTR) return internal::ErrnoStatus("recvmsg", errno);
    if (!internal::PollOne(fd, POLLIN, deadline)) {
      return absl::DeadlineExceededError("the peer did not hand over its memory in time");
    }
  }
  Fd memory = TakeDescriptor(message);
  const auto got = static_cast<size_t>(n);
  RETURN_IF_ERROR(internal::ReadAll(fd, word.data() + got, word.size() - got, deadline));
  if (memory.valid() && std::memcmp(word.data(), kWord.data(), kWord.size()) == 0) return memory;
  ASSIGN_OR_RETURN(const size_t length, internal::DecodePrefix(word));
  std::vector<uint8_t> refusal(length);
  RETURN_IF_ERROR(internal::ReadAll(fd, refusal.data(), refusal.size(), deadline));
  RETURN_IF_ERROR(internal::DecodeReply(refusal).status());
  return absl::FailedPreconditionError("the peer handed over no memory");
}

}  // namespace tributary::transport::shm
