// What every fabric promises of a link's end: closed, cancelled or destroyed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/transport/conformance_fixture.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

TEST_P(Conformance, CloseDeliversAllThatWasSentThenEndOfStream) {
  Pair pair = Make();
  constexpr uint64_t kChunks = 20;
  auto sender = harness_->Spawn([&] {
    for (uint64_t i = 0; i < kChunks; ++i) {
      ASSERT_EQ(SendPattern(*pair.client, i, 3000, Soon()), absl::OkStatus());
    }
    ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
    EXPECT_EQ(pair.client->Borrow(Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
    pair.client.reset();  // and its end takes nothing back
  });
  for (uint64_t i = 0; i < kChunks; ++i) {
    auto chunk = pair.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << i << ": " << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, i, 3000));
  }
  EXPECT_EQ(pair.server->Receive(Soon()).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(pair.server->Receive(Soon()).status().code(), absl::StatusCode::kOutOfRange);
  sender->Join();
  EXPECT_EQ(pair.server->Close(Soon()), absl::OkStatus());  // it had nothing to send
}

TEST_P(Conformance, OtherDirectionGoesOnAfterClose) {
  Pair pair = Make();
  ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
  EXPECT_EQ(pair.server->Receive(Soon()).status().code(), absl::StatusCode::kOutOfRange);
  auto sender = harness_->Spawn([&] {
    for (uint64_t i = 0; i < 30; ++i) {
      ASSERT_EQ(SendPattern(*pair.server, i, 100, Soon()), absl::OkStatus());
    }
    EXPECT_EQ(pair.server->Close(Soon()), absl::OkStatus());
  });
  for (uint64_t i = 0; i < 30; ++i) {
    auto chunk = pair.client->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, i, 100));
  }
  EXPECT_EQ(pair.client->Receive(Soon()).status().code(), absl::StatusCode::kOutOfRange);
  sender->Join();
  EXPECT_TRUE(pair.client->status().ok());
  EXPECT_TRUE(pair.server->status().ok());
}

TEST_P(Conformance, CloseDoesNotWaitForTheOtherSideToReceive) {
  Pair pair = Make();
  // Back and forth first: whatever a transport does for quick answers is then under way.
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(SendPattern(*pair.client, i, 10, Soon()), absl::OkStatus());
    ASSERT_TRUE(pair.server->Receive(Soon()).ok());
  }
  for (uint64_t i = 10; i < 13; ++i) {
    ASSERT_EQ(SendPattern(*pair.client, i, 10, Soon()), absl::OkStatus());
  }
  ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
  pair.client.reset();
  for (uint64_t i = 10; i < 13; ++i) {
    auto chunk = pair.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, i, 10));
  }
}

TEST_P(Conformance, CancelWakesWaitersOnBothSidesWithItsReason) {
  Pair pair = Make();
  const uint32_t slots = SmallOptions("").slots;
  for (uint64_t i = 0; i < slots; ++i) {
    ASSERT_EQ(SendPattern(*pair.client, i, 10, Soon()), absl::OkStatus());
  }
  absl::Status here_receive, here_borrow, there;
  auto a = harness_->Spawn([&] { here_receive = pair.client->Receive(Soon()).status(); });
  auto b = harness_->Spawn([&] { here_borrow = pair.client->Borrow(Soon()).status(); });
  auto c = harness_->Spawn([&] {
    std::vector<Chunk> keep;  // gives no credit back, so that Borrow over there stays waiting
    for (uint64_t i = 0; i < slots; ++i) {
      auto chunk = pair.server->Receive(Soon());
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      keep.push_back(std::move(*chunk));
    }
    there = pair.server->Receive(Soon()).status();
  });
  // Waits, in the fabric's own time, until everybody is likely to wait; whoever comes later is told
  // too.
  EXPECT_EQ(pair.client->Receive(Shortly()).status().code(), absl::StatusCode::kDeadlineExceeded);
  pair.client->Cancel("the operator said so");
  for (auto* thread : {a.get(), b.get(), c.get()}) thread->Join();
  EXPECT_EQ(here_receive, absl::CancelledError("the operator said so"));
  EXPECT_EQ(here_borrow, absl::CancelledError("the operator said so"));
  EXPECT_EQ(there.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(there.message()), HasSubstr("peer \"client\""));
  EXPECT_THAT(std::string(there.message()), HasSubstr("the operator said so"));
  // Sticky: the first error is what all later calls say.
  pair.client->Cancel("another reason");
  EXPECT_EQ(pair.client->status(), absl::CancelledError("the operator said so"));
  EXPECT_EQ(pair.client->Close(Soon()), absl::CancelledError("the operator said so"));
  EXPECT_EQ(pair.server->Borrow(Soon()).status(), there);
}

TEST_P(Conformance, CancelInFullFlightEndsItsLinkOnBothSidesAndNoOther) {
  auto listener = harness_->server().Listen(harness_->listen_address(), SmallOptions("server"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  Pair lively = Make(**listener, SmallOptions("lively"));
  for (const bool by_sender : {true, false}) {
    Pair pair = Make(**listener, SmallOptions("client"));
    Link& canceller = by_sender ? *pair.client : *pair.server;
    absl::Status sent, received;
    auto sender = harness_->Spawn([&] {
      for (uint64_t i = 0; sent.ok(); ++i) sent = SendPattern(*pair.client, i, 40'000, Soon());
    });
    // Once it flows, from a third thread, while one sends and another receives.
    std::atomic<uint64_t> whole = 0;
    auto receiver = harness_->Spawn([&] {
      while (true) {
        auto chunk = pair.server->Receive(Soon());
        received = chunk.status();
        if (!chunk.ok()) return;
        ASSERT_TRUE(IsPattern(*chunk, whole, 40'000)) << "chunk " << whole;
        ++whole;
      }
    });
    const Deadline limit = Soon();
    while (whole < 20 && harness_->In(absl::ZeroDuration()).at() < limit.at()) {
      EXPECT_FALSE(pair.client->Receive(harness_->In(absl::Milliseconds(1))).ok());
    }
    canceller.Cancel("enough");
    sender->Join();
    receiver->Join();
    const absl::Status& here = by_sender ? sent : received;
    const absl::Status& there = by_sender ? received : sent;
    EXPECT_EQ(here, absl::CancelledError("enough"));
    EXPECT_EQ(there.code(), absl::StatusCode::kUnavailable) << there;
    EXPECT_THAT(std::string(there.message()), HasSubstr("enough"));
    EXPECT_GE(whole, 20u);
  }
  ASSERT_EQ(SendPattern(*lively.client, 0, 1000, Soon()), absl::OkStatus());
  auto chunk = lively.server->Receive(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_TRUE(IsPattern(*chunk, 0, 1000));
}

TEST_P(Conformance, DestroyedLinkIsNoticedByItsPeer) {
  Pair pair = Make();
  pair.client.reset();
  const absl::Status status = pair.server->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"client\""));
}

TEST_P(Conformance, ChunkMayOutliveItsLink) {
  Pair pair = Make();
  ASSERT_EQ(SendPattern(*pair.client, 3, 5000, Soon()), absl::OkStatus());
  auto received = pair.server->Receive(Soon());
  ASSERT_TRUE(received.ok()) << received.status();
  auto borrowed = pair.client->Borrow(Soon());
  ASSERT_TRUE(borrowed.ok()) << borrowed.status();
  pair.server.reset();
  pair.client.reset();
  EXPECT_TRUE(IsPattern(*received, 3, 5000));
  std::memset(borrowed->data(), 1, borrowed->capacity());
}

}  // namespace
}  // namespace tributary::transport
