// The SDK over TLS: what works, and what the client is told where it cannot.
#include "grpcpp/security/server_credentials.h"
#include "tests/base/certificates.h"
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SdkTlsTest : public SdkTest {
 protected:
  // A server's: `client_ca` given, clients have to show a certificate of its.
  static std::shared_ptr<grpc::ServerCredentials> Server(const TestCertificate& own,
                                                         const TestCa* client_ca = nullptr) {
    grpc::SslServerCredentialsOptions options(
        client_ca == nullptr ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                             : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    if (client_ca != nullptr) options.pem_root_certs = client_ca->pem();
    options.pem_key_cert_pairs.push_back({own.key_pem, own.cert_pem});
    return grpc::SslServerCredentials(options);
  }
  static std::shared_ptr<const TlsSettings> Settings(TlsClientOptions options) {
    auto settings = TlsSettings::Create(std::move(options));
    EXPECT_TRUE(settings.ok()) << settings.status();
    return settings.ok() ? *settings : nullptr;
  }
  std::unique_ptr<FakeAggregator> Aggregator(std::shared_ptr<grpc::ServerCredentials> credentials) {
    return std::make_unique<FakeAggregator>(
        0, [this](FakeAggregator& server) { Serve(server); }, std::move(credentials));
  }
  // Takes part at `server`, with `tls`, until one update is in.
  void ExpectOneUpdate(FakeAggregator& server, ClientOptions options) {
    server.SetOpenTask(Task(1));
    RunningClient client = StartClient(options);
    ASSERT_TRUE(server.WaitForUploads(1));
    EXPECT_EQ(server.uploads()[0].segments, Expected(Task(1)));
  }
  ClientOptions With(std::vector<std::string> endpoints, TlsClientOptions tls) const {
    ClientOptions options = Options(std::move(endpoints));
    options.tls = Settings(std::move(tls));
    return options;
  }

  const TestCa ca_, other_ca_{"another CA"};
  const TestCertificate node_ = ca_.Issue("node");
  const TestCertificate client_ = ca_.Issue("client", {.alt_names = "", .usage = "clientAuth"});
};

TEST_F(SdkTlsTest, AnUpdateIsInOverTls) {
  const auto server = Aggregator(Server(node_));
  ExpectOneUpdate(*server, With({server->endpoint()}, {.ca_pem = ca_.pem()}));
  EXPECT_THAT(trainer_.notices(), IsEmpty());
}

TEST_F(SdkTlsTest, AnUpdateIsInOverMutualTls) {
  const auto server = Aggregator(Server(node_, &ca_));
  ExpectOneUpdate(*server, With({server->endpoint()}, {.ca_pem = ca_.pem(),
                                                       .cert_pem = client_.cert_pem,
                                                       .key_pem = client_.key_pem}));
  EXPECT_THAT(trainer_.notices(), IsEmpty());
}

TEST_F(SdkTlsTest, TheNameInTheCertificateMayBeGiven) {
  const auto server = Aggregator(Server(ca_.Issue("node", {.alt_names = "DNS:rack-0.internal"})));
  ExpectOneUpdate(
      *server, With({server->endpoint()}, {.ca_pem = ca_.pem(), .server_name = "rack-0.internal"}));
}

TEST_F(SdkTlsTest, ManyClientsShareOneConnection) {
  constexpr int kClients = 10;
  const auto server = Aggregator(Server(node_));
  server->SetOpenTask(Task(1));
  const auto tls = Settings({.ca_pem = ca_.pem()});
  std::vector<std::unique_ptr<RecordingTrainer>> trainers;  // outlive the clients
  std::vector<std::unique_ptr<RunningClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    ClientOptions options = Options({server->endpoint()});
    options.id = "c" + std::to_string(i);
    options.own_connection = false;
    options.tls = tls;
    trainers.push_back(std::make_unique<RecordingTrainer>());
    auto client = Client::Create(options, trainers.back().get());
    ASSERT_TRUE(client.ok());
    clients.push_back(std::make_unique<RunningClient>(*std::move(client)));
  }
  ASSERT_TRUE(server->WaitForUploads(kClients));
  EXPECT_EQ(server->peers().size(), 1u);
}

// Each with an endpoint that it cannot use and one that it can: it is told why, and goes on.
TEST_F(SdkTlsTest, WhatStandsBetweenIsToldAndTheNextEndpointIsTaken) {
  const TlsClientOptions trusting{.ca_pem = ca_.pem()};
  const TestCertificate stranger = other_ca_.Issue("stranger", {.usage = "clientAuth"});
  const TlsClientOptions strange{
      .ca_pem = ca_.pem(), .cert_pem = stranger.cert_pem, .key_pem = stranger.key_pem};
  struct Row {
    std::shared_ptr<grpc::ServerCredentials> unusable;
    TlsClientOptions tls;
    std::string says;
  };
  const Row rows[] = {
      {nullptr, trusting, "it does not speak TLS, and this side does: give its config [tls] cert"},
      {Server(other_ca_.Issue("node")), trusting,
       "(CN = node, signed by CN = another CA) does not convince"},
      {Server(ca_.Issue("node", {.alt_names = "DNS:rack-0.internal,IP:10.0.0.7"})), trusting,
       "is for DNS:rack-0.internal, IP Address:10.0.0.7, not for \"127.0.0.1\""},
      {Server(ca_.Issue("node", {.seconds = -60})), trusting, "has expired"},
      {Server(node_, &ca_), trusting, "wants to see a certificate, and this side has none"},
      {Server(node_, &ca_), strange, "does not take the certificate that this side shows"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says);
    const auto bad = Aggregator(row.unusable), good = Aggregator(Server(node_));
    RecordingTrainer trainer;
    auto client = Client::Create(With({bad->endpoint(), good->endpoint()}, row.tls), &trainer);
    ASSERT_TRUE(client.ok()) << client.status();
    good->SetOpenTask(Task(1));
    RunningClient running(*std::move(client));
    ASSERT_TRUE(good->WaitForUploads(1));
    ASSERT_EQ(trainer.notices().size(), 1u);
    EXPECT_THAT(trainer.notices()[0], HasSubstr("aggregator " + bad->endpoint() + ": "));
    EXPECT_THAT(trainer.notices()[0], HasSubstr(row.says));
    EXPECT_TRUE(bad->joins().empty());
  }
}

TEST_F(SdkTlsTest, AClientWithoutIsToldThatTheAggregatorWantsIt) {
  const auto bad = Aggregator(Server(node_));
  server_.SetOpenTask(Task(1));
  RunningClient client = StartClient(Options({bad->endpoint(), server_.endpoint()}));
  ASSERT_TRUE(server_.WaitForUploads(1));
  ASSERT_EQ(trainer_.notices().size(), 1u);
  EXPECT_THAT(trainer_.notices()[0],
              HasSubstr("it speaks TLS, and this side does not: give this side's [tls] the CA"));
}

TEST(TlsSettingsTest, AreCheckedBeforeAnyClientIsMade) {
  EXPECT_THAT(std::string(TlsSettings::Create({}).status().message()),
              HasSubstr("TLS: the ca is empty"));
}

}  // namespace
}  // namespace tributary::client::testing
