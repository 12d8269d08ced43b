// Blocking TCP sockets by numeric IPv4 addresses.
#include "tests/rdma_vm/words.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

namespace tributary::transport {
namespace {

sockaddr_in AddressOf(const std::string& text) {
  const size_t colon = text.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(NumberOf(text.substr(colon + 1))));
  if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) std::abort();
  return address;
}

// `open` makes a fresh socket what it is to be; 0 where it could.
template <typename Open>
int Opened(const std::string& text, Open open) {
  const sockaddr_in address = AddressOf(text);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (open(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

int ConnectTcp(const std::string& address) {
  return Opened(address,
                [](int fd, const sockaddr* to, socklen_t bytes) { return connect(fd, to, bytes); });
}

int ListenTcp(const std::string& address) {
  return Opened(address, [](int fd, const sockaddr* at, socklen_t bytes) {
    return bind(fd, at, bytes) != 0 ? -1 : listen(fd, 64);
  });
}

}  // namespace tributary::transport
