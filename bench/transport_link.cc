// Streams and round trips over links, and what all runs share.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status.h"
#include "bench/transport_runs.h"
#include "transport/rdma/memlock.h"
#include "transport/roce.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace tributary::bench {
namespace {

using nlohmann::json;

Deadline Soon() { return Deadline::After(absl::Seconds(120)); }

absl::StatusOr<std::unique_ptr<transport::Fabric>> FabricOf(const Shape& shape) {
  if (shape.kind == "tcp") return transport::MakeTcpFabric();
  if (shape.kind == "shm") return transport::MakeShmFabric();
  if (shape.kind == "roce") return transport::MakeRoceFabric(RoceOptionsOf(shape));
  return absl::InvalidArgumentError(absl::StrCat("no transport \"", shape.kind, "\" to bench"));
}

transport::LinkOptions OptionsOf(const Shape& shape) {
  transport::LinkOptions options;
  options.name = "bench";
  options.chunk_bytes = shape.size;
  options.slots = shape.slots;
  options.lanes = shape.lanes;
  return options;
}

struct Accepted {
  std::unique_ptr<transport::Listener> listener;
  std::unique_ptr<transport::Link> link;
};

absl::StatusOr<std::pair<Accepted, Peer>> AcceptPeer(const std::string& what, const Shape& shape) {
  ASSIGN_OR_RETURN(auto fabric, FabricOf(shape));
  Accepted accepted;
  ASSIGN_OR_RETURN(accepted.listener, fabric->Listen(shape.listen, OptionsOf(shape)));
  ASSIGN_OR_RETURN(Peer peer, Peer::Start(what, shape, accepted.listener->address()));
  ASSIGN_OR_RETURN(accepted.link, accepted.listener->Accept(Soon()));
  return std::pair<Accepted, Peer>(std::move(accepted), std::move(peer));
}

absl::StatusOr<std::unique_ptr<transport::Link>> ConnectBack(const TransportPeerOptions& options,
                                                             double* open_ms, double* connect_ms) {
  double start = WallSeconds();
  ASSIGN_OR_RETURN(auto fabric, FabricOf(ShapeOf(options)));
  *open_ms = 1e3 * (WallSeconds() - start);
  start = WallSeconds();
  ASSIGN_OR_RETURN(auto link, fabric->Connect(options.address, OptionsOf(ShapeOf(options))));
  *connect_ms = 1e3 * (WallSeconds() - start);
  return link;
}

}  // namespace

transport::RoceOptions RoceOptionsOf(const Shape& shape) {
  transport::RoceOptions options;
  options.arena_bytes = std::max<size_t>(options.arena_bytes,
                                         transport::rdma::LinkArenaBytes(shape.slots, shape.size));
  return options;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t WarmBytes(const Shape& shape) {
  const uint64_t laps = 2 * uint64_t{shape.slots} * shape.size;
  return std::max<uint64_t>(laps, 16 << 20) / shape.size * shape.size;
}

uint64_t SourceBytes(const Shape& shape) {
  constexpr uint64_t kBytes = 128 << 20;
  return std::max<uint64_t>(kBytes / shape.size, 1) * shape.size;
}

std::string PingReport(std::vector<double> us, double connect_ms) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) { return us[static_cast<size_t>(q * double(us.size() - 1))]; };
  return json{{"p50", at(0.5)}, {"p95", at(0.95)}, {"p99", at(0.99)}, {"connect_ms", connect_ms}}
      .dump();
}

absl::StatusOr<PingResult> ParsePing(const std::string& report) {
  const json j = json::parse(report, nullptr, false);
  if (j.is_discarded()) return absl::InternalError("the bench's peer reported nothing readable");
  return PingResult{.p50_us = j.value("p50", 0.0),
                    .p95_us = j.value("p95", 0.0),
                    .p99_us = j.value("p99", 0.0),
                    .connect_ms = j.value("connect_ms", 0.0)};
}

absl::StatusOr<Peer> Peer::Start(const std::string& what, const Shape& shape,
                                 const std::string& address) {
  ASSIGN_OR_RETURN(Process process, Process::Start({SelfDirectory() + "/tributary",
                                                    "bench",
                                                    "transport-peer",
                                                    "--what",
                                                    what,
                                                    "--kind",
                                                    shape.kind,
                                                    "--address",
                                                    address,
                                                    "--size",
                                                    std::to_string(shape.size),
                                                    "--lanes",
                                                    std::to_string(shape.lanes),
                                                    "--slots",
                                                    std::to_string(shape.slots),
                                                    "--bytes",
                                                    std::to_string(shape.bytes),
                                                    "--rounds",
                                                    std::to_string(shape.rounds),
                                                    "--send-buffer",
                                                    std::to_string(shape.send_buffer)},
                                                   {.log_file = "", .pipe_stdout = true}));
  return Peer(std::move(process));
}

absl::StatusOr<std::string> Peer::Report() {
  std::string text;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(process_.stdout_fd(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(n));
  }
  ASSIGN_OR_RETURN(const int code, process_.Wait(absl::Seconds(30)));
  if (code != 0) return absl::AbortedError(absl::StrCat("the bench's peer ended with ", code));
  return text;
}

absl::Status Peer::FinishStream(StreamResult* result) {
  ASSIGN_OR_RETURN(const std::string report, Report());
  const json j = json::parse(report, nullptr, false);
  if (j.is_discarded()) return absl::InternalError("the bench's peer reported nothing readable");
  result->sender_cpu = j.value("cpu_s_per_gb", 0.0);
  result->open_ms = j.value("open_ms", 0.0);
  result->connect_ms = j.value("connect_ms", 0.0);
  result->retransmits += j.value("retransmits", uint64_t{0});
  if (j.contains("connected_at")) result->first_ms -= 1e3 * j["connected_at"].get<double>();
  return absl::OkStatus();
}

