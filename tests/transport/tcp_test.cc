// What links over TCP promise beyond the suites of all: versions, floods and half-made links at the
// port.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/transport/harness.h"
#include "tests/transport/silent_listener.h"
#include "tests/transport/stranger.h"
#include "transport/internal/hello.h"
#include "transport/tcp.h"
#include "transport/tcp/greeting.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

std::unique_ptr<Listener> ListenHere(const LinkOptions& options) {
  auto listener = MakeTcpFabric()->Listen("127.0.0.1:0", options);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return std::move(listener).value();
}

// A good link is made, and a chunk goes through.
void ExpectWorking(Listener& listener) {
  auto client = MakeTcpFabric()->Connect(listener.address(), SmallOptions("good"));
  ASSERT_TRUE(client.ok()) << client.status();
  auto server = listener.Accept(Soon());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->peer(), "good");
  auto chunk = (*client)->Borrow(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  chunk->data()[0] = 42;
  chunk->set_size(1);
  ASSERT_TRUE((*client)->Send(std::move(*chunk)).ok());
  auto got = (*server)->Receive(Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->data()[0], 42);
}

// The recorded sockets of a link of version 1, as an older peer opens them.
TEST(TcpListener, SocketsOfVersionOneStillMakeALink) {
  const auto golden = [](const std::string& name) {
    std::ifstream in(std::string(TRIBUTARY_SOURCE_DIR) + "/tests/golden/link/" + name,
                     std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string lanes = golden("lanes_v1.bin");
  std::string id;
  for (char c = 0; c < 16; ++c) id.push_back(c);
  EXPECT_EQ(internal::EncodeHello(internal::LaneHello(id, 0)) +
                internal::EncodeHello(internal::LaneHello(id, 1)),
            lanes);
  LinkOptions options;  // whose slots are as long as the recorded peer's
  options.name = "server";
  auto listener = ListenHere(options);
  const Stranger control(listener->address());
  control.Say(golden("hello_v1.bin"));
  const Stranger first(listener->address());
  first.Say(lanes.substr(0, lanes.size() / 2));
  const Stranger second(listener->address());
  second.Say(lanes.substr(lanes.size() / 2));
  auto link = listener->Accept(Soon());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->peer(), "rack0");
  EXPECT_EQ((*link)->hello(), std::string("\0\xffhi", 4));
}

TEST(TcpListener, OtherVersionIsRefusedInWords) {
  auto listener = ListenHere(SmallOptions("server"));
  v1::LinkHello hello = internal::ControlHello(SmallOptions("future"), std::string(16, 'i'), 1);
  hello.set_version(2);
  Stranger future(listener->address());
  future.Say(internal::EncodeHello(hello));
  const std::string answer = future.Hear();
  ASSERT_GT(answer.size(), internal::kHelloPrefixBytes);
  const std::string message = answer.substr(internal::kHelloPrefixBytes);
  const absl::Status status =
      internal::DecodeReply({reinterpret_cast<const uint8_t*>(message.data()), message.size()})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("speaks version 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("this side version 1"));
  ExpectWorking(*listener);
}

TEST(TcpListener, SilentAndSlowConnectionsHoldUpNobody) {
  auto listener = ListenHere(SmallOptions("server"));
  std::vector<std::unique_ptr<Stranger>> silent;
  silent.reserve(50);
  for (int i = 0; i < 50; ++i) silent.push_back(std::make_unique<Stranger>(listener->address()));
  for (int i = 0; i < 25; ++i) silent[static_cast<size_t>(i)]->Say("TRIB");
  ExpectWorking(*listener);
}

TEST(TcpListener, FloodOfSilentConnectionsShutsNobodyOut) {
  auto listener = ListenHere(SmallOptions("server"));
  std::vector<std::unique_ptr<Stranger>> silent;
  silent.reserve(400);
  for (int i = 0; i < 400; ++i) silent.push_back(std::make_unique<Stranger>(listener->address()));
  ExpectWorking(*listener);
  EXPECT_GT(listener->refused(), 0u);  // the oldest made room
}

TEST(TcpListener, SilentConnectionIsDroppedAtTheSetUpLimit) {
  LinkOptions options = SmallOptions("server");
  options.connect_timeout = absl::Milliseconds(200);
  auto listener = ListenHere(options);
  Stranger silent(listener->address());
  EXPECT_EQ(silent.Hear(), "");
  EXPECT_EQ(listener->refused(), 1u);
}

TEST(TcpListener, LanesOfUnknownLinksAreRefused) {
  auto listener = ListenHere(SmallOptions("server"));
  Stranger lane(listener->address());
  lane.Say(internal::EncodeHello(internal::LaneHello(std::string(16, 'z'), 0)));
  EXPECT_THAT(lane.Hear(), HasSubstr("not being set up"));
  ExpectWorking(*listener);
}

TEST(TcpListener, HalfMadeLinkIsNeverAccepted) {
  LinkOptions options = SmallOptions("server");
  options.connect_timeout = absl::Milliseconds(200);
  auto listener = ListenHere(options);
  Stranger half(listener->address());
  half.Say(
      internal::EncodeHello(internal::ControlHello(SmallOptions("half"), std::string(16, 'h'), 1)));
  EXPECT_THAT(half.Hear(), HasSubstr("server"));  // accepted so far, then dropped for want of lanes
  EXPECT_EQ(listener->Accept(Deadline::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectWorking(*listener);
}

TEST(TcpListener, PortInUseIsAnErrorThatNamesIt) {
  auto listener = ListenHere(SmallOptions("server"));
  auto second = MakeTcpFabric()->Listen(listener->address(), SmallOptions("second"));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(listener->address()));
  EXPECT_THAT(
      std::string(MakeTcpFabric()->Listen("nonsense", SmallOptions("x")).status().message()),
      HasSubstr("host:port"));
}

// A name with an IPv6 address that a firewall drops, say, before a good IPv4 one.
TEST(TcpConnect, AnAddressThatNeverAnswersLeavesTimeForTheNext) {
  const SilentPort silent;
  auto listener = ListenHere(SmallOptions("server"));
  const std::vector<tcp::SocketAddress> addresses = {
      tcp::Resolve(silent.address(), /*to_listen=*/false)->front(),
      tcp::Resolve(listener->address(), /*to_listen=*/false)->front()};
  const auto connect = [](const tcp::SocketAddress& address,
                          const Deadline& deadline) -> absl::StatusOr<std::unique_ptr<Link>> {
    LinkOptions options = SmallOptions("client");
    options.connect_timeout = deadline.Left();
    return MakeTcpFabric()->Connect(tcp::ToText(address), options);
  };
  const auto link = tcp::ConnectToEach(addresses, Deadline::After(absl::Seconds(2)), connect);
  EXPECT_TRUE(link.ok()) << link.status();
}

TEST(TcpConnect, SomethingElseOnThePortIsSaidSo) {
  // A listener that never accepts and so never answers: the whole set-up has one deadline.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(here);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&here), length), 0);
  ASSERT_EQ(listen(fd, 4), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&here), &length);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(here.sin_port));
  LinkOptions options = SmallOptions("client");
  options.connect_timeout = absl::Milliseconds(200);
  EXPECT_EQ(MakeTcpFabric()->Connect(address, options).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread ssh([fd] {
    close(accept(fd, nullptr, nullptr));  // the one of above
    const int peer = accept(fd, nullptr, nullptr);
    const std::string banner = "SSH-2.0-OpenSSH_9.2p1 Debian\r\n";
    EXPECT_GT(send(peer, banner.data(), banner.size(), MSG_NOSIGNAL), 0);
    char waste[4096];
    while (recv(peer, waste, sizeof(waste), 0) > 0) {
    }
    close(peer);
  });
  options.connect_timeout = absl::Seconds(20);
  const absl::Status status = MakeTcpFabric()->Connect(address, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("SSH-2.0"));
  ssh.join();
  close(fd);
}

TEST(TcpLink, FewerLanesOfTheTwoSidesAreUsed) {
  LinkOptions one_lane = SmallOptions("server");
  one_lane.lanes = 1;
  auto listener = ListenHere(one_lane);
  ExpectWorking(*listener);  // that asks for three
}

// A link of one lane whose other end is plain sockets, in the test's hands: its control socket is
// well and it grants credit.
struct ByHand {
  explicit ByHand(const LinkOptions& options) : listener(ListenHere(options)) {
    const std::string id(16, 'p');
    control.emplace(listener->address());
    control->Say(internal::EncodeHello(internal::ControlHello(options, id, 1)));
    lane.emplace(listener->address());
    lane->Say(internal::EncodeHello(internal::LaneHello(id, 0)));
    auto accepted = listener->Accept(Soon());
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    if (accepted.ok()) link = std::move(*accepted);
  }
  std::unique_ptr<Listener> listener;
  std::optional<Stranger> control;
  std::optional<Stranger> lane;
  std::unique_ptr<Link> link;
};

// Whichever comes first of the link's own timer and the kernel's, which runs as long.
auto StuckFor200ms() {
  return AllOf(HasSubstr("peer \"server\""), HasSubstr("lane 0: nothing"),
               HasSubstr("for 200ms (progress_timeout); the network or the peer is stuck"));
}

// A peer that reads nothing of its lane.
TEST(TcpLink, ChunkOfWhichNothingCanBeSentForTheProgressTimeoutEndsTheLinkInWords) {
  LinkOptions options = SmallOptions("server");
  options.chunk_bytes = size_t{8} << 20;  // more than a socket's buffers take in unread
  options.lanes = 1;
  options.progress_timeout = absl::Milliseconds(200);
  options.heartbeat = absl::Seconds(10);
  const ByHand hand(options);
  Link* const link = hand.link.get();
  ASSERT_NE(link, nullptr);
  absl::Status status;
  while (status.ok()) {
    auto chunk = link->Borrow(Soon());
    status = chunk.status();
    if (!status.ok()) break;
    chunk->set_size(chunk->capacity());
    status = link->Send(std::move(*chunk));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), StuckFor200ms());
}

// The kernel drops what comes for the lane, as a network would.
void DropAll(int fd) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{.len = 1, .filter = nothing};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

// A chunk that the socket's buffer takes whole, so that only the kernel knows of it.
TEST(TcpLink, ChunkOfWhichNothingIsAcknowledgedEndsTheLinkInTheSameWords) {
  LinkOptions options = SmallOptions("server");
  options.lanes = 1;
  options.progress_timeout = absl::Milliseconds(200);
  options.heartbeat = absl::Seconds(10);
  const ByHand hand(options);
  Link* const link = hand.link.get();
  ASSERT_NE(link, nullptr);
  DropAll(hand.lane->fd());
  auto chunk = link->Borrow(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  chunk->set_size(100);
  ASSERT_EQ(link->Send(std::move(*chunk)), absl::OkStatus());
  const absl::Status status = link->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), StuckFor200ms());
}

