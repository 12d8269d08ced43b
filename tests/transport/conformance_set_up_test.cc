// What every fabric promises of how links are made: hellos, listeners, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/transport/conformance_fixture.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

TEST_P(Conformance, HelloTellsNameBytesAndTransport) {
  LinkOptions server = SmallOptions("root");
  server.hello = std::string("down\0\xff", 6);
  LinkOptions client = SmallOptions("rack 3");
  client.hello = std::string(64 * 1024, 'u');
  Pair pair = Make(server, client);
  EXPECT_EQ(pair.server->peer(), "rack 3");
  EXPECT_EQ(pair.server->hello(), client.hello);
  EXPECT_EQ(pair.client->peer(), "root");
  EXPECT_EQ(pair.client->hello(), server.hello);
  EXPECT_EQ(pair.client->transport(), harness_->transport());
  EXPECT_EQ(pair.client->chunk_bytes(), client.chunk_bytes);
  EXPECT_TRUE(pair.client->status().ok());
}

TEST_P(Conformance, ConnectToNobodyFailsAndSaysWhere) {
  LinkOptions options = SmallOptions("client");
  options.connect_timeout = absl::Seconds(2);
  auto link = harness_->client().Connect(harness_->nobody(), options);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnavailable) << link.status();
  EXPECT_THAT(std::string(link.status().message()), HasSubstr(harness_->nobody()));
}

TEST_P(Conformance, AcceptHasADeadlineAndCanBeCancelled) {
  auto listener = harness_->server().Listen(harness_->listen_address(), SmallOptions("server"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->Accept(Shortly()).status().code(), absl::StatusCode::kDeadlineExceeded);
  absl::Status status;
  auto waiter = harness_->Spawn([&] { status = (*listener)->Accept(Soon()).status(); });
  (*listener)->Cancel();
  waiter->Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*listener)->Accept(Soon()).status().code(), absl::StatusCode::kCancelled);
}

TEST_P(Conformance, SlotsOfDifferentSizeAreRefusedWithBothSizes) {
  auto listener = harness_->server().Listen(harness_->listen_address(), SmallOptions("server"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  LinkOptions other = SmallOptions("client");
  other.chunk_bytes = 1000;
  auto link = harness_->client().Connect((*listener)->address(), other);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition) << link.status();
  EXPECT_THAT(std::string(link.status().message()), HasSubstr("1000"));
  EXPECT_THAT(std::string(link.status().message()), HasSubstr("65536"));
  EXPECT_GE((*listener)->refused(), 1u);  // auto asks on each of its transports
}

TEST_P(Conformance, OptionsOutOfRangeAreRefusedByName) {
  LinkOptions bad = SmallOptions("x");
  bad.slots = 0;
  EXPECT_THAT(
      std::string(harness_->server().Listen(harness_->listen_address(), bad).status().message()),
      HasSubstr("slots is 0"));
  bad = SmallOptions("x");
  bad.hello = std::string(64 * 1024 + 1, 'x');
  const absl::Status status = harness_->client().Connect(harness_->nobody(), bad).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("65537"));
}

TEST_P(Conformance, LinksOutliveTheirListenerAndFollowOneAnother) {
  for (int round = 0; round < 20; ++round) {
    Pair pair = Make();
    ASSERT_EQ(SendPattern(*pair.server, 1, 10, Soon()), absl::OkStatus());
    auto chunk = pair.client->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, 1, 10));
  }
}

// Of all of the suite, whichever file a test is in.
INSTANTIATE_TEST_SUITE_P(Fabrics, Conformance, ::testing::ValuesIn(FabricsUnderTest()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
