// The machine itself: interfaces, sockets, memory files, driver counters.
#include "doctor/environment.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "doctor/verbs.h"

namespace tributary::doctor {
namespace {

constexpr uint16_t kRoceUdpPort = 4791;

absl::Status ErrnoOf(absl::string_view what) {
  const int error = errno;
  return absl::Status(absl::ErrnoToStatusCode(error), absl::StrCat(what, ": ", strerror(error)));
}

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

std::vector<InterfaceAddress> Interfaces() {
  std::vector<InterfaceAddress> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    std::string text = AddressText(i->ifa_addr);
    if (!text.empty()) out.push_back({i->ifa_name, std::move(text), (i->ifa_flags & IFF_UP) != 0});
  }
  freeifaddrs(list);
  return out;
}

// An owned addrinfo list.
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Lookup(const std::string& host, const std::string& port, int type,
                                 int flags) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) return absl::NotFoundError(absl::StrCat("\"", host, "\": ", gai_strerror(error)));
  return Addresses(list, &freeaddrinfo);
}

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host) {
  ASSIGN_OR_RETURN(const Addresses list, Lookup(host, "0", SOCK_STREAM, 0));
  std::vector<std::string> out;
  for (const addrinfo* i = list.get(); i != nullptr; i = i->ai_next)
    out.push_back(AddressText(i->ai_addr));
  return out;
}

absl::Status TryListen(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat("\"", host_port, "\" is not host:port"));
  std::string host = host_port.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  ASSIGN_OR_RETURN(const Addresses list,
                   Lookup(host, host_port.substr(colon + 1), SOCK_STREAM, AI_PASSIVE));
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoOf("socket");
  const absl::Cleanup close_it = [fd] { close(fd); };
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    if (errno == EADDRINUSE) return absl::AlreadyExistsError("the port is in use");
    return ErrnoOf("cannot listen");
  }
  return absl::OkStatus();
}

