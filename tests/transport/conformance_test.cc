// What every fabric promises, run against each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/transport/harness.h"
#include "transport/link.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

struct Pair {
  std::unique_ptr<Link> server;
  std::unique_ptr<Link> client;
};

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { harness_ = MakeHarness(GetParam()); }

  Pair Make(LinkOptions server = SmallOptions("server"),
            LinkOptions client = SmallOptions("client")) {
    auto listener = harness_->server().Listen(harness_->listen_address(), server);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return Make(**listener, client);
  }
  Pair Make(Listener& listener, const LinkOptions& options) {
    Pair pair;
    auto connected = harness_->client().Connect(listener.address(), options);
    EXPECT_TRUE(connected.ok()) << connected.status();
    auto accepted = listener.Accept(Soon());
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    pair.server = std::move(accepted).value();
    pair.client = std::move(connected).value();
    return pair;
  }
  Deadline Soon() const { return harness_->In(absl::Seconds(30)); }
  Deadline Shortly() const { return harness_->In(absl::Milliseconds(50)); }

  std::unique_ptr<Harness> harness_;
};

// Byte j of chunk i: a pattern that shows a chunk out of place and a byte out of place.
uint8_t Pattern(uint64_t i, size_t j) { return static_cast<uint8_t>(i * 131 + j * 7 + (j >> 8)); }

absl::Status SendPattern(Link& link, uint64_t i, size_t bytes, Deadline deadline) {
  auto chunk = link.Borrow(deadline);
  if (!chunk.ok()) return chunk.status();
  for (size_t j = 0; j < bytes; ++j) chunk->data()[j] = Pattern(i, j);
  chunk->set_size(bytes);
  chunk->tag() = {.stream = 7, .index = i, .a = ~i, .b = i << 32};
  return link.Send(std::move(*chunk));
}

// True where the chunk is number i, of this size, with the pattern and the tag of SendPattern.
bool IsPattern(const Chunk& chunk, uint64_t i, size_t bytes) {
  if (chunk.size() != bytes) return false;
  const ChunkTag& tag = chunk.tag();
  if (tag.stream != 7 || tag.index != i || tag.a != ~i || tag.b != i << 32) return false;
  for (size_t j = 0; j < bytes; ++j) {
    if (chunk.data()[j] != Pattern(i, j)) return false;
  }
  return true;
}

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

TEST_P(Conformance, ChunksArriveInOrderAndWholeAtEverySize) {
  Pair pair = Make();
  const size_t full = pair.client->chunk_bytes();
  // Around the MTU of Ethernet, and those of RoCE (1024, 4096) with and without a chunk's 64 bytes
  // of header.
  const std::vector<size_t> sizes = {0,    1,    959,  960,  961,  1023, 1024, 1025,     1499, 1500,
                                     1501, 4031, 4032, 4033, 4095, 4096, 4097, full - 1, full};
  const uint64_t rounds = 3;
  auto sender = harness_->Spawn([&] {
    for (uint64_t i = 0; i < rounds * sizes.size(); ++i) {
      ASSERT_EQ(SendPattern(*pair.client, i, sizes[i % sizes.size()], Soon()), absl::OkStatus());
    }
    // A chunk counts as sent when the backend has let go of it, which Close waits for.
    ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
  });
  for (uint64_t i = 0; i < rounds * sizes.size(); ++i) {
    auto chunk = pair.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, i, sizes[i % sizes.size()])) << "chunk " << i;
  }
  sender->Join();
  // A chunk is counted once its write has returned, which may be after the peer has it: Close waits
  // for that.
  ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
  EXPECT_EQ(pair.client->stats().chunks_sent, rounds * sizes.size());
  EXPECT_EQ(pair.server->stats().chunks_received, rounds * sizes.size());
  const uint64_t bytes = rounds * std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  EXPECT_EQ(pair.client->stats().bytes_sent, bytes);
  EXPECT_EQ(pair.server->stats().bytes_received, bytes);
}

