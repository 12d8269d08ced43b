// Certificates and keys: what is wrong with them is said before they are used.
#include "base/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/status.h"
#include "base/tls_probe.h"
#include "tests/base/certificates.h"

namespace tributary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Wrong(const absl::Status& status) {
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return Text(status);
}

TEST(TlsTest, GoodOnesHaveNothingWrong) {
  const TestCa ca;
  const TestCertificate both = ca.Issue("node");
  EXPECT_EQ(Wrong(CheckCa(ca.pem())), "");
  EXPECT_EQ(Wrong(CheckCertificate(both.cert_pem, TlsSide::kServer)), "");
  EXPECT_EQ(Wrong(CheckCertificate(both.cert_pem + ca.pem(), TlsSide::kClient)), "");
  EXPECT_EQ(Wrong(CheckKey(both.key_pem)), "");
  EXPECT_EQ(Wrong(CheckPair(both.cert_pem + ca.pem(), both.key_pem)), "");
  EXPECT_EQ(
      Wrong(CheckTls({.ca_pem = ca.pem(), .cert_pem = both.cert_pem, .key_pem = both.key_pem})),
      "");
}

TEST(TlsTest, WhatIsNoCertificateIsToldByWhatItIs) {
  const TestCa ca;
  const TestCertificate node = ca.Issue("node");
  const std::string request = "-----BEGIN CERTIFICATE REQUEST-----\nMIH\n";
  std::string damaged = node.cert_pem;
  damaged.replace(damaged.size() / 2, 8, "????????");
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"", "is empty"},
      {"hello", "is no certificate: a PEM file has a line"},
      {node.key_pem, "has a private key in it"},
      {request, "a request for one, which a CA has yet to sign"},
      {TestCa::Der(node), "openssl x509 -inform der"},
      {damaged, "is a damaged certificate"}};
  for (const auto& [pem, says] : rows) {
    EXPECT_THAT(Wrong(CheckCertificate(pem, TlsSide::kServer)), HasSubstr(says));
    EXPECT_THAT(Wrong(CheckCa(pem)), HasSubstr(says));
  }
}

TEST(TlsTest, KeysMustBeKeysThatCanBeReadAlone) {
  const TestCa ca;
  const TestCertificate node = ca.Issue("node");
  EXPECT_THAT(Wrong(CheckKey("hello")), HasSubstr("is no key: a PEM file has a line"));
  EXPECT_THAT(Wrong(CheckKey(node.cert_pem)), HasSubstr("has a certificate in it: name its key"));
  EXPECT_THAT(Wrong(CheckKey(TestCa::Encrypted(node))),
              AllOf(HasSubstr("has a passphrase"), HasSubstr("openssl pkey -in OLD -out NEW")));
}

TEST(TlsTest, AKeyOfAnotherCertificateIsRefused) {
  const TestCa ca;
  const TestCertificate node = ca.Issue("node"), other = ca.Issue("other");
  EXPECT_THAT(Wrong(CheckPair(node.cert_pem, other.key_pem)),
              HasSubstr("is not the key of the certificate"));
  // The chain before one's own.
  EXPECT_THAT(Wrong(CheckPair(ca.pem() + node.cert_pem, node.key_pem)),
              HasSubstr("its own must stand first"));
}

TEST(TlsTest, CertificatesThatNobodyWouldTakeAreRefused) {
  const TestCa ca;
  EXPECT_THAT(Wrong(CheckCertificate(ca.Issue("old", {.seconds = -60}).cert_pem, TlsSide::kServer)),
              AllOf(HasSubstr("has expired, on "), HasSubstr("have a new one signed")));
  EXPECT_THAT(Wrong(CheckCa(TestCa("old CA", -60).pem())), HasSubstr("has expired, on "));
  // Of several CAs some may have.
  EXPECT_EQ(Wrong(CheckCa(TestCa("old CA", -60).pem() + ca.pem())), "");
  EXPECT_THAT(
      Wrong(CheckCertificate(ca.Issue("c", {.usage = "clientAuth"}).cert_pem, TlsSide::kServer)),
      AllOf(HasSubstr("is not for TLS servers"), HasSubstr("serverAuth")));
  EXPECT_THAT(
      Wrong(CheckCertificate(ca.Issue("s", {.usage = "serverAuth"}).cert_pem, TlsSide::kClient)),
      AllOf(HasSubstr("is not for TLS clients"), HasSubstr("clientAuth")));
  EXPECT_THAT(
      Wrong(CheckCertificate(ca.Issue("weak", {.weak_key = true}).cert_pem, TlsSide::kServer)),
      HasSubstr("is refused by OpenSSL (ee key too small)"));
}

TEST(TlsTest, AClientsOptionsAreCheckedTogether) {
  const TestCa ca;
  const TestCertificate own = ca.Issue("c"), other = ca.Issue("o");
  EXPECT_THAT(Wrong(CheckTls({})), HasSubstr("TLS: the ca is empty"));
  EXPECT_THAT(Wrong(CheckTls({.ca_pem = ca.pem(), .cert_pem = own.cert_pem})),
              HasSubstr("needs its key"));
  EXPECT_THAT(
      Wrong(CheckTls({.ca_pem = ca.pem(), .cert_pem = own.cert_pem, .key_pem = other.key_pem})),
      HasSubstr("TLS: the key is not the key of the certificate"));
}

TEST(TlsProbeTest, WhereNobodyAnswersNothingIsExplained) {
  EXPECT_EQ(ExplainTls("127.0.0.1:1", nullptr, absl::Seconds(1)), "");
  EXPECT_EQ(ExplainTls("nonsense", nullptr, absl::Seconds(1)), "");
}

TEST(TlsSuspicionTest, AsksAfterSignsOfItAndNotAllTheTime) {
  TlsSuspicion suspicion;
  const auto at = [](int seconds) { return absl::Seconds(1000 + seconds); };
  EXPECT_FALSE(suspicion.Raised("a:1", "Connection refused", at(0)));
  EXPECT_TRUE(suspicion.Raised("a:1", "Ssl handshake failed", at(0)));
  EXPECT_FALSE(suspicion.Raised("a:1", "Ssl handshake failed", at(29)));
  EXPECT_TRUE(suspicion.Raised("b:1", "Socket closed", at(29)));
  EXPECT_TRUE(suspicion.Raised("a:1", "Ssl handshake failed", at(30)));
  suspicion.Dispel("a:1");
  EXPECT_TRUE(suspicion.Raised("a:1", "Ssl handshake failed", at(31)));
}

}  // namespace
}  // namespace tributary
