// Private to base/: OpenSSL's objects as C++ owns them, and PEM texts turned into them.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

namespace tributary {

template <auto release>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    release(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freed<&BIO_free_all>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freed<&EVP_PKEY_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, Freed<&SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, Freed<&SSL_free>>;
using X509Ptr = std::unique_ptr<X509, Freed<&X509_free>>;

// All that a text has; empty where it has none.
std::vector<X509Ptr> ReadCertificates(const std::string& pem);
// Null where there is none, or none without a passphrase.
KeyPtr ReadKey(const std::string& pem);

// Why the last call of OpenSSL in this thread failed; forgets it.
std::string TakeSslError();

}  // namespace tributary
