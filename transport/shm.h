// Links through shared memory, between processes of one machine: no copy, no system call while both
// sides are busy.
//
// A listener is an abstract Unix socket: an address is "@name", and "@" alone listens under a
// random name. Each link has one memfd with the slots of both directions, made by the acceptor,
// handed over through the socket, sealed against resizing and with all its space reserved, so that
// no access can end in SIGBUS. Neither has a name in a file system: nothing is left when either
// side is killed. Both sides must run as the same user, on one machine, in one network namespace
// (abstract names belong to it). LinkOptions::lanes means nothing here. Layout and rules:
// transport/README.md.
#pragma once

#include <memory>

#include "transport/link.h"

namespace tributary::transport {

// Stateless: its listeners and links live on without it. Thread-safe.
std::unique_ptr<Fabric> MakeShmFabric();

}  // namespace tributary::transport
