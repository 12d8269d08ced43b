// One end of a link, for scenarios.py: what it did, or what it was told, is its last line, in JSON.
// usage: rdma_vm_peer serve ADDRESS                      remote fabrics, for rdma_vm_conformance
//        rdma_vm_peer receive TRANSPORT ADDRESS CHUNKS   accepts a link at ADDRESS, takes its
//        chunks
//        rdma_vm_peer send TRANSPORT ADDRESS CHUNKS      connects and sends them
//        rdma_vm_peer idle TRANSPORT ADDRESS SECONDS     connects and sends nothing for that long
//        rdma_vm_peer accept|reconnect TRANSPORT ADDRESS LINKS   many links in turn, a chunk each
// Chunks have 1 MiB; exit code 0 where all went well, 3 for an error of the link. Reported too: CPU
// time, segments sent again, and what the process held before its link and after it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "tests/rdma_vm/remote.h"
#include "tests/transport/account.h"
#include "transport/link.h"

namespace tributary::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = size_t{1} << 20;
constexpr absl::Duration kPatience = absl::Seconds(60);

LinkOptions Options(const std::string& name) {
  LinkOptions options;
  options.name = name;
  options.chunk_bytes = kBytes;
  return options;
}

double SecondsSince(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

uint64_t WordOf(uint64_t chunk, size_t at) { return chunk * 0x9e3779b97f4a7c15 + at; }

absl::Status SendAll(Link& link, uint64_t chunks) {
  for (uint64_t i = 0; i < chunks; ++i) {
    ASSIGN_OR_RETURN(Chunk chunk, link.Borrow(Deadline::After(kPatience)));
    for (size_t at = 0; at < kBytes; at += 8) {
      const uint64_t word = WordOf(i, at);
      std::memcpy(chunk.data() + at, &word, sizeof(word));
    }
    chunk.set_size(kBytes);
    chunk.tag().index = i;
    RETURN_IF_ERROR(link.Send(std::move(chunk)));
  }
  return link.Close(Deadline::After(kPatience));
}

// `last`: when the last chunk came.
absl::Status ReceiveAll(Link& link, uint64_t chunks, Clock::time_point* last) {
  for (uint64_t i = 0; i < chunks; ++i) {
    ASSIGN_OR_RETURN(const Chunk chunk, link.Receive(Deadline::After(kPatience)));
    *last = Clock::now();
    bool right = chunk.size() == kBytes && chunk.tag().index == i;
    for (size_t at = 0; right && at < kBytes; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, chunk.data() + at, sizeof(word));
      right = word == WordOf(i, at);
    }
    if (!right) return absl::DataLossError("WRONG DATA");
    if (i == 0) {
      std::printf("first chunk\n");
      std::fflush(stdout);
    }
  }
  const absl::Status end = link.Receive(Deadline::After(kPatience)).status();
  if (!absl::IsOutOfRange(end)) return end;
  return link.Close(Deadline::After(kPatience));
}

absl::StatusOr<std::unique_ptr<Link>> Open(const std::string& verb, Fabric& fabric,
                                           const std::string& address) {
  if (verb != "receive") return fabric.Connect(address, Options("sender"));
  ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener,
                   fabric.Listen(address, Options("receiver")));
  std::printf("listening\n");
  std::fflush(stdout);
  return listener->Accept(Deadline::After(kPatience));
}

// On this host, as the kernel lists them: no other process has any meanwhile. Not by process: the
// kernel names the thread that made a queue pair, and nobody once that has ended.
int QueuePairs() {
  const char* const command = "rdma resource show qp link rxe0 | grep -c 'type RC'";
  FILE* const listing = popen(command, "re");
  int count = -1;
  if (listing != nullptr && std::fscanf(listing, "%d", &count) != 1) count = -1;
  if (listing != nullptr) pclose(listing);
  return count;
}

nlohmann::json Held() {
  return {{"fds", OpenFds()}, {"kb", OwnedBytes() / 1024}, {"queue_pairs", QueuePairs()}};
}

absl::Status Stream(const std::string& verb, Link& link, uint64_t count, nlohmann::json* report) {
  std::printf("linked\n");
  std::fflush(stdout);
  (*report)["linked"] = true;
  // That they are seen where there are any: a link that is closed has none.
  (*report)["queue_pairs"] = QueuePairs();
  const auto start = Clock::now();
  auto last = start;
  const double cpu = CpuSeconds();
  absl::Status status;
  if (verb == "receive") status = ReceiveAll(link, count, &last);
  if (verb == "send") status = SendAll(link, count);
  if (verb == "idle") {
    absl::SleepFor(absl::Seconds(count));  // doing nothing for that long is what is measured
    status = link.status();
  }
  (*report)["seconds"] = SecondsSince(start);
  // Of a receiver: how long nothing had come when it ended.
  if (verb == "receive") (*report)["quiet_seconds"] = SecondsSince(last);
  (*report)["cpu_seconds"] = CpuSeconds() - cpu;
  (*report)["retransmits"] = link.stats().retransmits;
  (*report)["transport"] = link.transport();
  return status;
}

