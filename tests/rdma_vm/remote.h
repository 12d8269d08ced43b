// A fabric on another machine, called by a few words over TCP: so that the conformance suite, which
// holds both ends of a link, has them on two hosts.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "transport/link.h"

namespace tributary::transport {

// Listeners and accepted links are objects in the process that serves at `server`; what they say
// and carry is copied. It cannot connect. The server must outlive it.
std::unique_ptr<Fabric> MakeRemoteFabric(const std::string& server, const std::string& transport);

// Serves such fabrics at `address` ("10.7.0.2:9001") for ever.
absl::Status ServeRemoteFabrics(const std::string& address);

// "tcp", "roce" (with an arena that fits an emulated host), or "roce-finite", whose retries
// soft-RoCE does not take for "for ever".
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabricNamed(const std::string& transport);

}  // namespace tributary::transport
