// Single measurements of `tributary bench transport`: each between this process and one that it
// starts, over a link or over the bare means that a link is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "bench/commands.h"
#include "transport/link.h"
#include "transport/roce.h"

namespace tributary::bench {

struct StreamResult {
  double rate = 0;          // payload bytes per second, warm
  double receiver_cpu = 0;  // CPU seconds per 10^9 bytes
  double sender_cpu = 0;
  double open_ms = 0;        // before that: devices are opened, memory is registered
  double connect_ms = 0;     // until the link is usable on the connecting side
  double first_ms = 0;       // from there until the first chunk is received: cold memory, cold path
  uint64_t retransmits = 0;  // of both sides, where the transport can tell
  double cpu_s_per_gb() const { return receiver_cpu + sender_cpu; }
};
struct PingResult {
  double p50_us = 0, p95_us = 0, p99_us = 0;  // round trips
  double connect_ms = 0;
};

// What a run moves. The peer gets the same as its command line.
struct Shape {
  std::string kind;    // of the link
  std::string listen;  // where the receiving side listens for it
  size_t size = 0;
  uint32_t lanes = 1;
  uint32_t slots = 8;
  uint64_t bytes = 0;   // streams
  uint32_t rounds = 0;  // round trips
  int send_buffer = 0;  // of plain sockets; 0: as the kernel has it
};

// What a link of `kind` in chunks of `size` is measured with; `bytes` is what --bytes asks for.
Shape ShapeFor(const std::string& kind, size_t size, uint32_t lanes, uint64_t bytes);
// Each side registers memory for the one link that it has, and never less than links have by
// default.
transport::RoceOptions RoceOptionsOf(const Shape& shape);

// Where a stream's chunks come from: copied in from 128 MiB of other memory, made in the slot
// (which is touched once), or as the transport's own figure has it: copied through shared memory,
// else made in place.
enum class Payload { kOwn, kCopied, kInPlace };
// Receives a stream of chunks. `consume` is called with each (empty: they are dropped).
using Consume = std::function<void(const transport::Chunk&)>;
absl::StatusOr<StreamResult> LinkStream(const Shape& shape, const Consume& consume,
                                        Payload payload = Payload::kOwn);
absl::StatusOr<PingResult> LinkPing(const Shape& shape);
// Plain blocking sockets, one thread a socket and side, no checksum.
absl::StatusOr<StreamResult> SocketStream(const Shape& shape);
absl::StatusOr<PingResult> SocketPing(const Shape& shape);
// A ring of `slots` buffers in shared memory: copied in by one process, copied out by the other,
// both spinning; round trips are two flags there.
absl::StatusOr<StreamResult> SharedStream(const Shape& shape);
absl::StatusOr<PingResult> SharedPing(const Shape& shape);

// The other process's part of each.
absl::StatusOr<std::string> LinkStreamPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> LinkFilledStreamPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> LinkInPlaceStreamPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> LinkPingPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> SocketStreamPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> SocketPingPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> SharedStreamPeer(const TransportPeerOptions& options);
absl::StatusOr<std::string> SharedPingPeer(const TransportPeerOptions& options);

// Below: shared by the runs.
double CpuSeconds();   // user and system time of this process so far
double WallSeconds();  // monotonic
// The bytes that go ahead of the timed ones: memory is mapped, windows are open.
uint64_t WarmBytes(const Shape& shape);
// How much memory a sender reads its payload from where it copies it: more than the caches hold, as
// with models.
uint64_t SourceBytes(const Shape& shape);
// p50, p95 and p99 of round trips, as the peer reports them.
std::string PingReport(std::vector<double> us, double connect_ms);
absl::StatusOr<PingResult> ParsePing(const std::string& report);

// The other process of a run. Its report is the line it writes when it is done.
class Peer {
 public:
  static absl::StatusOr<Peer> Start(const std::string& what, const Shape& shape,
                                    const std::string& address);
  absl::StatusOr<std::string> Report();
  // Adds what the peer reports of a stream.
  absl::Status FinishStream(StreamResult* result);

 private:
  explicit Peer(Process process) : process_(std::move(process)) {}
  Process process_;
};

// What a peer process was told on its command line.
inline Shape ShapeOf(const TransportPeerOptions& options) {
  return {.kind = options.kind,
          .listen = "",
          .size = options.size,
          .lanes = options.lanes,
          .slots = options.slots,
          .bytes = options.bytes,
          .rounds = options.rounds};
}

}  // namespace tributary::bench