// One link, of whose end nothing may be left while its fabric is.
absl::Status OneLink(const std::string& verb, const std::string& transport,
                     const std::string& address, uint64_t count, nlohmann::json* report) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Fabric> fabric, MakeFabricNamed(transport));
  (*report)["before"] = Held();
  absl::Status status;
  {
    const auto start = Clock::now();
    const absl::StatusOr<std::unique_ptr<Link>> link = Open(verb, *fabric, address);
    (*report)["open_seconds"] = SecondsSince(start);
    status = link.ok() ? Stream(verb, **link, count, report) : link.status();
  }
  // librdmacm opens a device for itself when it is first asked for a route, and keeps it: two
  // descriptors that are no link's.
  const size_t kept = transport == "tcp" ? 0 : 2;
  AwaitFds((*report)["before"]["fds"].get<size_t>() + kept, absl::Seconds(5));
  (*report)["after"] = Held();
  (*report)["kept_fds"] = kept;
  return status;
}

// What many links in turn leave behind: after the first quarter of them, while the middle one is
// up, and after the last, while the fabric still is.
class Turns {
 public:
  Turns(uint64_t links, nlohmann::json* report) : links_(links), report_(*report) {}
  void Before(uint64_t i) {
    if (i == links_ / 4) Tell("before");
  }
  void Linked(uint64_t i) {
    if (i == links_ / 2) Tell("linked");
  }
  void After() {
    // Threads of a listener let go of their last sockets a moment later.
    if (report_.contains("before")) {
      AwaitFds(report_["before"]["fds"].get<size_t>(), absl::Seconds(5));
    }
    Tell("after");
  }

 private:
  void Tell(const char* when) {
    report_[when] = {
        {"fds", OpenFds()}, {"resident_kb", ResidentBytes() / 1024}, {"queue_pairs", QueuePairs()}};
  }

  const uint64_t links_;
  nlohmann::json& report_;
};

absl::Status Accept(const std::string& transport, const std::string& address, uint64_t links,
                    nlohmann::json* report) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Fabric> fabric, MakeFabricNamed(transport));
  ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener,
                   fabric->Listen(address, Options("receiver")));
  std::printf("listening\n");
  std::fflush(stdout);
  Turns turns(links, report);
  for (uint64_t i = 0; i < links; ++i) {
    turns.Before(i);
    ASSIGN_OR_RETURN(const std::unique_ptr<Link> link,
                     listener->Accept(Deadline::After(kPatience)));
    turns.Linked(i);
    Clock::time_point last;
    RETURN_IF_ERROR(ReceiveAll(*link, 1, &last));
  }
  turns.After();
  return absl::OkStatus();
}

absl::Status Reconnect(const std::string& transport, const std::string& address, uint64_t links,
                       nlohmann::json* report) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Fabric> fabric, MakeFabricNamed(transport));
  Turns turns(links, report);
  for (uint64_t i = 0; i < links; ++i) {
    turns.Before(i);
    ASSIGN_OR_RETURN(const std::unique_ptr<Link> link, fabric->Connect(address, Options("sender")));
    turns.Linked(i);
    RETURN_IF_ERROR(SendAll(*link, 1));
  }
  turns.After();
  return absl::OkStatus();
}

int Run(const std::string& verb, const std::string& transport, const std::string& address,
        uint64_t count) {
  nlohmann::json report;
  absl::Status status;
  if (verb == "accept") {
    status = Accept(transport, address, count, &report);
  } else if (verb == "reconnect") {
    status = Reconnect(transport, address, count, &report);
  } else {
    status = OneLink(verb, transport, address, count, &report);
  }
  report["code"] = absl::StatusCodeToString(status.code());
  report["message"] = Text(status);
  std::printf("%s\n", report.dump().c_str());
  return status.ok() ? 0 : 3;
}

}  // namespace
}  // namespace tributary::transport

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "serve" && argc == 3) {
    const absl::Status status = tributary::transport::ServeRemoteFabrics(argv[2]);
    std::fprintf(stderr, "%s\n", tributary::Text(status).c_str());
    return 1;
  }
  const std::set<std::string> verbs = {"receive", "send", "idle", "accept", "reconnect"};
  uint64_t count = 0;
  if (!verbs.contains(verb) || argc != 5 || !absl::SimpleAtoi(argv[4], &count)) {
    std::fprintf(stderr,
                 "usage: rdma_vm_peer serve ADDRESS | receive|send|idle|accept|reconnect TRANSPORT "
                 "ADDRESS COUNT\n");
    return 2;
  }
  return tributary::transport::Run(verb, argv[2], argv[3], count);
}
