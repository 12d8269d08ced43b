// A handshake by hand, whose every step can be looked at.
#include "base/tls_probe.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/internal/openssl.h"
#include "base/toml_checks.h"

namespace tributary {
namespace {

constexpr absl::Duration kAskAgain = absl::Seconds(30);

// The first byte of what a peer sends that speaks TLS: of a handshake, or of an alert.
constexpr unsigned char kHandshakeRecord = 0x16;
constexpr unsigned char kAlertRecord = 0x15;

class Socket {
 public:
  // Not connected where nobody answers within `limit`.
  Socket(const std::string& host, int port, absl::Duration limit)
      : until_(RealClock().Monotonic() + limit) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
    for (const addrinfo* at = found; at != nullptr && fd_ < 0; at = at->ai_next) {
      fd_ = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
      const timeval patience = absl::ToTimeval(limit);
      // connect() keeps to the sending one.
      setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
      setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      if (fd_ >= 0 && connect(fd_, at->ai_addr, at->ai_addrlen) != 0) Close();
    }
    freeaddrinfo(found);
  }
  ~Socket() { Close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool Send(const char* bytes, size_t size) const {
    while (size > 0) {
      const ssize_t sent = send(fd_, bytes, size, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }
  struct Received {
    std::string bytes;       // empty at the end of the connection, or
    bool timed_out = false;  // of patience
  };
  // However many pieces it comes in, all of it within the limit.
  Received Receive() const {
    std::array<char, 16384> buffer;
    const absl::Duration left = until_ - RealClock().Monotonic();
    if (left < absl::Milliseconds(1)) return {.bytes = "", .timed_out = true};
    const timeval patience = absl::ToTimeval(left);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
    if (got > 0) return {.bytes = std::string(buffer.data(), static_cast<size_t>(got))};
    return {.bytes = "", .timed_out = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)};
  }

 private:
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  const absl::Duration until_;
  int fd_ = -1;
};

std::string NameText(const X509_NAME* name) {
  const BioPtr out(BIO_new(BIO_s_mem()));
  if (out == nullptr || X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_ONELINE) < 0) return "?";
  char* text = nullptr;
  const long length = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(length));
}

// "DNS:a.example, IP Address:10.0.0.7"
std::string NamesOf(const X509* certificate) {
  const int at = X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1);
  X509_EXTENSION* const names = at < 0 ? nullptr : X509_get_ext(certificate, at);
  const BioPtr out(BIO_new(BIO_s_mem()));
  if (names == nullptr || out == nullptr || X509V3_EXT_print(out.get(), names, 0, 0) != 1)
    return "no name (it has no subjectAltName)";
  char* text = nullptr;
  const long length = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(length));
}

bool Bears(X509* certificate, const std::string& name) {
  return X509_check_host(certificate, name.data(), name.size(), 0, nullptr) == 1 ||
         X509_check_ip_asc(certificate, name.c_str(), 0) == 1;
}

// One handshake, from the ClientHello to the first bytes under TLS.
class Handshake {
 public:
  Handshake(const Socket* socket, const TlsClientOptions* options, const std::string& name)
      : socket_(socket), context_(SSL_CTX_new(TLS_client_method())) {
    // Whom the certificate convinces is looked at afterwards, by name of the error.
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
    SSL_CTX_set_cert_cb(context_.get(), &Handshake::CertificateWanted, this);
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2, sizeof(kHttp2));
    if (options != nullptr) Show(*options);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_tlsext_host_name(ssl_.get(), name.c_str());
    from_peer_ = BIO_new(BIO_s_mem());
    to_peer_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(from_peer_, -1);  // more may come
    SSL_set_bio(ssl_.get(), from_peer_, to_peer_);
  }

  // Whether it came to its end.
  bool Shake() {
    return Go([this] { return SSL_connect(ssl_.get()); });
  }
  // Whether anything came after it: who is not content with a client's certificate ends here.
  bool Hear() {
    char byte = 0;
    return Go([&] { return SSL_read(ssl_.get(), &byte, 1); });
  }

  bool answered() const { return answered_; }
  bool speaks_tls() const { return speaks_tls_; }
  // It was the peer that ended it, having asked for a certificate.
  bool certificate_refused() const { return certificate_wanted_ && !timed_out_; }
  SSL* ssl() const { return ssl_.get(); }

 private:
  static int CertificateWanted(SSL*, void* self) {
    static_cast<Handshake*>(self)->certificate_wanted_ = true;
    return 1;
  }

  void Show(const TlsClientOptions& options) {
    X509_STORE* const store = SSL_CTX_get_cert_store(context_.get());
    X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);  // as gRPC does
    for (const X509Ptr& ca : ReadCertificates(options.ca_pem)) X509_STORE_add_cert(store, ca.get());
    const std::vector<X509Ptr> own = ReadCertificates(options.cert_pem);
    const KeyPtr key = ReadKey(options.key_pem);
    if (own.empty() || key == nullptr) return;
    SSL_CTX_use_certificate(context_.get(), own.front().get());
    SSL_CTX_use_PrivateKey(context_.get(), key.get());
    for (size_t i = 1; i < own.size(); ++i) SSL_CTX_add1_chain_cert(context_.get(), own[i].get());
  }

  // Takes `step` until it is done, moving bytes between OpenSSL and the socket.
  template <typename Step>
  bool Go(const Step& step) {
    while (true) {
      ERR_clear_error();
      const int done = step();
      const int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), done);
      char* bytes = nullptr;
      const long size = BIO_get_mem_data(to_peer_, &bytes);
      if (size > 0 && !socket_->Send(bytes, static_cast<size_t>(size))) return false;
      (void)BIO_reset(to_peer_);
      if (done == 1) return true;
      if (error != SSL_ERROR_WANT_READ) return false;
      const auto [got, timed_out] = socket_->Receive();
      timed_out_ = timed_out;
      if (got.empty()) return false;
      if (!std::exchange(answered_, true)) {
        const auto first = static_cast<unsigned char>(got[0]);
        speaks_tls_ = first == kHandshakeRecord || first == kAlertRecord;
      }
      BIO_write(from_peer_, got.data(), static_cast<int>(got.size()));
    }
  }

  const Socket* const socket_;
  const SslContextPtr context_;
  SslPtr ssl_;
  BIO* from_peer_ = nullptr;  // both are ssl_'s
  BIO* to_peer_ = nullptr;
  bool answered_ = false;
  bool speaks_tls_ = false;
  bool certificate_wanted_ = false;
  bool timed_out_ = false;
};

