// What goes wrong on a RoCE link, over fake verbs: told in words, and every request accounted for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "tests/transport/account.h"
#include "tests/transport/roce_fixture.h"
#include "tests/transport/silent_listener.h"
#include "transport/internal/frame.h"
#include "transport/internal/hello.h"
#include "transport/roce/core.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/set_up.h"
#include "transport/tcp.h"
#include "transport/tcp/greeting.h"

namespace tributary::transport {
namespace {

TEST_F(Roce, NothingIsPublishedBeforeItsCompletion) {
  ASSERT_EQ(Link(), absl::OkStatus());
  verbs_->Hold(true);
  ASSERT_EQ(SendOne(3, 5000), absl::OkStatus());
  EXPECT_EQ(server_->Receive(Deadline::After(absl::Milliseconds(30))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  verbs_->Hold(false);
  ExpectOne(3, 5000);
}

TEST_F(Roce, BytesThatAreInMemoryAreNotPublishedBeforeTheirCompletion) {
  ASSERT_EQ(Link(), absl::OkStatus());
  const size_t landed = verbs_->landed();
  verbs_->HoldCompletions(true);
  ASSERT_EQ(SendOne(3, 5000), absl::OkStatus());
  while (verbs_->landed() == landed) std::this_thread::yield();
  EXPECT_EQ(server_->Receive(Deadline::After(absl::Milliseconds(30))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server_->stats().chunks_received, 0u);
  verbs_->HoldCompletions(false);
  ExpectOne(3, 5000);
}

TEST_F(Roce, WhatDoesNotArriveForTheProgressTimeoutEndsTheLinkInWords) {
  LinkOptions options = SmallOptions("rack");
  options.progress_timeout = absl::Milliseconds(200);
  options.heartbeat = absl::Seconds(10);  // the control socket is well all the time
  ASSERT_EQ(Link(options), absl::OkStatus());
  verbs_->Hold(true);
  ASSERT_EQ(SendOne(3, 5000), absl::OkStatus());
  absl::Status status;
  while (status.ok()) status = client_->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), AllOf(HasSubstr("peer \"rack\""), HasSubstr("(progress_timeout)")));
  verbs_->Hold(false);
}

TEST_F(Roce, ChunkThatAskedForNoCompletionIsMissedToo) {
  LinkOptions options = SmallOptions("rack");
  options.lanes = 1;
  options.slots = 64;  // one request in sixteen asks
  options.progress_timeout = absl::Milliseconds(200);
  options.heartbeat = absl::Seconds(10);
  ASSERT_EQ(Link(options), absl::OkStatus());
  const size_t signalled = verbs_->signalled();
  ASSERT_EQ(SendOne(3, 5000), absl::OkStatus());
  EXPECT_EQ(verbs_->signalled(), signalled);
  ExpectOne(3, 5000);
  // All is well for longer than the limit: an idle link is no stuck one.
  EXPECT_EQ(client_->Receive(Deadline::After(absl::Milliseconds(600))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(client_->status().ok()) << client_->status();
  verbs_->Hold(true);
  ASSERT_EQ(SendOne(3, 5000), absl::OkStatus());
  absl::Status status;
  while (status.ok()) status = client_->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), HasSubstr("(progress_timeout)"));
  verbs_->Hold(false);
}

TEST_F(Roce, LinkDestroyedInFullFlightAccountsForEveryRequest) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Link(), absl::OkStatus());
    if (i % 2 == 0) verbs_->Hold(true);
    for (uint32_t j = 0; j < SmallOptions("").slots; ++j) {
      ASSERT_EQ(SendOne(1, 60000), absl::OkStatus());
    }
    if (i % 4 < 2) {
      client_.reset();
    } else {
      server_.reset();
    }
    verbs_->Hold(false);
    client_.reset();
    server_.reset();
    EXPECT_EQ(verbs_->unaccounted(), 0u) << i;
  }
}

