// How fast a TCP link streams, beside plain sockets in the same run: for `tributary bench
// transport`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tributary::transport {

// One figure, as design.md's --json has it. `ceiling` and `ratio` are 0 where none was measured.
struct BenchRow {
  std::string name;
  double value = 0;
  std::string unit;
  double ceiling = 0;
  double ratio = 0;
};

struct TcpBenchOptions {
  uint64_t bytes = uint64_t{4} << 30;  // payload in each repetition
  size_t chunk_bytes = (size_t{1} << 20) + 4096;
  uint32_t lanes = 2;
  uint32_t slots = 8;
  int repetitions = 5;  // link and sockets in turn; medians are reported
};

// transport.tcp.stream: payload over a loopback link, CRC32C on both sides, bytes per second; its
// ceiling is the same payload over as many plain blocking sockets, written and read chunk by chunk,
// one thread a socket and side, without checksum. transport.tcp.cpu_s_per_gb: the CPU time of both
// sides for 10^9 bytes; its "ceiling" is that of the plain sockets, so that less is better and the
// ratio is above 1. It moves less with the machine's load. Takes seconds, and all the CPU there is.
absl::StatusOr<std::vector<BenchRow>> BenchTcpStream(const TcpBenchOptions& options);

}  // namespace tributary::transport
