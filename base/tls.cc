// PEM texts read and judged by OpenSSL, which gRPC brings.
#include "base/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/internal/openssl.h"
#include "base/status.h"

namespace tributary {
namespace {

constexpr char kMake[] = "docs/operations.md, \"TLS\", has the lines that make one";

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

// A passphrase is asked of nobody: a program that waits at a terminal for one would only hang.
int NoPassphrase(char*, int, int, void*) { return 0; }

// Why a text has nothing of the kind `wanted` in it.
absl::Status NoPem(const std::string& pem, const std::string& wanted, const char* label) {
  if (pem.empty()) return Wrong(absl::StrCat("is empty, and so no ", wanted, ": ", kMake));
  std::string mend = kMake;
  if (pem[0] == '\x30') {  // an ASN.1 sequence: how DER begins
    mend = absl::StrCat("this looks like DER, which `openssl ", wanted == "key" ? "pkey" : "x509",
                        " -inform der -in OLD -out NEW` turns into it");
  } else if (absl::StrContains(pem, absl::StrCat("BEGIN ", label, "-----"))) {
    return Wrong(absl::StrCat("is a damaged ", wanted, ": copy or make it anew"));
  } else if (absl::StrContains(pem, "BEGIN CERTIFICATE REQUEST")) {
    mend = "this is a request for one, which a CA has yet to sign";
  } else if (absl::StrContains(pem, "PRIVATE KEY-----") && wanted != "key") {
    mend = "this one has a private key in it: name the certificate";
  } else if (absl::StrContains(pem, "BEGIN CERTIFICATE-----") && wanted == "key") {
    mend = "this one has a certificate in it: name its key";
  }
  return Wrong(absl::StrCat("is no ", wanted, ": a PEM file has a line -----BEGIN ", label,
                            "-----; ", mend));
}

std::string TimeText(const ASN1_TIME* time) {
  const BioPtr out(BIO_new(BIO_s_mem()));
  if (out == nullptr || ASN1_TIME_print(out.get(), time) != 1) return "?";
  char* text = nullptr;
  const long length = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(length));
}

bool Expired(const X509* certificate) {
  return X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0;
}

absl::Status CheckPurpose(X509* certificate, TlsSide side) {
  const bool server = side == TlsSide::kServer;
  const int purpose = server ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
  if (X509_check_purpose(certificate, purpose, /*ca=*/0) == 1) return absl::OkStatus();
  return Wrong(absl::StrCat("is not for TLS ", server ? "servers" : "clients",
                            ", by its key usage: make one with extendedKeyUsage = ",
                            server ? "serverAuth" : "clientAuth"));
}

}  // namespace

std::string TakeSslError() {
  const unsigned long code = ERR_peek_last_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

std::vector<X509Ptr> ReadCertificates(const std::string& pem) {
  std::vector<X509Ptr> out;
  const BioPtr in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (in != nullptr) {
    X509Ptr next(PEM_read_bio_X509(in.get(), nullptr, &NoPassphrase, nullptr));
    if (next == nullptr) break;
    out.push_back(std::move(next));
  }
  ERR_clear_error();
  return out;
}

KeyPtr ReadKey(const std::string& pem) {
  const BioPtr in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  KeyPtr key(in == nullptr ? nullptr
                           : PEM_read_bio_PrivateKey(in.get(), nullptr, &NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

absl::Status CheckCa(const std::string& pem) {
  const std::vector<X509Ptr> certificates = ReadCertificates(pem);
  if (certificates.empty()) return NoPem(pem, "certificate", "CERTIFICATE");
  const bool all_expired =
      std::all_of(certificates.begin(), certificates.end(),
                  [](const X509Ptr& certificate) { return Expired(certificate.get()); });
  if (!all_expired) return absl::OkStatus();
  return Wrong(absl::StrCat("has expired, on ",
                            TimeText(X509_get0_notAfter(certificates.front().get())),
                            ": make a new CA, and have it sign the others' certificates"));
}

absl::Status CheckCertificate(const std::string& pem, TlsSide side) {
  const std::vector<X509Ptr> certificates = ReadCertificates(pem);
  if (certificates.empty()) return NoPem(pem, "certificate", "CERTIFICATE");
  X509* const own = certificates.front().get();
  if (Expired(own)) {
    return Wrong(absl::StrCat("has expired, on ", TimeText(X509_get0_notAfter(own)),
                              ": have a new one signed"));
  }
  RETURN_IF_ERROR(CheckPurpose(own, side));
  // What OpenSSL's level of security leaves out, such as keys that are too short.
  const SslContextPtr context(SSL_CTX_new(TLS_method()));
  ERR_clear_error();
  if (context != nullptr && SSL_CTX_use_certificate(context.get(), own) == 1)
    return absl::OkStatus();
  return Wrong(absl::StrCat("is refused by OpenSSL (", TakeSslError(), "): ", kMake));
}

absl::Status CheckKey(const std::string& pem) {
  if (ReadKey(pem) != nullptr) return absl::OkStatus();
  if (absl::StrContains(pem, "ENCRYPTED")) {
    return Wrong(
        "has a passphrase, which nobody can be asked for: take it off with `openssl pkey -in OLD "
        "-out NEW`, and let only this program's user read the file");
  }
  return NoPem(pem, "key", "PRIVATE KEY");
}

absl::Status CheckPair(const std::string& cert_pem, const std::string& key_pem) {
  const std::vector<X509Ptr> certificates = ReadCertificates(cert_pem);
  const KeyPtr key = ReadKey(key_pem);
  if (certificates.empty() || key == nullptr) return absl::OkStatus();
  const bool match = X509_check_private_key(certificates.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (match) return absl::OkStatus();
  return Wrong(
      "is not the key of the certificate: give the two that belong together; where the file of "
      "the certificate has its chain too, its own must stand first");
}

absl::Status CheckTls(const TlsClientOptions& options) {
  const auto named = [](const absl::Status& status, const char* name) {
    return status.ok() ? status : Wrong(absl::StrCat("TLS: the ", name, " ", status.message()));
  };
  RETURN_IF_ERROR(named(CheckCa(options.ca_pem), "ca"));
  if (options.cert_pem.empty() != options.key_pem.empty())
    return Wrong("TLS: a client's own certificate needs its key, and the key its certificate");
  if (options.cert_pem.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(named(CheckCertificate(options.cert_pem, TlsSide::kClient), "cert"));
  RETURN_IF_ERROR(named(CheckKey(options.key_pem), "key"));
  return named(CheckPair(options.cert_pem, options.key_pem), "key");
}

}  // namespace tributary
