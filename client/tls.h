// TLS towards aggregators: made once, given to all clients of a process.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/tls.h"

namespace grpc {
class ChannelCredentials;
}

namespace tributary::client {

// Immutable. Clients that share a connection (ClientOptions::own_connection false) do so only where
// they share this too.
class TlsSettings {
 public:
  // PEM texts, as files hold them (base/tls.h says which). INVALID_ARGUMENT with the mend where one
  // is no certificate or key, has expired, is not for clients, or does not fit the other.
  static absl::StatusOr<std::shared_ptr<const TlsSettings>> Create(TlsClientOptions options);

  const TlsClientOptions& options() const { return options_; }
  const std::shared_ptr<grpc::ChannelCredentials>& credentials() const { return credentials_; }

 private:
  explicit TlsSettings(TlsClientOptions options);

  const TlsClientOptions options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

}  // namespace tributary::client