absl::Status TryMemfd(uint64_t bytes) {
  const int fd = memfd_create("tributary-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return ErrnoOf("memfd_create");
  const absl::Cleanup close_it = [fd] { close(fd); };
  // Reserved, not only sized: this is where a full memory says so instead of a SIGBUS later.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    errno = error;
    return ErrnoOf(absl::StrCat("reserving ", BytesText(bytes), " in a memfd"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Space> SpaceOf(const std::string& path) {
  struct statvfs fs {};
  if (statvfs(path.c_str(), &fs) != 0) return ErrnoOf(path);
  return Space{fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize};
}

absl::Status MayOpen(const std::string& path) {
  return access(path.c_str(), R_OK | W_OK) == 0 ? absl::OkStatus() : ErrnoOf(path);
}

// ioctl(SIOCETHTOOL) thrice: how many counters, their names, their values.
absl::StatusOr<std::map<std::string, uint64_t>> EthtoolCounters(const std::string& netdev) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoOf("socket");
  const absl::Cleanup close_it = [fd] { close(fd); };
  ifreq request{};
  std::strncpy(request.ifr_name, netdev.c_str(), IFNAMSIZ - 1);
  const auto ask = [&](void* command) {
    request.ifr_data = static_cast<char*>(command);
    return ioctl(fd, SIOCETHTOOL, &request) == 0;
  };
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  if (!ask(&driver)) return ErrnoOf(netdev);
  const uint32_t count = std::min<uint32_t>(driver.n_stats, 1 << 16);
  std::vector<uint64_t> names((sizeof(ethtool_gstrings) + count * ETH_GSTRING_LEN) / 8 + 1);
  auto* strings = reinterpret_cast<ethtool_gstrings*>(names.data());
  strings->cmd = ETHTOOL_GSTRINGS;
  strings->string_set = ETH_SS_STATS;
  strings->len = count;
  std::vector<uint64_t> values(sizeof(ethtool_stats) / 8 + count + 1);
  auto* stats = reinterpret_cast<ethtool_stats*>(values.data());
  stats->cmd = ETHTOOL_GSTATS;
  stats->n_stats = count;
  if (count > 0 && (!ask(strings) || !ask(stats))) return ErrnoOf(netdev);
  std::map<std::string, uint64_t> out;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* name = reinterpret_cast<const char*>(strings->data) + i * ETH_GSTRING_LEN;
    out[std::string(name, strnlen(name, ETH_GSTRING_LEN))] = stats->data[i];
  }
  return out;
}

// A connected datagram socket: the kernel has chosen route and source by then; nothing is sent.
absl::StatusOr<int> UdpSocketTo(const std::string& host) {
  ASSIGN_OR_RETURN(const Addresses list, Lookup(host, std::to_string(kRoceUdpPort), SOCK_DGRAM, 0));
  absl::Status last = absl::NotFoundError(host);
  for (const addrinfo* i = list.get(); i != nullptr; i = i->ai_next) {
    const int fd = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    if (connect(fd, i->ai_addr, i->ai_addrlen) == 0) return fd;
    last = ErrnoOf(AddressText(i->ai_addr));
    close(fd);
  }
  return last;
}

absl::StatusOr<Route> RouteTo(const std::string& host) {
  ASSIGN_OR_RETURN(const int fd, UdpSocketTo(host));
  const absl::Cleanup close_it = [fd] { close(fd); };
  sockaddr_storage peer{}, source{};
  socklen_t peer_size = sizeof(peer), source_size = sizeof(source);
  getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&source), &source_size);
  Route route;
  route.peer = AddressText(reinterpret_cast<sockaddr*>(&peer));
  route.source = AddressText(reinterpret_cast<sockaddr*>(&source));
  socklen_t mtu_size = sizeof(route.mtu);
  const bool v6 = peer.ss_family == AF_INET6;
  if (getsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &route.mtu,
                 &mtu_size) != 0)
    route.mtu = 0;
  for (const InterfaceAddress& i : Interfaces()) {
    if (i.address == route.source) route.interface = i.interface;
  }
  return route;
}

absl::StatusOr<UdpAnswer> AskUdp(const std::string& address, absl::Duration limit) {
  const auto socket = UdpSocketTo(address);
  if (!socket.ok())
    return absl::IsNotFound(socket.status()) ? absl::StatusOr<UdpAnswer>(socket.status())
                                             : UdpAnswer::kUnreachable;
  const int fd = *socket;
  const absl::Cleanup close_it = [fd] { close(fd); };
  // No RoCE packet: a base transport header of zeros, which a device drops for its checksum.
  const char nothing[16] = {};
  if (send(fd, nothing, sizeof(nothing), 0) < 0) {
    return errno == ECONNREFUSED ? UdpAnswer::kRefused : UdpAnswer::kUnreachable;
  }
  pollfd wait = {.fd = fd, .events = POLLIN, .revents = 0};
  if (poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) <= 0)
    return UdpAnswer::kSilent;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == ECONNREFUSED) return UdpAnswer::kRefused;
  return error != 0 ? UdpAnswer::kUnreachable : UdpAnswer::kSilent;
}

}  // namespace

Environment RealEnvironment(const std::string& prefix) {
  Environment out;
  out.files = std::make_shared<SysFiles>(prefix);
  out.verbs = &LoadVerbs;
  out.rdma_cm = &LoadRdmaCm;
  out.interfaces = &Interfaces;
  out.resolve = &ResolveHost;
  out.try_listen = &TryListen;
  out.try_memfd = &TryMemfd;
  out.space = [prefix](const std::string& path) { return SpaceOf(prefix + path); };
  out.may_open = [prefix](const std::string& path) { return MayOpen(prefix + path); };
  out.ethtool = &EthtoolCounters;
  out.route = &RouteTo;
  out.udp = &AskUdp;
  return out;
}

}  // namespace tributary::doctor
