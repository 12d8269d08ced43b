// Certificates and keys for TLS, as PEM texts, and what is wrong with them, said before they are
// used.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tributary {

// What is needed towards a server that speaks TLS.
struct TlsClientOptions {
  std::string ca_pem = {};    // whose signature makes a server's certificate count; required
  std::string cert_pem = {};  // shown to a server that asks for one (mutual TLS), with
  std::string key_pem = {};   // its key: both, or neither
  // The name that the server's certificate must bear; "": the host of the endpoint.
  std::string server_name = {};
};

// Which side a certificate is for.
enum class TlsSide { kServer, kClient };

// Each is INVALID_ARGUMENT with what is wrong and the mend, worded to follow the name of what was
// read.

// One certificate or more.
absl::Status CheckCa(const std::string& pem);
// A certificate (and perhaps the chain up to its CA) that OpenSSL takes, for this side, and that
// has not expired.
absl::Status CheckCertificate(const std::string& pem, TlsSide side);
// A private key without a passphrase.
absl::Status CheckKey(const std::string& pem);
// The key is that of the first certificate. OK where one of them does not read: that is said
// elsewhere.
absl::Status CheckPair(const std::string& cert_pem, const std::string& key_pem);

// All of the above.
absl::Status CheckTls(const TlsClientOptions& options);

}  // namespace tributary
