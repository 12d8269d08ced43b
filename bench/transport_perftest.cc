// The ceilings of RoCE: what perftest's own programs get between two processes of this machine,
// over the device of the route to the address that the link is measured at.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/status.h"
#include "bench/transport_perftest.h"

namespace tributary::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

// The table's row for `size`: numbers alone, of which the first is the size.
absl::StatusOr<std::vector<double>> RowOf(const std::string& text, size_t size, size_t columns) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::vector<double> row;
    for (const absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
      double value = 0;
      if (!absl::SimpleAtod(word, &value)) break;
      row.push_back(value);
    }
    if (row.size() >= columns && row[0] == static_cast<double>(size)) return row;
  }
  return absl::UnavailableError(
      absl::StrCat("perftest gave no row for ", size, " bytes: ", text.substr(0, 200)));
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

struct Ran {
  std::string text;
  double server_cpu = 0, client_cpu = 0;  // seconds
};

// Both sides of a program. Its server gives no sign of being ready: the client is tried again.
absl::StatusOr<Ran> RunBoth(const std::string& program, const std::vector<std::string>& more,
                            const std::string& listen) {
  const std::string path = absl::StrCat("/usr/bin/", program);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::UnavailableError(
        absl::StrCat(program, " is not installed (apt-get install perftest)"));
  }
  ASSIGN_OR_RETURN(const int port, FreePort());
  // -R: by the RDMA connection manager, which takes the device and the GID of the route.
  std::vector<std::string> argv = {path, "-R", "-F", "-p", std::to_string(port)};
  argv.insert(argv.end(), more.begin(), more.end());
  const Process::Options quiet = {.log_file = "/dev/null", .pipe_stdout = true};
  ASSIGN_OR_RETURN(Process server, Process::Start(argv, {.log_file = "/dev/null"}));
  argv.push_back(listen.substr(0, listen.rfind(':')));
  std::string text;
  for (const Deadline limit = Deadline::After(absl::Seconds(10)); !limit.Expired();) {
    ASSIGN_OR_RETURN(Process client, Process::Start(argv, quiet));
    text = ReadAll(client.stdout_fd());
    ASSIGN_OR_RETURN(const int code, client.Wait(kPatience));
    if (code == 0) {
      RETURN_IF_ERROR(server.Wait(kPatience).status());
      return Ran{text, server.cpu_seconds(), client.cpu_seconds()};
    }
    if (!server.Running()) break;
    absl::SleepFor(absl::Milliseconds(100));
  }
  return absl::UnavailableError(absl::StrCat(program, " does not run here: ", text.substr(0, 200)));
}

}  // namespace

// Bytes, iterations, peak, average: in MiB a second, whatever older versions call them.
absl::StatusOr<double> ParseWriteBandwidth(const std::string& text, size_t size) {
  ASSIGN_OR_RETURN(const std::vector<double> row, RowOf(text, size, 5));
  return row[3] * (1 << 20);
}

// Bytes, iterations, least, most, typical, average, deviation, 99 %, 99.9 %: one way each, in µs.
absl::StatusOr<PingResult> ParseSendLatency(const std::string& text, size_t size) {
  ASSIGN_OR_RETURN(const std::vector<double> row, RowOf(text, size, 9));
  return PingResult{.p50_us = 2 * row[4], .p95_us = 0, .p99_us = 2 * row[7], .connect_ms = 0};
}

absl::StatusOr<StreamResult> PerftestStream(const Shape& shape) {
  const uint64_t writes = std::clamp<uint64_t>(shape.bytes / shape.size / shape.lanes, 16, 20'000);
  ASSIGN_OR_RETURN(const Ran ran,
                   RunBoth("ib_write_bw",
                           {"-s", std::to_string(shape.size), "-n", std::to_string(writes), "-q",
                            std::to_string(shape.lanes)},
                           shape.listen));
  StreamResult result;
  ASSIGN_OR_RETURN(result.rate, ParseWriteBandwidth(ran.text, shape.size));
  const double gigabytes = static_cast<double>(writes * shape.lanes * shape.size) / 1e9;
  result.sender_cpu = ran.client_cpu / gigabytes;
  result.receiver_cpu = ran.server_cpu / gigabytes;
  return result;
}

absl::StatusOr<PingResult> PerftestPing(const Shape& shape) {
  ASSIGN_OR_RETURN(
      const Ran ran,
      RunBoth("ib_send_lat", {"-s", std::to_string(shape.size), "-n", std::to_string(shape.rounds)},
              shape.listen));
  return ParseSendLatency(ran.text, shape.size);
}

}  // namespace tributary::bench