TEST_P(Conformance, ManyChunksBothWaysAtOnce) {
  Pair pair = Make();
  constexpr uint64_t kChunks = 500;
  const auto size = [](uint64_t i) { return static_cast<size_t>((i * 977) % 5000); };
  std::vector<std::unique_ptr<TestThread>> threads;
  for (Link* link : {pair.server.get(), pair.client.get()}) {
    threads.push_back(harness_->Spawn([&, link] {
      for (uint64_t i = 0; i < kChunks; ++i) {
        ASSERT_EQ(SendPattern(*link, i, size(i), Soon()), absl::OkStatus());
      }
    }));
    threads.push_back(harness_->Spawn([&, link] {
      for (uint64_t i = 0; i < kChunks; ++i) {
        auto chunk = link->Receive(Soon());
        ASSERT_TRUE(chunk.ok()) << chunk.status();
        ASSERT_TRUE(IsPattern(*chunk, i, size(i))) << "chunk " << i;
      }
    }));
  }
  for (auto& thread : threads) thread->Join();
}

TEST_P(Conformance, StalledReceiverHoldsItsSenderBackAndNobodyElse) {
  const LinkOptions options = SmallOptions("server");
  auto listener = harness_->server().Listen(harness_->listen_address(), options);
  ASSERT_TRUE(listener.ok()) << listener.status();
  Pair stalled = Make(**listener, SmallOptions("stalled"));
  Pair lively = Make(**listener, SmallOptions("lively"));
  // As many chunks as slots go out; then the sender is told whose credit is missing.
  for (uint64_t i = 0; i < options.slots; ++i) {
    ASSERT_EQ(SendPattern(*stalled.client, i, 1000, Soon()), absl::OkStatus());
  }
  const absl::Status held = SendPattern(*stalled.client, options.slots, 1000, Shortly());
  EXPECT_EQ(held.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(held.message()), HasSubstr("peer \"server\""));
  EXPECT_THAT(std::string(held.message()), HasSubstr("granted no credit"));
  EXPECT_TRUE(stalled.client->status().ok());
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(SendPattern(*lively.client, i, 1000, Soon()), absl::OkStatus());
    auto chunk = lively.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, i, 1000));
  }
  // Received and held is no credit; dropped is.
  std::vector<Chunk> held_chunks;
  for (uint64_t i = 0; i < options.slots; ++i) {
    auto chunk = stalled.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    held_chunks.push_back(std::move(*chunk));
  }
  EXPECT_EQ(SendPattern(*stalled.client, options.slots, 1000, Shortly()).code(),
            absl::StatusCode::kDeadlineExceeded);
  held_chunks.clear();
  EXPECT_EQ(SendPattern(*stalled.client, options.slots, 1000, Soon()), absl::OkStatus());
  auto chunk = stalled.server->Receive(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_TRUE(IsPattern(*chunk, options.slots, 1000));
}

TEST_P(Conformance, BorrowedAndDroppedChunkCostsNoCredit) {
  Pair pair = Make();
  for (int i = 0; i < 100; ++i) {
    auto chunk = pair.client->Borrow(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
  }
  EXPECT_EQ(SendPattern(*pair.client, 0, 10, Soon()), absl::OkStatus());
  auto chunk = pair.server->Receive(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_TRUE(IsPattern(*chunk, 0, 10));
}

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

TEST_P(Conformance, ReceiveSaysDeadlineExceededAndGoesOn) {
  Pair pair = Make();
  const absl::Status status = pair.server->Receive(Shortly()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"client\""));
  EXPECT_EQ(pair.server->Receive(Deadline::Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(SendPattern(*pair.client, 0, 10, Deadline::Infinite()), absl::OkStatus());
  auto chunk = pair.server->Receive(Deadline::Infinite());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_TRUE(IsPattern(*chunk, 0, 10));
}

TEST_P(Conformance, CallerWhoOnlyAsksWhatIsThereIsServed) {
  Pair pair = Make();
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_EQ(SendPattern(*pair.client, i, 20, Soon()), absl::OkStatus());
    const Deadline limit = Soon();
    absl::StatusOr<Chunk> chunk = pair.server->Receive(Deadline::Now());
    while (absl::IsDeadlineExceeded(chunk.status()) &&
           harness_->In(absl::ZeroDuration()).at() < limit.at()) {
      // Lets time pass, which a simulated one does only in waits: on the side where nothing comes.
      EXPECT_FALSE(pair.client->Receive(harness_->In(absl::Milliseconds(1))).ok());
      chunk = pair.server->Receive(Deadline::Now());
    }
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, i, 20));
  }
}