absl::StatusOr<StreamResult> LinkStream(const Shape& shape, const Consume& consume,
                                        Payload payload) {
  const char* const what = payload == Payload::kCopied    ? "link-filled-stream"
                           : payload == Payload::kInPlace ? "link-in-place-stream"
                                                          : "link-stream";
  ASSIGN_OR_RETURN(auto started, AcceptPeer(what, shape));
  auto& [accepted, peer] = started;
  StreamResult result;
  uint64_t warm = WarmBytes(shape);
  uint64_t bytes = 0;
  double start = 0;
  double cpu = 0;
  absl::Status status;
  while (status.ok()) {
    absl::StatusOr<transport::Chunk> chunk = accepted.link->Receive(Soon());
    status = chunk.status();
    if (!status.ok()) break;
    if (result.first_ms == 0) result.first_ms = 1e3 * WallSeconds();
    if (consume) consume(*chunk);
    if (warm > 0) {
      warm -= std::min<uint64_t>(warm, chunk->size());
      if (warm > 0) continue;
      start = WallSeconds();
      cpu = CpuSeconds();
      continue;
    }
    bytes += chunk->size();
  }
  const double seconds = WallSeconds() - start;
  if (!absl::IsOutOfRange(status)) return status;
  result.rate = static_cast<double>(bytes) / seconds;
  result.receiver_cpu = (CpuSeconds() - cpu) / (static_cast<double>(bytes) / 1e9);
  result.retransmits = accepted.link->stats().retransmits;
  RETURN_IF_ERROR(peer.FinishStream(&result));
  return result;
}

namespace {

// Floats that a fold accepts. Through shared memory each chunk is copied in, or nothing would move;
// elsewhere, unless `copies`, the payload is taken to be made in the slot, which is touched once.
absl::StatusOr<std::string> SendStream(const TransportPeerOptions& options, bool copies) {
  const Shape shape = ShapeOf(options);
  double open_ms = 0, connect_ms = 0;
  ASSIGN_OR_RETURN(auto link, ConnectBack(options, &open_ms, &connect_ms));
  const double connected_at = WallSeconds();
  const std::vector<float> source(SourceBytes(shape) / sizeof(float) + 1, 0.015625F);
  const auto* bytes = reinterpret_cast<const uint8_t*>(source.data());
  std::set<const uint8_t*> touched;
  const uint64_t warm = WarmBytes(shape) / shape.size;
  const uint64_t chunks = warm + shape.bytes / shape.size;
  double cpu = 0;
  for (uint64_t i = 0; i < chunks; ++i) {
    if (i == warm) cpu = CpuSeconds();
    ASSIGN_OR_RETURN(transport::Chunk chunk, link->Borrow(Soon()));
    if (copies || touched.insert(chunk.data()).second) {
      std::memcpy(chunk.data(), bytes + i * shape.size % SourceBytes(shape), shape.size);
    }
    chunk.set_size(shape.size);
    RETURN_IF_ERROR(link->Send(std::move(chunk)));
  }
  RETURN_IF_ERROR(link->Close(Soon()));
  const double timed = static_cast<double>((chunks - warm) * shape.size) / 1e9;
  return json{{"cpu_s_per_gb", (CpuSeconds() - cpu) / timed},
              {"open_ms", open_ms},
              {"connect_ms", connect_ms},
              {"connected_at", connected_at},
              {"retransmits", link->stats().retransmits}}
      .dump();
}

}  // namespace

absl::StatusOr<std::string> LinkStreamPeer(const TransportPeerOptions& options) {
  return SendStream(options, options.kind == "shm");
}
absl::StatusOr<std::string> LinkFilledStreamPeer(const TransportPeerOptions& options) {
  return SendStream(options, /*copies=*/true);
}

absl::StatusOr<std::string> LinkInPlaceStreamPeer(const TransportPeerOptions& options) {
  return SendStream(options, /*copies=*/false);
}

absl::StatusOr<PingResult> LinkPing(const Shape& shape) {
  ASSIGN_OR_RETURN(auto started, AcceptPeer("link-ping", shape));
  auto& [accepted, peer] = started;
  while (true) {
    absl::StatusOr<transport::Chunk> ping = accepted.link->Receive(Soon());
    if (absl::IsOutOfRange(ping.status())) break;
    RETURN_IF_ERROR(ping.status());
    ASSIGN_OR_RETURN(transport::Chunk pong, accepted.link->Borrow(Soon()));
    pong.set_size(ping->size());
    RETURN_IF_ERROR(accepted.link->Send(std::move(pong)));
  }
  ASSIGN_OR_RETURN(const std::string report, peer.Report());
  return ParsePing(report);
}

absl::StatusOr<std::string> LinkPingPeer(const TransportPeerOptions& options) {
  double open_ms = 0, connect_ms = 0;
  ASSIGN_OR_RETURN(auto link, ConnectBack(options, &open_ms, &connect_ms));
  std::vector<double> us;
  const uint32_t warm = options.rounds / 10;
  for (uint32_t i = 0; i < warm + options.rounds; ++i) {
    const double start = WallSeconds();
    ASSIGN_OR_RETURN(transport::Chunk ping, link->Borrow(Soon()));
    ping.set_size(options.size);
    RETURN_IF_ERROR(link->Send(std::move(ping)));
    RETURN_IF_ERROR(link->Receive(Soon()).status());
    if (i >= warm) us.push_back(1e6 * (WallSeconds() - start));
  }
  RETURN_IF_ERROR(link->Close(Soon()));
  return PingReport(std::move(us), connect_ms);
}

}  // namespace tributary::bench
