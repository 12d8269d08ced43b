// What each injected fault does, over TCP and over the simulated network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/transport/account.h"
#include "tests/transport/harness.h"
#include "transport/faults.h"
#include "transport/sim.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

class Faulty : public ::testing::TestWithParam<std::string> {
 protected:
  // A link whose connecting end has the faults.
  void Make(const Faults& faults) {
    const bool tcp = GetParam() == "tcp";
    auto plain = tcp ? MakeTcpFabric() : MakeSimFabric(network_, network_.AddNode());
    auto faulty = MakeFaultyFabric(
        tcp ? MakeTcpFabric() : MakeSimFabric(network_, network_.AddNode()), faults);
    auto listener = plain->Listen(tcp ? "127.0.0.1:0" : "", SmallOptions("server"));
    ASSERT_TRUE(listener.ok()) << listener.status();
    auto client = faulty->Connect((*listener)->address(), SmallOptions("client"));
    ASSERT_TRUE(client.ok()) << client.status();
    auto server = (*listener)->Accept(Soon());
    ASSERT_TRUE(server.ok()) << server.status();
    client_ = std::move(*client);
    server_ = std::move(*server);
  }
  absl::Status SendOne(uint64_t index, size_t bytes, Deadline deadline) {
    auto chunk = client_->Borrow(deadline);
    if (!chunk.ok()) return chunk.status();
    std::fill_n(chunk->data(), bytes, static_cast<uint8_t>(index));
    chunk->set_size(bytes);
    chunk->tag().index = index;
    return client_->Send(std::move(*chunk));
  }

  SimNetwork network_;  // nobody registers: real deadlines
  std::unique_ptr<Link> server_;
  std::unique_ptr<Link> client_;
};

TEST_P(Faulty, CorruptChunkIsDataLossAndNeverHandedOut) {
  Faults faults;
  faults.corrupt_chunk = 2;
  faults.corrupt_byte = 999;
  Make(faults);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(SendOne(i, 1000, Soon()), absl::OkStatus());
  uint64_t good = 0;
  absl::Status status;
  while (status.ok()) {
    auto chunk = server_->Receive(Soon());
    status = chunk.status();
    if (!chunk.ok()) break;
    EXPECT_EQ(chunk->tag().index, good++);
    EXPECT_EQ(chunk->data()[999], chunk->tag().index);
  }
  EXPECT_LE(good, 2u);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"client\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 2"));
  // The sender is told why.
  const absl::Status told = client_->Receive(Soon()).status();
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("arrived damaged"));
}

TEST_P(Faulty, StallAfterNHoldsTheSenderUntilItsDeadlineOrCancel) {
  Faults faults;
  faults.stall_after = 2;
  Make(faults);
  EXPECT_EQ(SendOne(0, 10, Soon()), absl::OkStatus());
  EXPECT_EQ(SendOne(1, 10, Soon()), absl::OkStatus());
  EXPECT_EQ(SendOne(2, 10, Deadline::After(absl::Milliseconds(30))).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(server_->Receive(Soon()).ok());
  EXPECT_TRUE(server_->Receive(Soon()).ok());
  absl::Status status;
  std::thread waiter([&] { status = SendOne(2, 10, Deadline::Infinite()); });
  client_->Cancel("enough");
  waiter.join();
  EXPECT_EQ(status, absl::CancelledError("enough"));
}

TEST_P(Faulty, StalledSenderIsWokenByItsPeersEndToo) {
  Faults faults;
  faults.stall_after = 0;
  Make(faults);
  server_.reset();
  EXPECT_EQ(SendOne(0, 10, Deadline::Infinite()).code(), absl::StatusCode::kUnavailable);
}

TEST_P(Faulty, CutAfterNEndsTheLinkOnBothSides) {
  Faults faults;
  faults.cut_after = 2;
  Make(faults);
  EXPECT_EQ(SendOne(0, 10, Soon()), absl::OkStatus());
  EXPECT_EQ(SendOne(1, 10, Soon()), absl::OkStatus());
  EXPECT_EQ(SendOne(2, 10, Soon()).code(), absl::StatusCode::kCancelled);
  absl::Status status;
  uint64_t got = 0;
  while (status.ok()) {
    status = server_->Receive(Soon()).status();
    if (status.ok()) ++got;
  }
  EXPECT_LE(got, 2u);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cut after 2 chunks"));
}

TEST_P(Faulty, DelayAndThrottleTakeAtLeastTheirTime) {
  Faults faults;
  faults.delay = absl::Milliseconds(5);
  Make(faults);
  auto start = Deadline::Clock::now();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(SendOne(i, 10, Soon()), absl::OkStatus());
  EXPECT_GE(Deadline::Clock::now() - start, std::chrono::milliseconds(20));
  faults.delay = absl::ZeroDuration();
  faults.bytes_per_s = 1e6;
  Make(faults);
  start = Deadline::Clock::now();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(SendOne(i, 10'000, Soon()), absl::OkStatus());
  EXPECT_GE(Deadline::Clock::now() - start,
            std::chrono::milliseconds(30));  // the last one's time is for the next to wait
  EXPECT_EQ(SendOne(4, 10, Deadline::After(absl::Milliseconds(1))).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(Faulty, NobodySpinsThroughADelay) {
  Faults faults;
  faults.delay = absl::Milliseconds(50);
  Make(faults);
  const double cpu = CpuSeconds();
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(SendOne(i, 1000, Soon()), absl::OkStatus());
    ASSERT_TRUE(server_->Receive(Soon()).ok());
  }
  EXPECT_LT(CpuSeconds() - cpu, 0.3) << "both sides, over a second";
}

TEST_P(Faulty, RecorderSeesEveryChunkInOrder) {
  std::mutex mutex;
  std::vector<ChunkRecord> records;
  Faults faults;
  faults.record = [&](const ChunkRecord& record) {
    std::lock_guard lock(mutex);
    records.push_back(record);
  };
  Make(faults);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(SendOne(i, 100 + i, Soon()), absl::OkStatus());
  auto chunk = server_->Borrow(Soon());
  ASSERT_TRUE(chunk.ok());
  chunk->set_size(7);
  ASSERT_TRUE(server_->Send(std::move(*chunk)).ok());
  ASSERT_TRUE(client_->Receive(Soon()).ok());
  std::lock_guard lock(mutex);
  ASSERT_EQ(records.size(), 4u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(records[i].sent);
    EXPECT_EQ(records[i].sequence, i);
    EXPECT_EQ(records[i].bytes, 100 + i);
    EXPECT_EQ(records[i].tag.index, i);
  }
  EXPECT_FALSE(records[3].sent);
  EXPECT_EQ(records[3].bytes, 7u);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Faulty, ::testing::Values("tcp", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
