// A link over which nothing goes costs next to nothing: its heartbeats, and nobody who looks.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/transport/account.h"
#include "tests/transport/harness.h"
#include "transport/link.h"

namespace tributary::transport {
namespace {

class IdleLink : public ::testing::TestWithParam<std::string> {
 protected:
  Deadline Soon() const { return harness_->In(absl::Seconds(30)); }
  void Exchange(Link& from, Link& to) const {
    auto chunk = from.Borrow(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    chunk->set_size(chunk->capacity());
    ASSERT_TRUE(from.Send(std::move(*chunk)).ok());
    ASSERT_TRUE(to.Receive(Soon()).ok());
  }
  const std::unique_ptr<Harness> harness_ = MakeHarness(GetParam());
};

// Both ends, their listener and somebody who waits for a chunk, in one process. CPU time, so that
// what else the machine does is not counted.
TEST_P(IdleLink, TakesLessThanAHundredthOfACpu) {
  auto listener = harness_->server().Listen(harness_->listen_address(), SmallOptions("server"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto client = harness_->client().Connect((*listener)->address(), SmallOptions("client"));
  ASSERT_TRUE(client.ok()) << client.status();
  auto server = (*listener)->Accept(Soon());
  ASSERT_TRUE(server.ok()) << server.status();
  // It has been at work before: whatever spins between chunks has had its reason to.
  Exchange(**client, **server);
  Exchange(**server, **client);
  const absl::Duration idle = absl::Seconds(2);  // two heartbeats of each side
  const double cpu = CpuSeconds();
  const absl::Status nothing = (*server)->Receive(Deadline::After(idle)).status();
  const double spent = CpuSeconds() - cpu;
  EXPECT_EQ(nothing.code(), absl::StatusCode::kDeadlineExceeded) << nothing;
  EXPECT_LT(spent, 0.01 * absl::ToDoubleSeconds(idle));
  EXPECT_TRUE((*client)->status().ok()) << (*client)->status();
}

INSTANTIATE_TEST_SUITE_P(Kinds, IdleLink, ::testing::Values("tcp", "shm", "roce"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
