// Links over RDMA: RoCE v2 (IPv4 and IPv6) and InfiniBand by the same code.
//
// A link is a control socket (TCP, as tcp's) and 1..8 reliable-connection queue pairs. Chunks are
// written straight into slots that the receiver has granted (RDMA WRITE WITH IMMEDIATE); nothing is
// published before its completion. Addresses are those of an IP interface of the RDMA device:
// "host:port". Device, port and GID are those of the route to the peer, which librdmacm asks the
// kernel for; where that cannot be had, those of the control socket's own address.
// transport/README.md describes states, threads and frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/link.h"

namespace tributary::transport {

struct RoceOptions {
  // The RDMA device, as `ibv_devices` lists it ("mlx5_0"). Empty: by the route.
  std::string device;
  uint32_t port = 0;   // of the device, from 1; 0: by the route
  int gid_index = -1;  // in the port's GID table; -1: by the route
  // Upper limit of the path MTU in bytes, 256, 512, 1024, 2048 or 4096; 0: what both ports have.
  uint32_t path_mtu = 0;
  uint32_t traffic_class = 0;  // 0..255: DSCP << 2 | ECN, as the fabric's PFC and ECN are set up
  uint32_t hop_limit = 64;     // 1..255
  uint32_t service_level = 0;  // 0..15: InfiniBand only
  // Memory that each device's arena registers (and so pins) at the start; a link takes 2 × slots ×
  // (chunk_bytes + 64, in whole pages) of it. The default serves 15 links of default LinkOptions;
  // one is wanted beside those in use, for a peer that is back before its dead link is noticed.
  size_t arena_bytes = size_t{256} << 20;
  // Where the arena lives. kCuda: on the first GPU, with a pinned view of it for the CPU, so that
  // chunks have both a data() and a device_address(); registered by dma-buf or nvidia-peermem, else
  // staged through that view, which the log says. Refused with the reason where there is no CUDA.
  MemoryKind arena_memory = MemoryKind::kHost;
  // How long an acknowledgement may take before a packet is sent again, rounded up to 4.096 µs ×
  // 2^n; and how often it is sent again before the link fails. ack_timeout × (retries + 1) is how
  // long a cut network is survived: 4.3 s by default, below the heartbeat's limit. Soft-RoCE takes
  // 7 for "for ever", so that there the heartbeat ends the link; with less it counts every packet
  // lost within a chunk, and fails at a few percent of loss.
  absl::Duration ack_timeout = absl::Milliseconds(500);
  uint32_t retries = 7;  // 1..7
  // How long the link's thread spins for the next completion before it sleeps. 50 µs is about what
  // an event costs, so that waiting longer cannot pay.
  absl::Duration spin = absl::Microseconds(50);
};

namespace roce {
class RoceNode;
}
// Devices that are open, each with its one arena registered; closed with the last fabric, listener
// or link over them. Thread-safe.
using RoceDevices = std::shared_ptr<roce::RoceNode>;

// Opens the named device, or all there are if none is named, and registers their arenas.
// FAILED_PRECONDITION where RDMA cannot run here: no
// library, no device, memory that may not be locked, GPU memory without CUDA; the message says how
// to mend it. INVALID_ARGUMENT for an option out of range.
absl::StatusOr<RoceDevices> OpenRoceDevices(const RoceOptions& options);

// A fabric over devices that are open; its links together take `arena_bytes` of each arena at most
// and leave `kept_bytes` to another fabric's. Never falls back to another transport. Of
// LinkOptions, `lanes` is the number of queue pairs (at most 8). Its listeners and links live on
// without it. Thread-safe.
std::unique_ptr<Fabric> MakeRoceFabric(RoceDevices devices, size_t arena_bytes, size_t kept_bytes);
// The same over devices of its own, with all of their arenas. Errors: OpenRoceDevices's.
absl::StatusOr<std::unique_ptr<Fabric>> MakeRoceFabric(const RoceOptions& options);

}  // namespace tributary::transport
