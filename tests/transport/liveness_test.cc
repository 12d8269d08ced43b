// What every transport between processes promises of peers that die, stop or come back, and of
// strangers at its door.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/transport/harness.h"
#include "tests/transport/account.h"
#include "tests/transport/peer_process.h"
#include "tests/transport/stranger.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

class Liveness : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Listener> ListenHere(const LinkOptions& options) {
    auto listener = fabric_->Listen(GetParam() == "shm" ? "@" : "127.0.0.1:0", options);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return std::move(listener).value();
  }
  std::unique_ptr<Link> AcceptFrom(Listener& listener) {
    auto link = listener.Accept(Soon());
    EXPECT_TRUE(link.ok()) << link.status();
    return std::move(link).value();
  }
  static absl::Status ReceiveUntilError(Link& link) {
    absl::Status status;
    while (status.ok()) status = link.Receive(Soon()).status();
    return status;
  }

  const std::unique_ptr<Fabric> fabric_ = GetParam() == "shm" ? MakeShmFabric() : MakeTcpFabric();
};

TEST_P(Liveness, KilledPeerIsNoticedAtOnceInTheMiddleOfAStream) {
  auto listener = ListenHere(SmallOptions("server"));
  PeerProcess peer(GetParam(), listener->address(), 1000);
  auto link = AcceptFrom(*listener);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(link->Receive(Soon()).ok());
  const Deadline grace = Deadline::After(absl::Seconds(5));
  peer.Signal(SIGKILL);
  const absl::Status status = ReceiveUntilError(*link);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"peer process\""));
  EXPECT_FALSE(grace.Expired());  // the limit of heartbeats; it needs none
}

TEST_P(Liveness, KilledPeerIsNoticedBySomebodyWhoSends) {
  auto listener = ListenHere(SmallOptions("server"));
  PeerProcess peer(GetParam(), listener->address(), 1000);
  auto link = AcceptFrom(*listener);
  peer.Signal(SIGKILL);
  absl::Status status;
  while (status.ok()) {
    auto chunk = link->Borrow(Soon());
    status = chunk.ok() ? link->Send(std::move(*chunk)) : chunk.status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(Liveness, PeerStoppedForLessThanTheGraceGoesOn) {
  LinkOptions options = SmallOptions("server");
  options.heartbeat = absl::Milliseconds(100);
  options.heartbeats_missed = 100;  // 10 s of grace
  auto listener = ListenHere(options);
  PeerProcess peer(GetParam(), listener->address(), 100);
  auto link = AcceptFrom(*listener);
  peer.Signal(SIGSTOP);
  // Its slots run dry, then nothing comes: the silence is the condition waited for.
  uint64_t next = 0;
  while (true) {
    auto chunk = link->Receive(Deadline::After(absl::Milliseconds(500)));
    if (absl::IsDeadlineExceeded(chunk.status())) break;
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_EQ(chunk->tag().index, next++);
  }
  peer.Signal(SIGCONT);
  for (int i = 0; i < 50; ++i) {
    auto chunk = link->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_EQ(chunk->tag().index, next++);
  }
  EXPECT_TRUE(link->status().ok());
}

TEST_P(Liveness, PeerStoppedForThreeSecondsSurvivesTheDefaults) {
  LinkOptions options = SmallOptions("server");  // heartbeats of 1 s, 5 may be missed
  auto listener = ListenHere(options);
  PeerProcess peer(GetParam(), listener->address(), 1000);
  auto link = AcceptFrom(*listener);
  peer.Signal(SIGSTOP);
  const double cpu = CpuSeconds();
  const Deadline until = Deadline::After(absl::Seconds(3));
  while (!until.Expired()) {
    const auto chunk = link->Receive(until);
    ASSERT_TRUE(chunk.ok() || absl::IsDeadlineExceeded(chunk.status())) << chunk.status();
  }
  EXPECT_LT(CpuSeconds() - cpu, 0.3) << "who waits for it spins";
  peer.Signal(SIGCONT);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(link->Receive(Soon()).ok());
}

TEST_P(Liveness, PeerStoppedForLongerIsGivenUpAndNamed) {
  LinkOptions options = SmallOptions("server");
  options.heartbeat = absl::Milliseconds(50);
  options.heartbeats_missed = 6;
  auto listener = ListenHere(options);
  PeerProcess peer(GetParam(), listener->address(), 50);
  auto link = AcceptFrom(*listener);
  peer.Signal(SIGSTOP);
  const absl::Status status = ReceiveUntilError(*link);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no sign of life"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"peer process\""));
}

TEST_P(Liveness, RestartedPeerIsAcceptedWhileItsOldLinkIsStillThere) {
  auto listener = ListenHere(SmallOptions("server"));
  auto first = std::make_unique<PeerProcess>(GetParam(), listener->address(), 1000);
  auto old = AcceptFrom(*listener);
  first->Signal(SIGSTOP);  // hangs, and nobody has noticed
  PeerProcess second(GetParam(), listener->address(), 1000);
  auto fresh = AcceptFrom(*listener);
  EXPECT_TRUE(old->status().ok());
  for (uint64_t i = 0; i < 20; ++i) {
    auto chunk = fresh->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_EQ(chunk->tag().index, i);  // nothing of the old life
  }
  first.reset();
  EXPECT_EQ(ReceiveUntilError(*old).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(fresh->Receive(Soon()).ok());
}

TEST_P(Liveness, StrangersAreAnsweredAndHoldUpNobody) {
  auto listener = ListenHere(SmallOptions("server"));
  const Stranger silent(listener->address());
  const Stranger http(listener->address());
  http.Say("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(http.Hear(), HasSubstr("HTTP/1.1 400 Bad Request"));
  const Stranger tls(listener->address());
  tls.Say(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(500, 'r'));
  EXPECT_THAT(tls.Hear(), HasSubstr("TLS"));
  const Stranger giant(listener->address());
  giant.Say(std::string("TRIBLINK\0\0\0\0\0\0\0\x80", 16));
  EXPECT_THAT(giant.Hear(), HasSubstr("9223372036854775808"));
  const Stranger noise(listener->address());
  noise.Say(std::string("TRIBLINK\x04\0\0\0\0\0\0\0", 16) + "\xff\xff\xff\xff");
  EXPECT_THAT(noise.Hear(), HasSubstr("not readable"));
  EXPECT_EQ(listener->refused(), 4u);
  PeerProcess good(GetParam(), listener->address(), 1000);
  EXPECT_TRUE(AcceptFrom(*listener)->Receive(Soon()).ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Liveness, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
