// What RDMA gives without a link, by perftest's ib_write_bw and ib_send_lat.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "bench/transport_runs.h"

namespace tributary::bench {

// UNAVAILABLE with the reason where the programs are not installed, or do not run.
absl::StatusOr<StreamResult> PerftestStream(const Shape& shape);
absl::StatusOr<PingResult> PerftestPing(const Shape& shape);

// Of what they print. Bytes per second; round trips (p95 is not told, and 0).
absl::StatusOr<double> ParseWriteBandwidth(const std::string& text, size_t size);
absl::StatusOr<PingResult> ParseSendLatency(const std::string& text, size_t size);

}  // namespace tributary::bench