// What is wrong with the server's certificate; "" where nothing is.
std::string JudgeServer(const Handshake& handshake, const std::string& name) {
  const X509Ptr certificate(SSL_get1_peer_certificate(handshake.ssl()));
  if (certificate == nullptr) return "";
  const long verdict = SSL_get_verify_result(handshake.ssl());
  if (verdict == X509_V_ERR_CERT_HAS_EXPIRED) {
    return "its certificate, or that of its CA, has expired: it needs a new one, and a restart";
  }
  if (verdict != X509_V_OK) {
    return absl::StrCat("its certificate (", NameText(X509_get_subject_name(certificate.get())),
                        ", signed by ", NameText(X509_get_issuer_name(certificate.get())),
                        ") does not convince: ", X509_verify_cert_error_string(verdict),
                        "; name the CA that signed it in this side's [tls]");
  }
  if (Bears(certificate.get(), name)) return "";
  return absl::StrCat(
      "its certificate is for ", NamesOf(certificate.get()), ", not for ", Quoted(name),
      ": connect to it by a name that it bears, say which in this "
      "side's [tls] (server_name, parent_server_name), or have it made for this one");
}

std::string Judge(Handshake& handshake, const TlsClientOptions* options, const std::string& name) {
  const bool shaken = handshake.Shake();
  if (!handshake.answered()) return "";
  if (options == nullptr) {
    return handshake.speaks_tls()
               ? "it speaks TLS, and this side does not: give this side's [tls] the CA that signed "
                 "its certificate (ca; a rack's parent_ca)"
               : "";
  }
  if (!handshake.speaks_tls()) {
    return "it does not speak TLS, and this side does: give its config [tls] cert and key, or take "
           "this side's (ca; a rack's parent_ca) away";
  }
  if (shaken) {
    if (std::string wrong = JudgeServer(handshake, name); !wrong.empty()) return wrong;
    if (handshake.Hear()) return "";
  }
  if (!handshake.certificate_refused()) return "";
  return options->cert_pem.empty()
             ? "it wants to see a certificate, and this side has none: give [tls] cert and key"
             : "it does not take the certificate that this side shows ([tls] cert): have that "
               "signed by a CA of its [tls] client_ca, for clients (extendedKeyUsage clientAuth)";
}

// Without the brackets of an IPv6 address.
std::string Bare(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

std::string ExplainTls(const std::string& endpoint, const TlsClientOptions* options,
                       absl::Duration limit) {
  const auto address = ParseHostPort(endpoint);
  if (!address.has_value()) return "";
  const std::string host = Bare(address->host);
  const Socket socket(host, address->port, limit);
  if (!socket.connected()) return "";
  const std::string name =
      options == nullptr || options->server_name.empty() ? host : options->server_name;
  Handshake handshake(&socket, options, name);
  std::string why = Judge(handshake, options, name);
  ERR_clear_error();
  return why;
}

bool TlsSuspicion::Raised(const std::string& endpoint, const std::string& message,
                          absl::Duration monotonic) {
  // What connections end with that came up as TCP and were then no use.
  static constexpr const char* kSigns[] = {"handshake", "Socket closed", "reset by peer",
                                           "SETTINGS",  "http1.x",       "Peer name",
                                           "peer name", "Broken pipe",   "Endpoint read failed"};
  const bool sign = std::any_of(std::begin(kSigns), std::end(kSigns),
                                [&](const char* text) { return absl::StrContains(message, text); });
  if (!sign) return false;
  const auto [asked, first] = asked_.try_emplace(endpoint, monotonic);
  if (!first && monotonic - asked->second < kAskAgain) return false;
  asked->second = monotonic;
  return true;
}

}  // namespace tributary
