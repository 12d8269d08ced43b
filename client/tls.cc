// gRPC's credentials from PEM texts.
#include "client/tls.h"

#include <utility>

#include "base/status.h"
#include "grpcpp/security/credentials.h"

namespace tributary::client {

TlsSettings::TlsSettings(TlsClientOptions options)
    : options_(std::move(options)),
      credentials_(grpc::SslCredentials({.pem_root_certs = options_.ca_pem,
                                         .pem_private_key = options_.key_pem,
                                         .pem_cert_chain = options_.cert_pem})) {}

absl::StatusOr<std::shared_ptr<const TlsSettings>> TlsSettings::Create(TlsClientOptions options) {
  RETURN_IF_ERROR(CheckTls(options));
  return std::shared_ptr<const TlsSettings>(new TlsSettings(std::move(options)));
}

}  // namespace tributary::client
