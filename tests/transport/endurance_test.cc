// What holds in the long run. The fast run does a short form; TRIBUTARY_FULL is the whole.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "tests/transport/account.h"
#include "tests/transport/harness.h"
#include "transport/link.h"

#ifdef __SANITIZE_ADDRESS__
// Freed memory that the sanitizer holds back (256 MB of it) counts as resident: less of it, so that
// what is lost can be seen.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=1"; }
// And of each thread that ever was it keeps some 200 B; two ends of a link have up to eight.
constexpr size_t kKeptForALink = 2048;
#else
constexpr size_t kKeptForALink = 0;
#endif

namespace tributary::transport {
namespace {

#ifdef TRIBUTARY_FULL
constexpr int kReconnects = 10'000;
constexpr uint64_t kStreamBytes = uint64_t{3} << 30;
#else
constexpr int kReconnects = 300;
constexpr uint64_t kStreamBytes = uint64_t{192} << 20;
#endif

class Endurance : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Listener> ListenHere(const LinkOptions& options) {
    auto listener = harness_->server().Listen(harness_->listen_address(), options);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return std::move(listener).value();
  }
  Deadline Soon() const { return harness_->In(absl::Seconds(60)); }  // in the fabric's own time
  const std::unique_ptr<Harness> harness_ = MakeHarness(GetParam());
};

TEST_P(Endurance, ReconnectsLeaveNeitherDescriptorsNorMemoryBehind) {
  auto listener = ListenHere(SmallOptions("server"));
  size_t fds = 0;
  size_t resident = 0;
  size_t objects = 0;
  for (int i = 0; i < kReconnects; ++i) {
    auto client = harness_->client().Connect(listener->address(), SmallOptions("again"));
    ASSERT_TRUE(client.ok()) << client.status();
    auto server = listener->Accept(Soon());
    ASSERT_TRUE(server.ok()) << server.status();
    auto chunk = (*client)->Borrow(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    ASSERT_TRUE((*client)->Send(std::move(*chunk)).ok());
    ASSERT_TRUE((*server)->Receive(Soon()).ok());
    if (i % 3 == 0) (*client)->Cancel("round over");
    if (i % 3 == 1) {
      ASSERT_EQ((*client)->Close(Soon()), absl::OkStatus());
    }
    client->reset();
    server->reset();
    if (i == kReconnects / 10) {
      fds = OpenFds();
      resident = ResidentBytes();
      objects = harness_->live_objects();
    }
  }
  // The listener's thread may still hold the last sockets for a moment; none may pile up.
  EXPECT_LE(OpenFds(), fds + 8);
  // Queue pairs and their like (RoCE): the listener's side may still tear the last ones down.
  const Deadline patience = Deadline::After(absl::Seconds(60));
  while (harness_->live_objects() > objects && !patience.Expired()) std::this_thread::yield();
  EXPECT_LE(harness_->live_objects(), objects);
  // Nine tenths of the links came after the mark: 1 KiB lost by each would be seen in the full run.
  EXPECT_LE(ResidentBytes(), resident + (size_t{8} << 20) + kReconnects * kKeptForALink);
}

// Byte j of chunk i, cheap enough for gigabytes.
void Fill(uint64_t i, uint8_t* to, size_t bytes) {
  std::memset(to, static_cast<int>(i % 251), bytes);
  if (bytes >= sizeof(i)) std::memcpy(to + bytes - sizeof(i), &i, sizeof(i));
}

TEST_P(Endurance, LongStreamsBothWaysArriveWholeAndInOrder) {
  LinkOptions options = SmallOptions("server");
  options.chunk_bytes = size_t{1} << 20;
  auto listener = ListenHere(options);
  auto client = harness_->client().Connect(listener->address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  auto server = listener->Accept(Soon());
  ASSERT_TRUE(server.ok()) << server.status();
  const uint64_t chunks = kStreamBytes / options.chunk_bytes;
  const auto send = [&](Link& link) {
    for (uint64_t i = 0; i < chunks; ++i) {
      auto chunk = link.Borrow(Soon());
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      const size_t bytes = chunk->capacity() - i % 3;  // a slot's size, and one and two less
      Fill(i, chunk->data(), bytes);
      chunk->set_size(bytes);
      ASSERT_TRUE(link.Send(std::move(*chunk)).ok());
    }
    ASSERT_EQ(link.Close(Soon()), absl::OkStatus());
  };
  const auto receive = [&](Link& link) {
    std::vector<uint8_t> expected(options.chunk_bytes);
    for (uint64_t i = 0; i < chunks; ++i) {
      auto chunk = link.Receive(Soon());
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      ASSERT_EQ(chunk->size(), options.chunk_bytes - i % 3);
      Fill(i, expected.data(), chunk->size());
      ASSERT_EQ(std::memcmp(chunk->data(), expected.data(), chunk->size()), 0) << "chunk " << i;
    }
    ASSERT_EQ(link.Receive(Soon()).status().code(), absl::StatusCode::kOutOfRange);
  };
  std::vector<std::unique_ptr<TestThread>> threads;
  for (Link* link : {server->get(), client->get()}) {
    threads.push_back(harness_->Spawn([&, link] { send(*link); }));
    threads.push_back(harness_->Spawn([&, link] { receive(*link); }));
  }
  for (auto& thread : threads) thread->Join();
}

INSTANTIATE_TEST_SUITE_P(Kinds, Endurance, ::testing::Values("tcp", "shm", "roce", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
