// Links over TCP: what every machine can do.
//
// A link is one control socket and LinkOptions::lanes data sockets, all to the same listening port.
// Addresses are "host:port" or "[v6]:port"; port 0 listens on any free one. The bytes on the wire,
// the threads and the states are described in transport/README.md.
#pragma once

#include <memory>

#include "transport/link.h"

namespace tributary::transport {

// Stateless: its listeners and links live on without it. Thread-safe.
std::unique_ptr<Fabric> MakeTcpFabric();

}  // namespace tributary::transport