TEST_F(Roce, DamageOnTheWayIsDataLoss) {
  ASSERT_EQ(Open(), absl::OkStatus());
  auto listener = fabric_->Listen("127.0.0.1:0", SmallOptions("rack"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  listener_ = std::move(*listener);
  LinkOptions damaging = SmallOptions("rack");
  damaging.damage = [](uint64_t sequence, uint8_t* payload, size_t) {
    if (sequence == 1) payload[10] ^= 1;
  };
  client_ = *fabric_->Connect(listener_->address(), damaging);
  server_ = *listener_->Accept(Soon());
  ASSERT_EQ(SendOne(5, 100), absl::OkStatus());
  ASSERT_EQ(SendOne(5, 100), absl::OkStatus());
  ExpectOne(5, 100);
  const absl::Status status = FirstError();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(Words(status), HasSubstr("chunk 1 of 100 bytes arrived damaged"));
}

// A control socket that says hello as RoCE does.
internal::Fd Greet(const Listener& listener) {
  auto address = tcp::Resolve(listener.address(), /*to_listen=*/false);
  auto sockets =
      tcp::Greet(address->front(), SmallOptions("odd"), "roce", Deadline::After(absl::Seconds(30)));
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  return std::move(sockets->control);
}

TEST_F(Roce, ConnectEndsAtItsTimeoutWhereverThePeerFallsSilent) {
  ASSERT_EQ(Open(), absl::OkStatus());
  const size_t live = verbs_->live_objects();
  LinkOptions options = SmallOptions("rack");
  options.connect_timeout = absl::Milliseconds(300);
  const SilentPort silent;
  // Before the hello.
  EXPECT_EQ(fabric_->Connect(silent.address(), options).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  // After it: a peer that takes the hello and never tells its endpoint.
  close(accept(silent.fd(), nullptr, nullptr));  // the one of above
  std::thread peer([&] {
    const auto until = Deadline::After(absl::Seconds(30));
    const internal::Fd control(
        accept4(silent.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    v1::LinkHelloReply reply;
    reply.set_version(internal::kHelloVersion);
    *reply.mutable_hello() = internal::ControlHello(options, std::string(16, 'i'), 1);
    reply.mutable_hello()->set_transport("roce");
    EXPECT_TRUE(tcp::WriteAll(control.get(), internal::EncodeReply(reply), until).ok());
    uint8_t waste = 0;
    while (tcp::ReadAll(control.get(), &waste, 1, until).ok()) {
    }
  });
  const absl::Status status = fabric_->Connect(silent.address(), options).status();
  peer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(verbs_->live_objects(), live);
}

// Both ends of a connection over loopback, as after the hellos.
struct GreetedPair {
  explicit GreetedPair(const LinkOptions& options) {
    const SilentPort port;
    const auto address = tcp::Resolve(port.address(), /*to_listen=*/false);
    auto connected = tcp::ConnectTo(address->front(), Soon());
    EXPECT_TRUE(connected.ok()) << connected.status();
    ends[0].control = std::move(connected).value();
    ends[1].control =
        internal::Fd(accept4(port.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    for (internal::ReadySockets& end : ends) {
      end.hellos.ours = internal::ControlHello(options, std::string(16, 'i'), 1);
      end.hellos.theirs = end.hellos.ours;
    }
  }
  internal::ReadySockets ends[2];
};

// A chunk that came behind the peer's probes is a completion that somebody must count, or the end
// of the wire waits for it.
TEST_F(Roce, ALinkThatCannotStartAccountsForWhatCameBeforeIt) {
  libraries_.verbs = verbs_;
  auto node = roce::RoceNode::Open(libraries_, SmallArena(), kExempt);
  ASSERT_TRUE(node.ok()) << node.status();
  LinkOptions options = SmallOptions("rack");
  options.lanes = 1;
  GreetedPair sockets(options);
  const roce::RocePart part = PartOf(*node);
  std::optional<absl::StatusOr<roce::ReadyWire>> theirs;
  std::thread peer(
      [&] { theirs.emplace(roce::SetUpWire(part, sockets.ends[0], options, Soon())); });
  auto ours = roce::SetUpWire(part, sockets.ends[1], options, Soon());
  peer.join();
  ASSERT_TRUE(ours.ok() && theirs->ok()) << ours.status() << theirs->status();
  ASSERT_TRUE((*theirs)->wire->queue_pairs()[0]->PostGrant(0, /*signalled=*/true).ok());
  ibv_wc completion{};
  pollfd entry{.fd = ours->wire->fd(), .events = POLLIN, .revents = 0};
  while (true) {
    ASSERT_TRUE(ours->wire->Arm().ok());
    if (*ours->wire->Poll({&completion, 1}) == 1) break;
    ASSERT_EQ(poll(&entry, 1, 30'000), 1);
    ours->wire->AckEvents();
  }
  ours->early.push_back(completion);

  const LogCapture log;
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  rlimit none = files;
  none.rlim_cur = 3;  // more than any poll here waits for
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status started =
      roce::RoceCore::Start(*std::move(ours), std::move(sockets.ends[1]), options, {}).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_THAT(Words(started), HasSubstr("Too many open files"));
  EXPECT_THAT(log.text(), Not(HasSubstr("were not given back")));
}

TEST_F(Roce, PeersThatSaySomethingElseAfterTheHelloAreRefusedAndHoldUpNobody) {
  LinkOptions options = SmallOptions("rack");
  options.connect_timeout = absl::Seconds(2);
  ASSERT_EQ(Link(options), absl::OkStatus());
  const internal::Fd silent = Greet(*listener_);
  const internal::Fd garbage = Greet(*listener_);
  const std::string noise(64, '\xff');
  ASSERT_EQ(send(garbage.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 64);
  const internal::Fd giant = Greet(*listener_);
  const std::string length("TRIBLINK\0\0\0\0\0\0\0\x80", 16);
  ASSERT_EQ(send(giant.get(), length.data(), length.size(), MSG_NOSIGNAL), 16);
  const internal::Fd bad = Greet(*listener_);
  v1::RoceSetUp message;
  message.mutable_endpoint()->set_gid("nonsense");
  const std::string endpoint = roce::EncodeSetUp(message);
  ASSERT_EQ(send(bad.get(), endpoint.data(), endpoint.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(endpoint.size()));
  { const internal::Fd gone = Greet(*listener_); }
  // A good link is made meanwhile.
  auto good = fabric_->Connect(listener_->address(), options);
  ASSERT_TRUE(good.ok()) << good.status();
  ASSERT_TRUE(listener_->Accept(Soon()).ok());
  // The silent one is the last to be given up: its socket ends.
  uint8_t waste = 0;
  absl::Status ended;
  while (ended.ok()) {
    ended = tcp::ReadAll(silent.get(), &waste, 1, Deadline::After(absl::Seconds(30)));
  }
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_EQ(listener_->Accept(Deadline::Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

// A peer that sets its link up as all do and then posts what it likes.
class RoguePeer {
 public:
  RoguePeer(const std::shared_ptr<FakeVerbs>& verbs, const Listener& listener) {
    roce::Libraries libraries;
    libraries.verbs = verbs;
    auto node = roce::RoceNode::Open(libraries, SmallArena(), kExempt);
    const LinkOptions options = SmallOptions("rogue");
    const auto deadline = Deadline::After(absl::Seconds(30));
    auto address = tcp::Resolve(listener.address(), /*to_listen=*/false);
    auto sockets = tcp::Greet(address->front(), options, "roce", deadline);
    auto ready = roce::SetUpWire(PartOf(*node), *sockets, options, deadline);
    EXPECT_TRUE(ready.ok()) << ready.status();
    wire_ = std::move(ready->wire);
    control_ = std::move(sockets->control);
  }
  // A whole chunk 0 of `bytes` zeros, its header changed by `change`, written to `slot`.
  template <typename Change>
  void Write(uint64_t sequence, uint32_t slot, size_t bytes, Change change) {
    const roce::Slot& from = wire_->slot(written_++);  // the device may still read the last one
    std::memset(from.data, 0, roce::kHeaderRoom + bytes);
    internal::ChunkHeaderBytes header = internal::EncodeChunkHeader(
        {.payload_bytes = static_cast<uint32_t>(bytes),
         .sequence = sequence,
         .tag = {},
         .payload_crc32c = Crc32c({from.data + roce::kHeaderRoom, bytes})});
    change(header);
    std::memcpy(from.data, header.data(), header.size());
    EXPECT_EQ(
        wire_->queue_pairs()[0]->PostWrite({.from = from.wire,
                                            .local_key = from.local_key,
                                            .bytes = roce::kHeaderRoom + bytes,
                                            .to = wire_->peer_address(slot),
                                            .remote_key = wire_->peer_key(slot)},
                                           roce::Immediate(sequence, slot), /*signalled=*/true, {}),
        absl::OkStatus());
  }
  void Grant(uint64_t sequence, uint32_t slot) {
    EXPECT_EQ(wire_->queue_pairs()[0]->PostGrant(roce::Immediate(sequence, slot), true),
              absl::OkStatus());
  }

 private:
  internal::Fd control_;
  std::unique_ptr<roce::Wire> wire_;
  uint32_t written_ = 0;
};

TEST_F(Roce, PeerThatBreaksTheProtocolEndsItsLinkAndNoOther) {
  ASSERT_EQ(Link(), absl::OkStatus());
  const auto nothing = [](internal::ChunkHeaderBytes&) {};
  const auto first_error = [&](auto misbehave) {
    RoguePeer rogue(verbs_, *listener_);
    auto link = listener_->Accept(Soon());
    EXPECT_TRUE(link.ok()) << link.status();
    misbehave(rogue, **link);
    absl::Status status;
    while (status.ok()) status = (*link)->Receive(Soon()).status();
    return status;
  };
  absl::Status status =
      first_error([&](RoguePeer& rogue, transport::Link&) { rogue.Write(0, 2, 10, nothing); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Words(status), HasSubstr("chunk 0 came to slot 2, which was not granted for it"));
  status = first_error([&](RoguePeer& rogue, transport::Link&) {
    rogue.Write(0, 0, 10, [](internal::ChunkHeaderBytes& header) { header[9] ^= 4; });
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(Words(status), HasSubstr("CRC32C"));
  status = first_error([&](RoguePeer& rogue, transport::Link& link) {
    rogue.Write(0, 0, 10, nothing);
    const auto first = link.Receive(Soon());  // its header has been read
    EXPECT_TRUE(first.ok()) << first.status();
    rogue.Write(0, 0, 10, nothing);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(Words(status), HasSubstr("twice"));
  // Without credit: the first four were granted.
  status = first_error([&](RoguePeer& rogue, transport::Link&) { rogue.Write(4, 0, 10, nothing); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  status = first_error([&](RoguePeer& rogue, transport::Link&) { rogue.Grant(5, 0); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Words(status), HasSubstr("granted slot 0 out of turn"));
  status = first_error([&](RoguePeer& rogue, transport::Link&) { rogue.Grant(4, 1000); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  ASSERT_EQ(SendOne(1, 10), absl::OkStatus());
  ExpectOne(1, 10);
}

TEST_F(Roce, RefusedKeyIsReportedWithPeerQueuePairStatusAndHint) {
  ASSERT_EQ(Link(), absl::OkStatus());
  verbs_->RefuseNextWrite();
  ASSERT_EQ(SendOne(1, 100), absl::OkStatus());
  absl::Status status;
  while (status.ok()) status = client_->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), HasSubstr("peer \"rack\""));
  EXPECT_THAT(Words(status), HasSubstr("queue pair 0"));
  EXPECT_THAT(Words(status), HasSubstr("remote access error (status 10"));
  EXPECT_THAT(Words(status), HasSubstr("remote key"));
  EXPECT_EQ(client_->Borrow(Soon()).status(), status);
  EXPECT_FALSE(FirstError().ok());
}

// Two ends of a control socket that have said hello to each other.
std::pair<internal::ReadySockets, internal::ReadySockets> GreetedPair(const LinkOptions& options) {
  const auto deadline = Deadline::After(absl::Seconds(30));
  const auto address = tcp::Resolve("127.0.0.1:0", /*to_listen=*/true);
  const auto listening = tcp::ListenOn(address->front());
  auto client = tcp::ConnectTo(tcp::LocalAddress(listening->get()), deadline);
  internal::PollOne(listening->get(), POLLIN, deadline);
  internal::ReadySockets one, other;
  one.control = std::move(*client);
  other.control =
      internal::Fd(accept4(listening->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  one.hellos.ours = internal::ControlHello(options, internal::RandomLinkId(), 1);
  one.hellos.theirs = internal::ControlHello(options, one.hellos.ours.link_id(), 2);
  other.hellos = {.ours = one.hellos.theirs, .theirs = one.hellos.ours};
  return {std::move(one), std::move(other)};
}

TEST_F(Roce, WhicheverVerbFailsInASetUpBothSidesAreTold) {
  libraries_.verbs = verbs_;
  const auto node = roce::RoceNode::Open(libraries_, SmallArena(), kExempt);
  ASSERT_TRUE(node.ok()) << node.status();
  const roce::RocePart part = PartOf(*node);
  const LinkOptions options = SmallOptions("rack");
  const size_t live = verbs_->live_objects();
  const std::pair<const char*, int> steps[] = {
      {"QueryGidTable", 1}, {"QueryPort", 1}, {"CreateCompChannel", 1}, {"CreateCq", 1},
      {"CreateCq", 2},      {"CreateQp", 1},  {"CreateQp", 6},          {"ModifyQp", 1},
      {"ModifyQp", 7},      {"ModifyQp", 18}, {"PostRecv", 1},          {"PostSend", 1}};
  for (const auto& [verb, nth] : steps) {
    SCOPED_TRACE(absl::StrCat(verb, " ", nth));
    auto [one, other] = GreetedPair(options);
    verbs_->FailCall(verb, nth, ENOMEM);
    absl::Status said[2];
    const auto set_up = [&](internal::ReadySockets sockets, absl::Status* status) {
      *status =
          roce::SetUpWire(part, sockets, options, Deadline::After(absl::Seconds(30))).status();
    };
    std::thread peer([&, moved = std::make_shared<internal::ReadySockets>(std::move(other))] {
      set_up(std::move(*moved), &said[1]);
    });
    set_up(std::move(one), &said[0]);
    peer.join();
    for (const absl::Status& status : said) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(Words(status), HasSubstr("Cannot allocate memory"));
    }
    EXPECT_EQ(verbs_->live_objects(), live);
  }
}

TEST_F(Roce, PathThatDropsLargePacketsIsNamedOnBothSidesWhicheverFindsItFirst) {
  libraries_.verbs = verbs_;
  const auto node = roce::RoceNode::Open(libraries_, SmallArena(), kExempt);
  ASSERT_TRUE(node.ok()) << node.status();
  verbs_->DropLargerThan(1000);
  const roce::RocePart part = PartOf(*node);
  const LinkOptions options = SmallOptions("rack");
  for (int i = 0; i < 50; ++i) {
    auto [one, other] = GreetedPair(options);
    absl::Status said[2];
    // As in a link's life: whoever has failed closes its socket.
    const auto set_up = [&](internal::ReadySockets sockets, absl::Status* status) {
      *status =
          roce::SetUpWire(part, sockets, options, Deadline::After(absl::Seconds(30))).status();
    };
    std::thread peer([&, moved = std::make_shared<internal::ReadySockets>(std::move(other))] {
      set_up(std::move(*moved), &said[1]);
    });
    set_up(std::move(one), &said[0]);
    peer.join();
    for (const absl::Status& status : said) {
      ASSERT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      ASSERT_THAT(Words(status), AllOf(HasSubstr("packets of the path MTU, 1024 bytes, do not"),
                                       HasSubstr("set path_mtu lower")))
          << i;
    }
  }
}

TEST_F(Roce, PathThatDropsLargePacketsIsFoundAtConnectAndALowerMtuMendsIt) {
  verbs_->DropLargerThan(1000);
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), AllOf(HasSubstr("path MTU, 1024"), HasSubstr("set path_mtu lower")));
  RoceOptions lower = SmallArena();
  lower.path_mtu = 512;
  fabric_.reset();
  ASSERT_EQ(Open(lower), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
}

TEST_F(Roce, FatalDeviceEventEndsItsLinksInWords) {
  ASSERT_EQ(Link(), absl::OkStatus());
  verbs_->Raise(IBV_EVENT_PORT_ERR);  // may come back
  ASSERT_EQ(SendOne(1, 10), absl::OkStatus());
  ExpectOne(1, 10);
  verbs_->Raise(IBV_EVENT_DEVICE_FATAL);
  const absl::Status status = FirstError();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), HasSubstr("local catastrophic error"));
}

// Every fault of a link, often: the fabric lives on, and has again what it had before each.
class RoceAccount : public Roce {
 public:
  void Linked(const LinkOptions& options = SmallOptions("rack")) {
    ASSERT_EQ(Link(options), absl::OkStatus());
  }
  absl::Status ClientError() {
    absl::Status status;
    while (status.ok()) status = client_->Receive(Soon()).status();
    return status;
  }
  void DestroyedInFullFlight() {
    Linked();
    verbs_->Hold(true);
    for (uint32_t i = 0; i < SmallOptions("").slots; ++i) EXPECT_TRUE(SendOne(1, 60000).ok());
    client_.reset();
    verbs_->Hold(false);
    EXPECT_TRUE(absl::IsUnavailable(FirstError()));
  }
  void Cancelled() {
    Linked();
    EXPECT_TRUE(SendOne(1, 60000).ok());
    server_->Cancel("enough");
    EXPECT_TRUE(absl::IsUnavailable(ClientError()));
  }
  void RefusedKey() {
    Linked();
    verbs_->RefuseNextWrite();
    EXPECT_TRUE(SendOne(1, 100).ok());
    EXPECT_TRUE(absl::IsUnavailable(ClientError()));
  }
  void NothingCompletes() {
    LinkOptions options = SmallOptions("rack");
    options.progress_timeout = absl::Milliseconds(100);
    Linked(options);
    verbs_->Hold(true);
    EXPECT_TRUE(SendOne(1, 100).ok());
    EXPECT_TRUE(absl::IsUnavailable(ClientError()));
    verbs_->Hold(false);
  }
  void DeviceEvent() {
    Linked();
    verbs_->Raise(IBV_EVENT_DEVICE_FATAL);
    EXPECT_TRUE(absl::IsUnavailable(FirstError()));
  }
  void LargePacketsAreLost() {
    verbs_->DropLargerThan(1000);
    EXPECT_FALSE(Link().ok());
    verbs_->DropLargerThan(0);
  }
  void NoQueuePair() {
    verbs_->FailCall("CreateQp", 2, ENOMEM);
    EXPECT_FALSE(Link().ok());
  }
  void StrangersAfterTheHello() {
    Linked();
    const std::string noise(64, '\xff');
    const internal::Fd garbage = Greet(*listener_);
    EXPECT_EQ(send(garbage.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 64);
    const internal::Fd gone = Greet(*listener_);
  }
  void Run(void (RoceAccount::*fault)()) {
    (this->*fault)();
    client_.reset();
    server_.reset();
    listener_.reset();
  }
};

TEST_F(RoceAccount, NoFaultLeavesQueuePairsDescriptorsOrMemoryBehind) {
  using Self = RoceAccount;
  const std::pair<const char*, void (Self::*)()> faults[] = {
      {"destroyed in full flight", &Self::DestroyedInFullFlight},
      {"cancelled", &Self::Cancelled},
      {"a refused key", &Self::RefusedKey},
      {"nothing completes", &Self::NothingCompletes},
      {"the device's event", &Self::DeviceEvent},
      {"large packets are lost", &Self::LargePacketsAreLost},
      {"no queue pair", &Self::NoQueuePair},
      {"strangers after the hello", &Self::StrangersAfterTheHello},
  };
  ASSERT_EQ(Open(), absl::OkStatus());
  const size_t objects = verbs_->live_objects();
  const size_t fds = OpenFds();
  for (const auto& [name, fault] : faults) {
    SCOPED_TRACE(name);
    for (int i = 0; i < 4; ++i) {
      Run(fault);
      ASSERT_EQ(verbs_->live_objects(), objects);
      ASSERT_EQ(verbs_->unaccounted(), 0u);
    }
    ASSERT_LE(AwaitFds(fds), fds);
  }
  // Slots come out of one arena: what a link kept of it would be missing for the next ones.
  const RoceOptions arena = SmallArena();
  LinkOptions large = SmallOptions("rack");
  large.slots = static_cast<uint32_t>(arena.arena_bytes / 4 / (large.chunk_bytes + 4096)) - 1;
  EXPECT_EQ(Link(large), absl::OkStatus());
}

TEST_F(Roce, ReconnectsLeaveNothingBehind) {
  ASSERT_EQ(Open(), absl::OkStatus());
  const size_t live = verbs_->live_objects();
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(Link(), absl::OkStatus()) << i;  // an arena that leaked would be full by now
    ASSERT_EQ(SendOne(1, 1000), absl::OkStatus());
    if (i % 3 == 0) client_->Cancel("round over");
    if (i % 3 == 1) {
      ASSERT_EQ(client_->Close(Soon()), absl::OkStatus());
    }
    client_.reset();
    server_.reset();
    listener_.reset();
    ASSERT_EQ(verbs_->live_objects(), live) << i;
  }
}

TEST_F(Roce, OtherTransportOnThePortIsRefusedInWords) {
  ASSERT_EQ(Link(), absl::OkStatus());
  const absl::Status tcp =
      MakeTcpFabric()->Connect(listener_->address(), SmallOptions("plain")).status();
  EXPECT_EQ(tcp.code(), absl::StatusCode::kFailedPrecondition) << tcp;
  EXPECT_THAT(Words(tcp), HasSubstr("\"plain\" speaks tcp"));
  auto listener = MakeTcpFabric()->Listen("127.0.0.1:0", SmallOptions("plain"));
  ASSERT_TRUE(listener.ok());
  const absl::Status roce = fabric_->Connect((*listener)->address(), SmallOptions("rack")).status();
  EXPECT_EQ(roce.code(), absl::StatusCode::kFailedPrecondition) << roce;
  EXPECT_THAT(Words(roce), HasSubstr("\"rack\" speaks roce"));
}

}  // namespace
}  // namespace tributary::transport