// Small chunks may be moved by callers, large ones by threads: the order holds across the change.
TEST_P(Conformance, SmallAndLargeChunksInTurnKeepTheirOrder) {
  LinkOptions options = SmallOptions("x");
  options.chunk_bytes = 200'000;
  Pair pair = Make(options, options);
  const auto size = [](uint64_t i) { return i % 7 < 4 ? size_t{40} : size_t{150'000} + i; };
  constexpr uint64_t kChunks = 200;
  auto sender = harness_->Spawn([&] {
    for (uint64_t i = 0; i < kChunks; ++i) {
      ASSERT_EQ(SendPattern(*pair.client, i, size(i), Soon()), absl::OkStatus());
    }
    ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
  });
  for (uint64_t i = 0; i < kChunks; ++i) {
    auto chunk = pair.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    ASSERT_TRUE(IsPattern(*chunk, i, size(i))) << "chunk " << i;
  }
  EXPECT_EQ(pair.server->Receive(Soon()).status().code(), absl::StatusCode::kOutOfRange);
  sender->Join();
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

TEST_P(Conformance, SeveralReceiversGetEachChunkOnce) {
  Pair pair = Make();
  constexpr uint64_t kChunks = 300;
  std::vector<std::atomic<int>> seen(kChunks);
  std::vector<std::unique_ptr<TestThread>> threads;
  for (int t = 0; t < 3; ++t) {
    threads.push_back(harness_->Spawn([&] {
      while (true) {
        auto chunk = pair.server->Receive(Soon());
        if (!chunk.ok()) {
          EXPECT_EQ(chunk.status().code(), absl::StatusCode::kOutOfRange) << chunk.status();
          return;
        }
        ++seen[chunk->tag().index];
      }
    }));
  }
  for (uint64_t i = 0; i < kChunks; ++i) {
    ASSERT_EQ(SendPattern(*pair.client, i, i % 5 * 1000, Soon()), absl::OkStatus());
  }
  ASSERT_EQ(pair.client->Close(Soon()), absl::OkStatus());
  for (auto& thread : threads) thread->Join();
  for (uint64_t i = 0; i < kChunks; ++i) EXPECT_EQ(seen[i], 1) << "chunk " << i;
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

TEST_P(Conformance, OnlyItsOwnBorrowedChunksAreSent) {
  Pair one = Make();
  Pair two = Make();
  auto foreign = one.client->Borrow(Soon());
  ASSERT_TRUE(foreign.ok());
  EXPECT_EQ(two.client->Send(std::move(*foreign)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(one.client->Send(Chunk()).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(SendPattern(*one.client, 0, 10, Soon()), absl::OkStatus());
  auto received = one.server->Receive(Soon());
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(one.server->Send(std::move(*received)).code(), absl::StatusCode::kInvalidArgument);
  auto too_long = one.client->Borrow(Soon());
  ASSERT_TRUE(too_long.ok());
  too_long->set_size(too_long->capacity() + 1);
  EXPECT_EQ(one.client->Send(std::move(*too_long)).code(), absl::StatusCode::kInvalidArgument);
  // None of this cost a slot, a credit, or the link.
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(SendPattern(*one.client, i, 10, Soon()), absl::OkStatus());
    auto chunk = one.server->Receive(Soon());
    ASSERT_TRUE(chunk.ok());
    EXPECT_TRUE(IsPattern(*chunk, i, 10));
  }
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

TEST_P(Conformance, LinksOutliveTheirListenerAndFollowOneAnother) {
  for (int round = 0; round < 20; ++round) {
    Pair pair = Make();
    ASSERT_EQ(SendPattern(*pair.server, 1, 10, Soon()), absl::OkStatus());
    auto chunk = pair.client->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_TRUE(IsPattern(*chunk, 1, 10));
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Conformance, ::testing::ValuesIn(FabricsUnderTest()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
