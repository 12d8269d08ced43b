// Streams bytes over a loopback link and over plain sockets, in turn.
#include "transport/tcp_bench.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/tcp.h"
#include "transport/tcp/socket.h"

namespace tributary::transport {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// User and system time of this process so far.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One repetition: payload bytes per second of wall time, CPU seconds per 10^9 bytes (both sides).
struct Measured {
  double rate = 0;
  double cpu_s_per_gb = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Writes or reads `bytes` in pieces of `piece`; the socket blocks. False where it broke.
template <typename Call>
bool Move(Call call, std::vector<uint8_t>& buffer, uint64_t bytes) {
  while (bytes > 0) {
    const size_t piece = static_cast<size_t>(std::min<uint64_t>(buffer.size(), bytes));
    size_t done = 0;
    while (done < piece) {
      const ssize_t n = call(buffer.data() + done, piece - done);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    bytes -= piece;
  }
  return true;
}

struct SocketPair {
  tcp::Fd sender;
  tcp::Fd receiver;
};

absl::StatusOr<SocketPair> ConnectPair() {
  ASSIGN_OR_RETURN(auto addresses, tcp::Resolve("127.0.0.1:0", true));
  ASSIGN_OR_RETURN(tcp::Fd listener, tcp::ListenOn(addresses.front()));
  SocketPair pair;
  ASSIGN_OR_RETURN(pair.sender, tcp::ConnectTo(tcp::LocalAddress(listener.get()),
                                               internal::Deadline::After(absl::Seconds(5))));
  pair.receiver = tcp::Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!pair.receiver.valid()) return tcp::ErrnoStatus("accept", errno);
  tcp::SetLinkOptions(pair.sender.get(), absl::Seconds(60));
  // The plain sockets block: that is their fastest way.
  RETURN_IF_ERROR(tcp::SetBlocking(pair.sender.get()));
  return pair;
}

absl::StatusOr<Measured> PlainSockets(const TcpBenchOptions& options) {
  std::vector<SocketPair> lanes;
  for (uint32_t i = 0; i < options.lanes; ++i) {
    ASSIGN_OR_RETURN(SocketPair pair, ConnectPair());
    lanes.push_back(std::move(pair));
  }
  const uint64_t each = options.bytes / options.lanes;
  std::vector<uint8_t> failed(2 * options.lanes, 0);
  std::vector<std::vector<uint8_t>> buffers(2 * options.lanes,
                                            std::vector<uint8_t>(options.chunk_bytes, 1));
  std::vector<std::thread> threads;
  const double cpu = CpuSeconds();
  const Clock::time_point start = Clock::now();
  for (uint32_t i = 0; i < options.lanes; ++i) {
    threads.emplace_back([&, i, fd = lanes[i].sender.get()] {
      failed[2 * i] = !Move([fd](uint8_t* at, size_t n) { return send(fd, at, n, MSG_NOSIGNAL); },
                            buffers[2 * i], each);
    });
    threads.emplace_back([&, i, fd = lanes[i].receiver.get()] {
      failed[2 * i + 1] = !Move([fd](uint8_t* at, size_t n) { return recv(fd, at, n, 0); },
                                buffers[2 * i + 1], each);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = Seconds(Clock::now() - start);
  const double spent = CpuSeconds() - cpu;
  if (std::count(failed.begin(), failed.end(), 1) > 0) {
    return absl::InternalError("a plain loopback socket broke while it was measured");
  }
  const double bytes = static_cast<double>(each * options.lanes);
  return Measured{.rate = bytes / seconds, .cpu_s_per_gb = spent / (bytes / 1e9)};
}

absl::Status SendAll(Link& link, uint64_t chunks) {
  for (uint64_t i = 0; i < chunks; ++i) {
    ASSIGN_OR_RETURN(Chunk chunk, link.Borrow(absl::Now() + absl::Seconds(60)));
    chunk.set_size(chunk.capacity());
    RETURN_IF_ERROR(link.Send(std::move(chunk)));
  }
  return link.Close(absl::Now() + absl::Seconds(60));
}

absl::StatusOr<Measured> OverLink(const TcpBenchOptions& options) {
  LinkOptions link_options;
  link_options.name = "bench";
  link_options.chunk_bytes = options.chunk_bytes;
  link_options.slots = options.slots;
  link_options.lanes = options.lanes;
  auto fabric = MakeTcpFabric();
  ASSIGN_OR_RETURN(auto listener, fabric->Listen("127.0.0.1:0", link_options));
  ASSIGN_OR_RETURN(auto sender, fabric->Connect(listener->address(), link_options));
  ASSIGN_OR_RETURN(auto receiver, listener->Accept(absl::Now() + absl::Seconds(10)));
  const uint64_t chunks = options.bytes / options.chunk_bytes;
  absl::Status sent;
  const double cpu = CpuSeconds();
  const Clock::time_point start = Clock::now();
  std::thread thread([&] { sent = SendAll(*sender, chunks); });
  absl::Status received;
  uint64_t bytes = 0;
  while (received.ok()) {
    absl::StatusOr<Chunk> chunk = receiver->Receive(absl::Now() + absl::Seconds(60));
    received = chunk.status();
    if (chunk.ok()) bytes += chunk->size();
  }
  const double seconds = Seconds(Clock::now() - start);
  const double spent = CpuSeconds() - cpu;
  if (!absl::IsOutOfRange(received)) sender->Cancel("the bench's receiver failed");
  thread.join();
  RETURN_IF_ERROR(sent);
  if (!absl::IsOutOfRange(received)) return received;
  return Measured{.rate = static_cast<double>(bytes) / seconds,
                  .cpu_s_per_gb = spent / (static_cast<double>(bytes) / 1e9)};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> BenchTcpStream(const TcpBenchOptions& options) {
  if (options.lanes == 0 || options.repetitions < 1 || options.bytes < options.chunk_bytes) {
    return absl::InvalidArgumentError(
        "the transport bench needs a lane, a repetition, and bytes for one chunk at least");
  }
  std::vector<double> plain_rate, plain_cpu, link_rate, link_cpu;
  for (int i = 0; i < options.repetitions; ++i) {
    ASSIGN_OR_RETURN(const Measured plain, PlainSockets(options));
    ASSIGN_OR_RETURN(const Measured link, OverLink(options));
    plain_rate.push_back(plain.rate);
    plain_cpu.push_back(plain.cpu_s_per_gb);
    link_rate.push_back(link.rate);
    link_cpu.push_back(link.cpu_s_per_gb);
  }
  const auto row = [](std::string name, std::string unit, double value, double ceiling) {
    return BenchRow{.name = std::move(name),
                    .value = value,
                    .unit = std::move(unit),
                    .ceiling = ceiling,
                    .ratio = value / ceiling};
  };
  return std::vector<BenchRow>{
      row("transport.tcp.stream", "B/s", Median(link_rate), Median(plain_rate)),
      row("transport.tcp.cpu_s_per_gb", "s/GB", Median(link_cpu), Median(plain_cpu))};
}

}  // namespace tributary::transport
