// Sets up the verbs half of a link over its control socket: endpoints, connection, probe.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "transport/internal/acceptor.h"
#include "transport/roce/node.h"
#include "transport/roce/wire.h"

namespace tributary::transport::roce {

struct ReadyWire {
  ReadyWire() = default;
  ReadyWire(ReadyWire&&) = default;
  ReadyWire& operator=(ReadyWire&&) = delete;
  ~ReadyWire() {
    for (const ibv_wc& completion : early) wire->Account(completion);  // no link came of it
  }

  std::unique_ptr<Wire> wire;
  // What came behind the peer's probes while ours were still under way: chunks, perhaps. Whoever
  // takes the wire takes these too, and accounts for them.
  std::vector<ibv_wc> early;
};

// The same on both sides; blocks until `deadline` at most, or until the control socket is shut
// down. A failure here is told to the peer in words.
absl::StatusOr<ReadyWire> SetUpWire(const RocePart& part, const internal::ReadySockets& sockets,
                                    const LinkOptions& options, const Deadline& deadline);

}  // namespace tributary::transport::roce
