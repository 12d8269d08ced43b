// Which way of sending and receiving a tcp lane should take: plain calls, MSG_ZEROCOPY, io_uring,
// io_uring without copies. Between two hosts or network namespaces: bench/socket_ways.sh.
// usage: socket_ways receive ADDRESS PORT WAY MEGABYTES | send ADDRESS PORT WAY MEGABYTES
// Chunks of 1 MiB from 8 slots on one connection, each slot filled again before it is sent, as a
// link's are. Prints one line of JSON: GB/s, and CPU seconds per GB (user and kernel, this side).
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "bench/uring.h"

namespace tributary::bench {
namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr size_t kSlots = 8;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

sockaddr_in Address(const char* host, const char* port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1) Die(host);
  return address;
}

class Slots {
 public:
  Slots() {
    void* base = mmap(nullptr, kSlots * kChunk, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) Die("mmap");
    base_ = static_cast<uint8_t*>(base);
  }
  uint8_t* at(uint64_t i) const { return base_ + i % kSlots * kChunk; }

 private:
  uint8_t* base_;
};

// Sends chunk after chunk; what of a way is particular.
class Sender {
 public:
  Sender(int fd, const std::string& way) : fd_(fd), way_(way), ring_(8) {
    if (way_ == "zerocopy") {
      const int one = 1;
      if (setsockopt(fd_, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) != 0) Die("SO_ZEROCOPY");
    }
    if (way_.starts_with("uring") && !ring_.valid()) Die("io_uring_setup");
  }

  void Send(uint64_t i, const uint8_t* chunk) {
    if (way_ == "plain") return Plain(chunk, 0);
    if (way_ == "zerocopy") {
      Plain(chunk, MSG_ZEROCOPY);
      last_of_slot_[i % kSlots] = calls_;
      return;
    }
    WithRing(chunk, way_ == "uring_zerocopy" ? IORING_OP_SEND_ZC : IORING_OP_SEND);
  }
  // Before slot i is filled again: the kernel has let go of it.
  void AwaitSlot(uint64_t i) {
    while (way_ == "zerocopy" && released_ < last_of_slot_[i % kSlots]) ReadNotifications();
  }
  void Finish() {
    for (uint64_t i = 0; i < kSlots; ++i) AwaitSlot(i);
  }
  uint64_t copied() const { return copied_; }

 private:
  void Plain(const uint8_t* at, int flags) {
    for (size_t left = kChunk; left > 0;) {
      const ssize_t n = send(fd_, at, left, MSG_NOSIGNAL | flags);
      if (n < 0 && errno == ENOBUFS) {  // too many notifications are waiting
        ReadNotifications();
        continue;
      }
      if (n <= 0) Die("send");
      if (flags != 0) ++calls_;
      at += n;
      left -= static_cast<size_t>(n);
    }
  }

  void ReadNotifications() {
    pollfd entry{.fd = fd_, .events = 0, .revents = 0};
    poll(&entry, 1, 1000);
    std::array<uint8_t, 256> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      sock_extended_err about{};
      std::memcpy(&about, CMSG_DATA(c), sizeof(about));
      if (about.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      released_ = uint64_t{about.ee_data} + 1;
      if ((about.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) {
        copied_ += about.ee_data - about.ee_info + 1;
      }
    }
  }

  void WithRing(const uint8_t* at, uint8_t operation) {
    const bool zerocopy = operation == IORING_OP_SEND_ZC;
    for (size_t left = kChunk; left > 0;) {
      io_uring_sqe request{};
      request.opcode = operation;
      request.fd = fd_;
      request.addr = reinterpret_cast<uint64_t>(at);
      request.len = static_cast<uint32_t>(left);
      request.msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
      ring_.Submit(request, 1);
      io_uring_cqe done = ring_.Next();
      if (done.res <= 0) {
        errno = -done.res;
        Die("io_uring send");
      }
      at += done.res;
      left -= static_cast<size_t>(done.res);
      if (zerocopy && (done.flags & IORING_CQE_F_MORE) != 0) ring_.Next();  // it has let go
    }
  }

  const int fd_;
  const std::string way_;
  Uring ring_;
  uint64_t calls_ = 0;     // with MSG_ZEROCOPY, in all
  uint64_t released_ = 0;  // of them
  uint64_t copied_ = 0;    // of them: the kernel copied all the same
  std::array<uint64_t, kSlots> last_of_slot_{};
};

// By `ring`, or by plain calls where there is none.
void Receive(int fd, Uring* ring, uint8_t* at) {
  for (size_t left = kChunk; left > 0;) {
    ssize_t n = 0;
    if (ring != nullptr) {
      io_uring_sqe request{};
      request.opcode = IORING_OP_RECV;
      request.fd = fd;
      request.addr = reinterpret_cast<uint64_t>(at);
      request.len = static_cast<uint32_t>(left);
      ring->Submit(request, 1);
      n = ring->Next().res;
    } else {
      n = recv(fd, at, left, 0);
    }
    if (n <= 0) Die("receive");
    at += n;
    left -= static_cast<size_t>(n);
  }
}

int Connected(bool receive, const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  if (!receive) {
    if (connect(fd, at, sizeof(address)) != 0) Die("connect");
    return fd;
  }
  if (bind(fd, at, sizeof(address)) != 0 || listen(fd, 1) != 0) Die("listen");
  std::fprintf(stderr, "listening\n");
  return accept(fd, nullptr, nullptr);
}

int Run(bool receive, const sockaddr_in& address, const std::string& way, uint64_t chunks) {
  const int fd = Connected(receive, address);
  if (fd < 0) Die("accept");
  const Slots slots;
  const double cpu = CpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  uint64_t copied = 0;
  if (receive) {
    std::unique_ptr<Uring> ring;
    if (way.starts_with("uring")) {
      ring = std::make_unique<Uring>(8);
      if (!ring->valid()) Die("io_uring_setup");
    }
    for (uint64_t i = 0; i < chunks; ++i) Receive(fd, ring.get(), slots.at(i));
  } else {
    Sender sender(fd, way);
    for (uint64_t i = 0; i < chunks; ++i) {
      if (i >= kSlots) sender.AwaitSlot(i);
      std::memset(slots.at(i), static_cast<int>(i), kChunk);
      sender.Send(i, slots.at(i));
    }
    sender.Finish();
    copied = sender.copied();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double gigabytes = static_cast<double>(chunks * kChunk) / 1e9;
  std::printf(
      "{\"side\": \"%s\", \"way\": \"%s\", \"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.4f, "
      "\"calls_copied\": %llu}\n",
      receive ? "receive" : "send", way.c_str(), gigabytes / seconds,
      (CpuSeconds() - cpu) / gigabytes, static_cast<unsigned long long>(copied));
  close(fd);
  return 0;
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  const std::string side = argc == 6 ? argv[1] : "";
  if (side != "receive" && side != "send") {
    std::fprintf(stderr,
                 "usage: socket_ways receive|send ADDRESS PORT "
                 "plain|zerocopy|uring|uring_zerocopy MEGABYTES\n");
    return 2;
  }
  return tributary::bench::Run(side == "receive", tributary::bench::Address(argv[2], argv[3]),
                               argv[4], std::strtoull(argv[5], nullptr, 10));
}
