// What every fabric promises of chunks on their way: whole, in order, and no more than there is
// credit for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/transport/account.h"
#include "tests/transport/conformance_fixture.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

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

// However much its sender has to say.
TEST_P(Conformance, StalledReceiverBoundsTheMemoryOfItsSender) {
  const LinkOptions options = SmallOptions("server");
  Pair pair = Make(options);
  constexpr uint64_t kWanted = 4096;  // 256 MiB
  const size_t before = OwnedBytes();
  uint64_t sent = 0;
  absl::Status held;
  while (sent < kWanted && held.ok()) {
    const Deadline limit = sent < options.slots ? Soon() : Shortly();
    held = SendPattern(*pair.client, sent, options.chunk_bytes, limit);
    if (held.ok()) ++sent;
  }
  EXPECT_EQ(held.code(), absl::StatusCode::kDeadlineExceeded) << held;
  EXPECT_EQ(sent, options.slots);
  // The slots of both sides are half a MiB each; huge pages may round each kind up to 2.
  constexpr size_t kBound = size_t{16} << 20;
  if (kMemoryCounts) {
    EXPECT_LE(OwnedBytes(), before + kBound);
  }
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

}  // namespace
}  // namespace tributary::transport
