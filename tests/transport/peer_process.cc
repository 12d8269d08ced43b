// A peer as a process of its own: connects to ADDRESS and sends chunks for ever, or none at all.
// usage: transport_peer tcp|shm ADDRESS HEARTBEAT_MS sends|idle
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/transport/harness.h"
#include "transport/shm.h"
#include "transport/tcp.h"

int main(int argc, char** argv) {
  using namespace tributary::transport;
  if (argc != 5) return 2;
  auto fabric = std::strcmp(argv[1], "shm") == 0 ? MakeShmFabric() : MakeTcpFabric();
  LinkOptions options = SmallOptions("peer process");
  options.heartbeat = absl::Milliseconds(std::atoi(argv[3]));
  auto link = fabric->Connect(argv[2], options);
  if (!link.ok()) {
    std::fprintf(stderr, "%s\n", std::string(link.status().message()).c_str());
    return 1;
  }
  if (std::strcmp(argv[4], "idle") == 0) {
    // Until the link ends: nobody sends to it.
    return (*link)->Receive(tributary::Deadline::Infinite()).ok() ? 1 : 0;
  }
  for (uint64_t i = 0;; ++i) {
    auto chunk = (*link)->Borrow(tributary::Deadline::Infinite());
    if (!chunk.ok()) return 0;  // the test is over
    std::memset(chunk->data(), static_cast<int>(i & 0xff), chunk->capacity());
    chunk->set_size(chunk->capacity());
    chunk->tag().index = i;
    if (!(*link)->Send(std::move(*chunk)).ok()) return 0;
  }
}
