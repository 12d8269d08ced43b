// The ceilings: plain blocking sockets, and plain copies through shared memory.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/transport_runs.h"

namespace tributary::bench {
namespace {

using nlohmann::json;

// Owns descriptors for the length of a run.
struct Fds {
  std::vector<int> all;
  ~Fds() {
    for (const int fd : all) close(fd);
  }
  int Add(int fd) {
    all.push_back(fd);
    return fd;
  }
};

bool SendAll(int fd, const uint8_t* at, size_t n) {
  while (n > 0) {
    const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, uint8_t* at, size_t n) {
  while (n > 0) {
    const ssize_t got = recv(fd, at, n, 0);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

absl::Status Broke() {
  return absl::UnavailableError("a plain socket broke while it was measured");
}

// What each lane moves in the warm-up and in the timed part, in whole pieces.
uint64_t PiecesOf(uint64_t bytes, const Shape& shape) {
  return std::max<uint64_t>(1, bytes / shape.lanes / shape.size);
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Listens, starts the peer and accepts as many sockets as there are lanes.
absl::StatusOr<Peer> AcceptLanes(const std::string& what, const Shape& shape, Fds* fds) {
  Fds listening;
  const int listener = listening.Add(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here = Loopback(0);
  socklen_t length = sizeof(here);
  if (bind(listener, reinterpret_cast<sockaddr*>(&here), length) != 0 ||
      listen(listener, 16) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&here), &length) != 0) {
    return Broke();
  }
  ASSIGN_OR_RETURN(Peer peer, Peer::Start(what, shape, std::to_string(ntohs(here.sin_port))));
  for (uint32_t i = 0; i < shape.lanes; ++i) {
    const int fd = fds->Add(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    const int one = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0) return Broke();
  }
  return peer;
}

absl::Status ConnectLanes(const TransportPeerOptions& options, Fds* fds) {
  int port = 0;
  if (!absl::SimpleAtoi(options.address, &port)) return Broke();
  const sockaddr_in there = Loopback(port);
  for (uint32_t i = 0; i < options.lanes; ++i) {
    const int fd = fds->Add(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int one = 1;
    if (options.send_buffer > 0) {
      setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options.send_buffer, sizeof(options.send_buffer));
    }
    if (connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0) {
      return Broke();
    }
  }
  return absl::OkStatus();
}

// A thread for each lane: moves its warm-up, waits for the others, moves the timed pieces.
// `start` runs once between the two. False where a socket broke.
template <typename MoveOne>
bool RunLanes(const std::vector<int>& lanes, const Shape& shape, const MoveOne& move,
              const std::function<void()>& start) {
  std::atomic<bool> good = true;
  std::barrier ready(static_cast<std::ptrdiff_t>(lanes.size()), [&start]() noexcept { start(); });
  std::vector<std::thread> threads;
  threads.reserve(lanes.size());
  for (const int fd : lanes) {
    threads.emplace_back([&, fd] {
      std::vector<uint8_t> buffer(shape.size, 1);
      for (uint64_t i = PiecesOf(WarmBytes(shape), shape); i > 0; --i) {
        if (!move(fd, buffer.data(), buffer.size())) good = false;
      }
      ready.arrive_and_wait();
      for (uint64_t i = PiecesOf(shape.bytes, shape); i > 0; --i) {
        if (!move(fd, buffer.data(), buffer.size())) good = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good;
}

double TimedGigabytes(const Shape& shape) {
  return static_cast<double>(PiecesOf(shape.bytes, shape) * shape.size * shape.lanes) / 1e9;
}

// The shared memory of the copies: flags, then the buffers.
struct SharedHead {
  alignas(64) std::atomic<uint64_t> filled;
  alignas(64) std::atomic<uint64_t> emptied;
};
constexpr size_t kHeadBytes = 4096;

struct Shared {
  uint8_t* base = nullptr;
  size_t bytes = 0;
  ~Shared() {
    if (base != nullptr) munmap(base, bytes);
  }
  SharedHead& head() const { return *reinterpret_cast<SharedHead*>(base); }
  uint8_t* slot(uint64_t i, const Shape& shape) const {
    return base + kHeadBytes + (i % shape.slots) * shape.size;
  }
};

bool MapShared(int fd, const Shape& shape, Shared* out) {
  out->bytes = kHeadBytes + shape.slots * shape.size;
  void* base = mmap(nullptr, out->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) return false;
  out->base = static_cast<uint8_t*>(base);
  return true;
}

// The peer finds the memory through /proc, so that it has no name of its own.
absl::StatusOr<Peer> ShareWithPeer(const std::string& what, const Shape& shape, Fds* fds,
                                   Shared* shared) {
  const int fd = fds->Add(memfd_create("bench", MFD_CLOEXEC));
  const auto bytes = static_cast<off_t>(kHeadBytes + shape.slots * shape.size);
  if (posix_fallocate(fd, 0, bytes) != 0 || !MapShared(fd, shape, shared)) {
    return absl::ResourceExhaustedError("no shared memory for the bench");
  }
  return Peer::Start(what, shape, absl::StrCat("/proc/", getpid(), "/fd/", fd));
}

absl::Status OpenShared(const TransportPeerOptions& options, Fds* fds, Shared* shared) {
  const int fd = fds->Add(open(options.address.c_str(), O_RDWR | O_CLOEXEC));
  if (fd >= 0 && MapShared(fd, ShapeOf(options), shared)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot map ", options.address));
}

// Spins: the fastest that two processes with a core each can do. Gives way now and then, in case
// that they have not.
void AwaitAtLeast(const std::atomic<uint64_t>& count, uint64_t value) {
  for (uint32_t i = 1; count.load(std::memory_order_acquire) < value; ++i) {
    if (i % 4096 == 0) std::this_thread::yield();
  }
}

}  // namespace

absl::StatusOr<StreamResult> SocketStream(const Shape& shape) {
  Fds lanes;
  ASSIGN_OR_RETURN(Peer peer, AcceptLanes("socket-stream", shape, &lanes));
  double start = 0;
  double cpu = 0;
  const bool good = RunLanes(lanes.all, shape, ReceiveAll, [&] {
    start = WallSeconds();
    cpu = CpuSeconds();
  });
  const double seconds = WallSeconds() - start;
  if (!good) return Broke();
  StreamResult result;
  result.rate = TimedGigabytes(shape) * 1e9 / seconds;
  result.receiver_cpu = (CpuSeconds() - cpu) / TimedGigabytes(shape);
  RETURN_IF_ERROR(peer.FinishStream(&result));
  return result;
}

absl::StatusOr<std::string> SocketStreamPeer(const TransportPeerOptions& options) {
  const Shape shape = ShapeOf(options);
  Fds lanes;
  RETURN_IF_ERROR(ConnectLanes(options, &lanes));
  double cpu = 0;
  if (!RunLanes(lanes.all, shape, SendAll, [&] { cpu = CpuSeconds(); })) return Broke();
  return json{{"cpu_s_per_gb", (CpuSeconds() - cpu) / TimedGigabytes(shape)}}.dump();
}

absl::StatusOr<PingResult> SocketPing(const Shape& one) {
  Shape shape = one;
  shape.lanes = 1;
  Fds lanes;
  ASSIGN_OR_RETURN(Peer peer, AcceptLanes("socket-ping", shape, &lanes));
  std::vector<uint8_t> buffer(shape.size, 1);
  const int fd = lanes.all.front();
  while (ReceiveAll(fd, buffer.data(), buffer.size()) &&
         SendAll(fd, buffer.data(), buffer.size())) {
  }
  ASSIGN_OR_RETURN(const std::string report, peer.Report());
  return ParsePing(report);
}

absl::StatusOr<std::string> SocketPingPeer(const TransportPeerOptions& options) {
  Fds lanes;
  RETURN_IF_ERROR(ConnectLanes(options, &lanes));
  std::vector<uint8_t> buffer(options.size, 1);
  const int fd = lanes.all.front();
  std::vector<double> us;
  const uint32_t warm = options.rounds / 10;
  for (uint32_t i = 0; i < warm + options.rounds; ++i) {
    const double start = WallSeconds();
    if (!SendAll(fd, buffer.data(), buffer.size()) ||
        !ReceiveAll(fd, buffer.data(), buffer.size())) {
      return Broke();
    }
    if (i >= warm) us.push_back(1e6 * (WallSeconds() - start));
  }
  return PingReport(std::move(us), 0);
}

absl::StatusOr<StreamResult> SharedStream(const Shape& shape) {
  Fds fds;
  Shared shared;
  ASSIGN_OR_RETURN(Peer peer, ShareWithPeer("shared-stream", shape, &fds, &shared));
  std::vector<uint8_t> sink(SourceBytes(shape), 0);
  const uint64_t warm = WarmBytes(shape) / shape.size;
  const uint64_t chunks = warm + shape.bytes / shape.size;
  double start = 0;
  double cpu = 0;
  for (uint64_t i = 0; i < chunks; ++i) {
    if (i == warm) {
      start = WallSeconds();
      cpu = CpuSeconds();
    }
    AwaitAtLeast(shared.head().filled, i + 1);
    std::memcpy(sink.data() + i * shape.size % sink.size(), shared.slot(i, shape), shape.size);
    shared.head().emptied.store(i + 1, std::memory_order_release);
  }
  const double seconds = WallSeconds() - start;
  const double bytes = static_cast<double>((chunks - warm) * shape.size);
  StreamResult result;
  result.rate = bytes / seconds;
  result.receiver_cpu = (CpuSeconds() - cpu) / (bytes / 1e9);
  RETURN_IF_ERROR(peer.FinishStream(&result));
  return result;
}

absl::StatusOr<std::string> SharedStreamPeer(const TransportPeerOptions& options) {
  const Shape shape = ShapeOf(options);
  Fds fds;
  Shared shared;
  RETURN_IF_ERROR(OpenShared(options, &fds, &shared));
  const std::vector<uint8_t> source(SourceBytes(shape), 1);
  const uint64_t warm = WarmBytes(shape) / shape.size;
  const uint64_t chunks = warm + shape.bytes / shape.size;
  double cpu = 0;
  for (uint64_t i = 0; i < chunks; ++i) {
    if (i == warm) cpu = CpuSeconds();
    if (i >= shape.slots) AwaitAtLeast(shared.head().emptied, i + 1 - shape.slots);
    std::memcpy(shared.slot(i, shape), source.data() + i * shape.size % source.size(), shape.size);
    shared.head().filled.store(i + 1, std::memory_order_release);
  }
  const double timed = static_cast<double>((chunks - warm) * shape.size) / 1e9;
  return json{{"cpu_s_per_gb", (CpuSeconds() - cpu) / timed}}.dump();
}

absl::StatusOr<PingResult> SharedPing(const Shape& shape) {
  Fds fds;
  Shared shared;
  ASSIGN_OR_RETURN(Peer peer, ShareWithPeer("shared-ping", shape, &fds, &shared));
  for (uint64_t i = 1; i <= shape.rounds + shape.rounds / 10; ++i) {
    AwaitAtLeast(shared.head().filled, i);
    shared.head().emptied.store(i, std::memory_order_release);
  }
  ASSIGN_OR_RETURN(const std::string report, peer.Report());
  return ParsePing(report);
}

absl::StatusOr<std::string> SharedPingPeer(const TransportPeerOptions& options) {
  Fds fds;
  Shared shared;
  RETURN_IF_ERROR(OpenShared(options, &fds, &shared));
  std::vector<double> us;
  const uint32_t warm = options.rounds / 10;
  for (uint32_t i = 1; i <= warm + options.rounds; ++i) {
    const double start = WallSeconds();
    shared.head().filled.store(i, std::memory_order_release);
    AwaitAtLeast(shared.head().emptied, i);
    if (i > warm) us.push_back(1e6 * (WallSeconds() - start));
  }
  return PingReport(std::move(us), 0);
}

}  // namespace tributary::bench