// The kernel's word on the socket of this process that is connected to `other`.
tcp_info InfoOfTheOtherEnd(int other) {
  const tcp::SocketAddress wanted = tcp::LocalAddress(other);
  tcp_info info{};
  for (int fd = 0; fd < 1024; ++fd) {
    const tcp::SocketAddress peer = tcp::PeerAddress(fd);
    socklen_t length = sizeof(info);
    if (peer.length == wanted.length && tcp::ToText(peer) == tcp::ToText(wanted)) {
      EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    }
  }
  return info;
}

TEST(TcpLink, SegmentsThatWereLostAreCountedAsSentAgain) {
  LinkOptions options = SmallOptions("server");
  options.lanes = 1;
  const ByHand hand(options);
  Link* const link = hand.link.get();
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->stats().retransmits, 0u);
  DropAll(hand.lane->fd());
  auto chunk = link->Borrow(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  chunk->set_size(100);
  ASSERT_EQ(link->Send(std::move(*chunk)), absl::OkStatus());
  const Deadline limit = Soon();
  while (link->stats().retransmits == 0 && !limit.Expired()) std::this_thread::yield();
  const int ignored = 0;
  ASSERT_EQ(setsockopt(hand.lane->fd(), SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof(ignored)),
            0);
  // All of it arrives: the answer to its hello, of 18 bytes, a header of 56, the payload.
  for (size_t left = 18 + 56 + 100; left > 0;) {
    char bytes[512];
    const ssize_t n = recv(hand.lane->fd(), bytes, std::min(left, sizeof(bytes)), 0);
    ASSERT_GT(n, 0);
    left -= static_cast<size_t>(n);
  }
  LinkStats stats;
  tcp_info before{}, kernel{};
  do {  // until no acknowledgement comes between the kernel's word and ours
    before = InfoOfTheOtherEnd(hand.lane->fd());
    stats = link->stats();
    kernel = InfoOfTheOtherEnd(hand.lane->fd());
  } while (before.tcpi_rtt != kernel.tcpi_rtt || before.tcpi_snd_cwnd != kernel.tcpi_snd_cwnd);
  EXPECT_GE(stats.retransmits, 1u);
  EXPECT_EQ(stats.retransmits, kernel.tcpi_total_retrans);
  EXPECT_GT(stats.round_trip, absl::ZeroDuration());
  EXPECT_EQ(stats.round_trip, absl::Microseconds(kernel.tcpi_rtt));
  EXPECT_GE(stats.congestion_window, 1u);
  EXPECT_EQ(stats.congestion_window, kernel.tcpi_snd_cwnd);
}

TEST(TcpLink, DestroyingAListenerDropsLinksNobodyAccepted) {
  auto listener = ListenHere(SmallOptions("server"));
  auto client = MakeTcpFabric()->Connect(listener->address(), SmallOptions("client"));
  ASSERT_TRUE(client.ok()) << client.status();
  listener.reset();
  const absl::Status status = (*client)->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace tributary::transport
