// What every transport between processes promises of peers that die, stop or come back, and of
// strangers at its door.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tests/transport/account.h"
#include "tests/transport/harness.h"
#include "tests/transport/peer_process.h"
#include "tests/transport/stranger.h"
#include "transport/faults.h"
#include "transport/internal/hello.h"
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

// TCP_USER_TIMEOUT of all of this process's sockets that have one, in milliseconds.
std::set<int> UserTimeouts() {
  std::set<int> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int millis = 0;
    socklen_t length = sizeof(millis);
    const int fd = std::stoi(entry.path().filename().string());
    if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &millis, &length) == 0 && millis > 0)
      out.insert(millis);
  }
  return out;
}

// The kernel must not end a control socket before the limit of silence, which goes by the slower
// heart of the two.
TEST(ControlSocket, IsKeptByTheKernelAsLongAsTheSlowerSidesHeartbeatMayBeSilent) {
  for (const char* fabric : {"tcp", "roce"}) {
    SCOPED_TRACE(fabric);
    const auto harness = MakeHarness(fabric);
    LinkOptions quick = SmallOptions("server"), slow = SmallOptions("client");
    quick.heartbeat = absl::Seconds(1);
    slow.heartbeat = absl::Seconds(3);
    quick.progress_timeout = slow.progress_timeout = absl::Seconds(61);
    auto listener = harness->server().Listen(harness->listen_address(), quick);
    ASSERT_TRUE(listener.ok()) << listener.status();
    const auto client = harness->client().Connect((*listener)->address(), slow);
    ASSERT_TRUE(client.ok()) << client.status();
    const auto server = (*listener)->Accept(Soon());
    ASSERT_TRUE(server.ok()) << server.status();
    std::set<int> timeouts = UserTimeouts();
    timeouts.erase(61'000);  // lanes
    EXPECT_EQ(timeouts, std::set<int>{15'000});
  }
}

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

TEST_P(Liveness, KilledPeerIsNoticedAtOnceBeforeItsFirstChunk) {
  auto listener = ListenHere(SmallOptions("server"));
  PeerProcess peer(GetParam(), listener->address(), 1000, /*idle=*/true);
  auto link = AcceptFrom(*listener);
  const Deadline grace = Deadline::After(absl::Seconds(5));
  peer.Signal(SIGKILL);
  const absl::Status status = link->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"peer process\""));
  EXPECT_FALSE(grace.Expired());
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

// Every fault that two ends on one machine can have, often: each takes its descriptors and its
// memory with it, while the listener lives on.
class LivenessAccount : public Liveness {
 public:
  // A link that leaks its memory leaks 256 KiB at least, the pages of its slots that were filled.
  static constexpr int kTimes = 12;
  static constexpr size_t kSlack = size_t{3} << 19;

  static LinkOptions Hasty() {
    LinkOptions options = SmallOptions("server");
    options.heartbeat = absl::Milliseconds(50);
    options.heartbeats_missed = 6;
    return options;
  }
  PeerProcess Peer(const Listener& listener, bool idle = false) const {
    return PeerProcess(GetParam(), listener.address(), 50, idle);
  }
  static void Take(Link& link, int chunks) {
    for (int i = 0; i < chunks; ++i) ASSERT_TRUE(link.Receive(Soon()).ok());
  }

  void KilledMidStream() {
    const PeerProcess peer = Peer(*patient_);
    const auto link = AcceptFrom(*patient_);
    Take(*link, 10);
    peer.Signal(SIGKILL);
    EXPECT_TRUE(absl::IsUnavailable(ReceiveUntilError(*link)));
  }
  void KilledBeforeItsFirstChunkWasTaken() {
    const PeerProcess peer = Peer(*patient_);
    const auto link = AcceptFrom(*patient_);
    peer.Signal(SIGKILL);
    EXPECT_TRUE(absl::IsUnavailable(ReceiveUntilError(*link)));
  }
  void KilledBeforeItsFirstChunk() {
    const PeerProcess peer = Peer(*patient_, /*idle=*/true);
    const auto link = AcceptFrom(*patient_);
    peer.Signal(SIGKILL);
    EXPECT_TRUE(absl::IsUnavailable(link->Receive(Soon()).status()));
  }
  void GoneHalfWayIntoItsHello() {
    const std::string hello =
        internal::EncodeHello(internal::ControlHello(SmallOptions("x"), std::string(16, 'h'), 1));
    Stranger(patient_->address()).Say(hello.substr(0, hello.size() / 2));
  }
  void StoppedForLonger() {
    const PeerProcess peer = Peer(*hasty_);
    const auto link = AcceptFrom(*hasty_);
    peer.Signal(SIGSTOP);
    EXPECT_TRUE(absl::IsUnavailable(ReceiveUntilError(*link)));
  }
  void StoppedForLess() {
    const PeerProcess peer = Peer(*patient_);
    const auto link = AcceptFrom(*patient_);
    peer.Signal(SIGSTOP);
    while (link->Receive(Deadline::After(absl::Milliseconds(20))).ok()) {
    }
    peer.Signal(SIGCONT);
    Take(*link, 10);
  }
  void Restarted() {
    const PeerProcess first = Peer(*patient_);
    const auto old = AcceptFrom(*patient_);
    first.Signal(SIGSTOP);
    const PeerProcess second = Peer(*patient_);
    const auto fresh = AcceptFrom(*patient_);
    Take(*fresh, 10);
  }
  // Sends to a link of this process whose connecting end has the faults, until that fails; what the
  // accepting end says then.
  absl::Status SendUntilError(const Faults& faults) {
    auto plain = GetParam() == "shm" ? MakeShmFabric() : MakeTcpFabric();
    auto client = MakeFaultyFabric(std::move(plain), faults)
                      ->Connect(patient_->address(), SmallOptions("client"));
    EXPECT_TRUE(client.ok()) << client.status();
    const auto server = AcceptFrom(*patient_);
    absl::Status sent, received;
    while (sent.ok() && received.ok()) {
      auto chunk = (*client)->Borrow(Soon());
      sent = chunk.status();
      if (!sent.ok()) break;
      chunk->set_size(chunk->capacity());
      sent = (*client)->Send(std::move(*chunk));
      if (sent.ok()) received = server->Receive(Soon()).status();
    }
    return received.ok() ? ReceiveUntilError(*server) : received;
  }
  void Cut() {
    Faults faults;
    faults.cut_after = 3;
    EXPECT_TRUE(absl::IsUnavailable(SendUntilError(faults)));
  }
  void Damaged() {
    Faults faults;
    faults.corrupt_chunk = 1;
    EXPECT_TRUE(absl::IsDataLoss(SendUntilError(faults)));
  }
  void Strangers() {
    const std::string version_two =
        std::string("\x08\x02\x12\x10", 4) + std::string(16, 'i');  // a hello of version 2
    for (const std::string& words :
         {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
          std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(500, 'r'),
          std::string("TRIBLINK\0\0\0\0\0\0\0\x80", 16), std::string(64, '\xff'),
          std::string("TRIBLINK\x14\0\0\0\0\0\0\0", 16) + version_two}) {
      const Stranger stranger(patient_->address());
      stranger.Say(words);
      EXPECT_NE(stranger.Hear(), "");
    }
  }

  const std::unique_ptr<Listener> patient_ = ListenHere(SmallOptions("server"));
  const std::unique_ptr<Listener> hasty_ = ListenHere(Hasty());
};

TEST_P(LivenessAccount, NoFaultLeavesDescriptorsOrMemoryBehind) {
  using Self = LivenessAccount;
  const std::pair<const char*, void (Self::*)()> faults[] = {
      {"killed mid-stream", &Self::KilledMidStream},
      {"killed before its first chunk was taken", &Self::KilledBeforeItsFirstChunkWasTaken},
      {"killed before its first chunk", &Self::KilledBeforeItsFirstChunk},
      {"gone half-way into its hello", &Self::GoneHalfWayIntoItsHello},
      {"stopped for longer than the grace", &Self::StoppedForLonger},
      {"stopped for less", &Self::StoppedForLess},
      {"restarted", &Self::Restarted},
      {"cut", &Self::Cut},
      {"damaged on the way", &Self::Damaged},
      {"strangers", &Self::Strangers},
  };
  const size_t fds = OpenFds();
  for (const auto& [name, run] : faults) {
    SCOPED_TRACE(name);
    for (int i = 0; i < 2; ++i) (this->*run)();  // what is made once and kept
    const size_t bytes = OwnedBytes();
    for (int i = 0; i < kTimes; ++i) (this->*run)();
    EXPECT_LE(AwaitFds(fds), fds);
    if (kMemoryCounts) {
      EXPECT_LE(OwnedBytes(), bytes + kSlack);
    }
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LivenessAccount, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Kinds, Liveness, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::transport
