// Certificates for tests, made in memory as they are needed: no key lies in the tree.
#pragma once

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

namespace tributary {

struct TestCertificate {
  std::string cert_pem;
  std::string key_pem;
};

// What a certificate is to be, beside its name.
struct TestCertificateSpec {
  std::string alt_names = "DNS:localhost,IP:127.0.0.1";  // "": none
  std::string usage = "serverAuth,clientAuth";
  int seconds = 3600;     // from now; below 0: it has expired
  bool weak_key = false;  // shorter than OpenSSL allows
};

class TestCa {
 public:
  explicit TestCa(const std::string& name = "test CA", int seconds = 3600)
      : key_(NewKey(false)), certificate_(X509_new(), &X509_free) {
    Fill(certificate_.get(), name, key_.get(), seconds);
    Extend(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    Sign(certificate_.get());
  }

  std::string pem() const { return Pem(certificate_.get()); }
  TestCertificate Issue(const std::string& name, const TestCertificateSpec& spec = {}) const {
    const Key key = NewKey(spec.weak_key);
    const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), &X509_free);
    Fill(made.get(), name, key.get(), spec.seconds);
    if (!spec.alt_names.empty()) Extend(made.get(), NID_subject_alt_name, spec.alt_names);
    Extend(made.get(), NID_ext_key_usage, spec.usage);
    Sign(made.get());
    return {.cert_pem = Pem(made.get()), .key_pem = Pem(key.get(), "")};
  }
  // The key of `certificate`, with a passphrase.
  static std::string Encrypted(const TestCertificate& certificate) {
    const std::unique_ptr<BIO, decltype(&BIO_free_all)> in(
        BIO_new_mem_buf(certificate.key_pem.data(), static_cast<int>(certificate.key_pem.size())),
        &BIO_free_all);
    const Key key(PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
    return Pem(key.get(), "secret");
  }
  static std::string Der(const TestCertificate& certificate) {
    const std::unique_ptr<BIO, decltype(&BIO_free_all)> in(
        BIO_new_mem_buf(certificate.cert_pem.data(), static_cast<int>(certificate.cert_pem.size())),
        &BIO_free_all);
    const std::unique_ptr<X509, decltype(&X509_free)> read(
        PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), &X509_free);
    return Written([&](BIO* out) { return i2d_X509_bio(out, read.get()); });
  }

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

  static void Must(bool ok) {
    if (!ok) std::abort();
  }
  static Key NewKey(bool weak) {
    return Key(weak ? EVP_RSA_gen(512) : EVP_EC_gen("P-256"), &EVP_PKEY_free);
  }
  void Fill(X509* made, const std::string& name, EVP_PKEY* key, int seconds) const {
    static int serial = 0;
    Must(X509_set_version(made, X509_VERSION_3) == 1);
    Must(ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial) == 1);
    X509_gmtime_adj(X509_getm_notBefore(made), -7200);
    X509_gmtime_adj(X509_getm_notAfter(made), seconds);
    Must(X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                    0) == 1);
    Must(X509_set_issuer_name(made, X509_get_subject_name(certificate_.get())) == 1);
    Must(X509_set_pubkey(made, key) == 1);
  }
  static void Extend(X509* made, int nid, const std::string& value) {
    const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
        X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()), &X509_EXTENSION_free);
    Must(extension != nullptr && X509_add_ext(made, extension.get(), -1) == 1);
  }
  void Sign(X509* made) const { Must(X509_sign(made, key_.get(), EVP_sha256()) > 0); }

  static std::string Written(const std::function<int(BIO*)>& write) {
    const std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), &BIO_free_all);
    Must(write(out.get()) == 1);
    char* text = nullptr;
    const long length = BIO_get_mem_data(out.get(), &text);
    return std::string(text, static_cast<size_t>(length));
  }
  static std::string Pem(X509* certificate) {
    return Written([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
  }
  static std::string Pem(EVP_PKEY* key, const std::string& passphrase) {
    return Written([&](BIO* out) {
      return PEM_write_bio_PrivateKey(
          out, key, passphrase.empty() ? nullptr : EVP_aes_128_cbc(), nullptr, 0, nullptr,
          passphrase.empty() ? nullptr : const_cast<char*>(passphrase.c_str()));
    });
  }

  Key key_;
  std::unique_ptr<X509, decltype(&X509_free)> certificate_;
};

}  // namespace tributary
