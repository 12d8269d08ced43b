// What TLS has to do with a connection that failed. gRPC says only that a handshake did: this looks
// for itself.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "base/tls.h"

namespace tributary {

// Connects to `endpoint` ("host:port") as a client with these options would, null for one without
// TLS, and returns what stands between the two and how it is mended; "" where TLS does not, or
// nobody answers. Blocks, for `limit` a step at most; sends nothing beyond a handshake.
std::string ExplainTls(const std::string& endpoint, const TlsClientOptions* options,
                       absl::Duration limit);

// When it is worth asking: after errors such as TLS makes, and each endpoint once in half a minute.
// Not thread-safe.
class TlsSuspicion {
 public:
  // Whether to ask now, at a failure with this message.
  bool Raised(const std::string& endpoint, const std::string& message, absl::Duration monotonic);
  // A session came up there: the next failure is a new matter.
  void Dispel(const std::string& endpoint) { asked_.erase(endpoint); }

 private:
  std::map<std::string, absl::Duration> asked_;  // when
};

}  // namespace tributary
