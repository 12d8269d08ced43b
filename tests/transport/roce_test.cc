// What RoCE links promise beyond the conformance suite, over fake verbs: refusals at each step,
// devices that grant less, errors in words, nothing left behind.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/transport/fake_verbs.h"
#include "tests/transport/harness.h"
#include "transport/internal/hello.h"
#include "transport/roce.h"
#include "transport/roce/completion_error.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/gid.h"
#include "transport/roce/memlock.h"
#include "transport/roce/node.h"
#include "transport/roce/plan.h"
#include "transport/tcp.h"
#include "transport/tcp/greeting.h"

namespace tributary::transport {
namespace {

using roce::FakeVerbs;
using ::testing::HasSubstr;

constexpr roce::MemlockLimits kExempt{.limit_bytes = 0, .exempt = true};

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }
std::string Words(const absl::Status& status) { return std::string(status.message()); }

RoceOptions SmallArena() {
  RoceOptions options;
  options.arena_bytes = size_t{64} << 20;
  return options;
}

// A fabric over one fake device, and a link from it to itself.
class Roce : public ::testing::Test {
 protected:
  ~Roce() override {
    client_.reset();
    server_.reset();
    listener_.reset();
    fabric_.reset();
    EXPECT_EQ(verbs_->live_objects(), 0u);
    EXPECT_EQ(verbs_->unaccounted(), 0u);
    EXPECT_EQ(verbs_->unacknowledged(), 0u);
    EXPECT_EQ(verbs_->overflows(), 0u);
  }
  absl::Status Open(const RoceOptions& options = SmallArena()) {
    auto fabric = roce::MakeFabricOver(verbs_, options, kExempt);
    if (!fabric.ok()) return fabric.status();
    fabric_ = std::move(*fabric);
    return absl::OkStatus();
  }
  absl::Status Link(const LinkOptions& options = SmallOptions("rack")) {
    if (fabric_ == nullptr) {
      const absl::Status opened = Open();
      if (!opened.ok()) return opened;
    }
    auto listener = fabric_->Listen("127.0.0.1:0", options);
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    auto client = fabric_->Connect(listener_->address(), options);
    if (!client.ok()) return client.status();
    client_ = std::move(*client);
    auto server = listener_->Accept(Soon());
    if (!server.ok()) return server.status();
    server_ = std::move(*server);
    return absl::OkStatus();
  }
  absl::Status SendOne(uint8_t value, size_t bytes) {
    auto chunk = client_->Borrow(Soon());
    if (!chunk.ok()) return chunk.status();
    std::memset(chunk->data(), value, bytes);
    chunk->set_size(bytes);
    return client_->Send(std::move(*chunk));
  }
  void ExpectOne(uint8_t value, size_t bytes) {
    auto chunk = server_->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    ASSERT_EQ(chunk->size(), bytes);
    EXPECT_EQ(std::count(chunk->data(), chunk->data() + bytes, value), static_cast<long>(bytes));
  }
  absl::Status FirstError() {
    absl::Status status;
    while (status.ok()) status = server_->Receive(Soon()).status();
    return status;
  }

  std::shared_ptr<FakeVerbs> verbs_ = std::make_shared<FakeVerbs>();
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<transport::Link> client_;
  std::unique_ptr<transport::Link> server_;
};

TEST_F(Roce, EachVerbThatFailsAtTheStartIsAnErrorAndLeavesNothing) {
  for (const std::string verb :
       {"GetDeviceList", "OpenDevice", "QueryDevice", "AllocPd", "RegMr"}) {
    verbs_->FailCall(verb, 1, ENOMEM);
    const absl::Status status = Open();
    EXPECT_FALSE(status.ok()) << verb;
    EXPECT_THAT(Words(status), HasSubstr("Cannot allocate memory")) << verb;
    EXPECT_EQ(verbs_->live_objects(), 0u) << verb;
  }
  EXPECT_EQ(Open(), absl::OkStatus());
}

TEST_F(Roce, EachVerbThatFailsInASetUpIsAnErrorOnBothSidesAndTheNextLinkWorks) {
  // With three lanes each side creates three pairs and takes each through three states.
  const std::vector<std::pair<std::string, int>> steps = {
      {"QueryGidTable", 1}, {"QueryPort", 1}, {"CreateCompChannel", 1}, {"CreateCq", 1},
      {"CreateCq", 2},      {"CreateQp", 1},  {"CreateQp", 2},          {"CreateQp", 6},
      {"ModifyQp", 1},      {"ModifyQp", 7},  {"ModifyQp", 13},         {"ModifyQp", 18},
      {"PostRecv", 1},      {"PostRecv", 9},  {"PostSend", 1},          {"PostSend", 5}};
  ASSERT_EQ(Open(), absl::OkStatus());
  const size_t live = verbs_->live_objects();
  for (const auto& [verb, nth] : steps) {
    verbs_->FailCall(verb, nth, ENOMEM);
    const absl::Status status = Link();
    EXPECT_FALSE(status.ok()) << verb << " " << nth;
    client_.reset();
    server_.reset();
    listener_.reset();
    EXPECT_EQ(verbs_->live_objects(), live) << verb << " " << nth;
  }
  ASSERT_EQ(Link(), absl::OkStatus());
  ASSERT_EQ(SendOne(7, 100), absl::OkStatus());
  ExpectOne(7, 100);
}

TEST_F(Roce, ReasonOfTheAcceptorReachesTheConnecter) {
  ASSERT_EQ(Open(), absl::OkStatus());
  verbs_->port_attributes.state = IBV_PORT_DOWN;
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), HasSubstr("is down"));
}

TEST_F(Roce, DeviceThatGrantsLessGivesALinkWithFewerSlots) {
  verbs_->device_attributes.max_qp_wr = 20;  // slots = 4: 4 × 4 + 4 requests to send
  verbs_->device_attributes.max_cqe = 100;
  LinkOptions options = SmallOptions("small");
  options.slots = 64;
  ASSERT_EQ(Link(options), absl::OkStatus());
  std::vector<Chunk> held;
  while (true) {
    auto chunk = client_->Borrow(absl::Now() + absl::Milliseconds(20));
    if (!chunk.ok()) break;
    held.push_back(std::move(*chunk));
  }
  EXPECT_GE(held.size(), 1u);
  EXPECT_LE(held.size(), 4u);
  held.clear();
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(SendOne(static_cast<uint8_t>(i), 500), absl::OkStatus());
    ExpectOne(static_cast<uint8_t>(i), 500);
  }
}

TEST_F(Roce, ArenaBeyondTheDevicesLargestRegistrationIsSplit) {
  verbs_->device_attributes.max_mr_size = uint64_t{2} << 30;
  RoceOptions options;
  options.arena_bytes = size_t{5} << 30;  // pages that nobody touches cost nothing here
  ASSERT_EQ(Open(options), absl::OkStatus());
  EXPECT_EQ(verbs_->registrations(), 3u);
  EXPECT_LE(verbs_->largest_registration(), size_t{2} << 30);
  ASSERT_EQ(Link(), absl::OkStatus());
  ASSERT_EQ(SendOne(1, 64 * 1024), absl::OkStatus());
  ExpectOne(1, 64 * 1024);
}

TEST_F(Roce, SlotsNeverStraddleRegistrations) {
  // Three pages each: of a slot of 17 pages nothing fits, of one page three times three.
  verbs_->device_attributes.max_mr_size = 3 * 4096 + 1000;
  RoceOptions options;
  options.arena_bytes = 9 * 4096;
  ASSERT_EQ(Open(options), absl::OkStatus());
  EXPECT_EQ(verbs_->registrations(), 3u);
  const absl::Status refused = Link();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(Words(refused), HasSubstr("raise arena_bytes"));
  LinkOptions tiny = SmallOptions("tiny");
  tiny.chunk_bytes = 1000;
  tiny.slots = 2;  // four pages a side
  ASSERT_EQ(Link(tiny), absl::OkStatus());
  ASSERT_EQ(SendOne(9, 1000), absl::OkStatus());
  ExpectOne(9, 1000);
}

TEST_F(Roce, CompletionsOfManyQueuePairsOutOfOrderArriveInOrder) {
  LinkOptions options = SmallOptions("wide");
  options.lanes = 8;
  options.slots = 32;
  ASSERT_EQ(Link(options), absl::OkStatus());
  verbs_->SplitWrites(true);
  std::thread sender([&] {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(SendOne(static_cast<uint8_t>(i), 1 + static_cast<size_t>(i) % 3000),
                absl::OkStatus());
    }
  });
  for (int i = 0; i < 1000; ++i) {
    ExpectOne(static_cast<uint8_t>(i), 1 + static_cast<size_t>(i) % 3000);
  }
  sender.join();
}

TEST_F(Roce, NothingIsPublishedBeforeItsCompletion) {
  ASSERT_EQ(Link(), absl::OkStatus());
  verbs_->Hold(true);
  ASSERT_EQ(SendOne(3, 5000), absl::OkStatus());
  EXPECT_EQ(server_->Receive(absl::Now() + absl::Milliseconds(30)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  verbs_->Hold(false);
  ExpectOne(3, 5000);
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
  auto sockets = tcp::Greet(address->front(), SmallOptions("odd"), "roce",
                            internal::Deadline::After(absl::Seconds(30)));
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  return std::move(sockets->control);
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
  char waste[4096];
  ASSERT_EQ(tcp::SetBlocking(silent.get()), absl::OkStatus());
  while (recv(silent.get(), waste, sizeof(waste), 0) > 0) {
  }
  EXPECT_EQ(listener_->Accept(absl::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(Roce, OnlySomeRequestsAskForCompletions) {
  LinkOptions options = SmallOptions("many");
  options.slots = 64;
  options.lanes = 1;
  ASSERT_EQ(Link(options), absl::OkStatus());
  const size_t sent = verbs_->sent();
  const size_t signalled = verbs_->signalled();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(SendOne(1, 100), absl::OkStatus());
    ExpectOne(1, 100);
  }
  ASSERT_EQ(client_->Close(Soon()), absl::OkStatus());
  EXPECT_EQ(client_->stats().chunks_sent, 1000u);
  // One in sixteen for chunks as well as grants, and the flush at the end.
  EXPECT_GE(verbs_->sent() - sent, 1900u);
  EXPECT_LE(verbs_->signalled() - signalled, 2100u / 16 + 2);
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

TEST_F(Roce, PathThatDropsLargePacketsIsFoundAtConnectAndNamed) {
  verbs_->DropLargerThan(1000);
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status), HasSubstr("path MTU, 1024"));
  EXPECT_THAT(Words(status), HasSubstr("set path_mtu lower"));
  RoceOptions lower = SmallArena();
  lower.path_mtu = 512;
  fabric_.reset();
  ASSERT_EQ(Open(lower), absl::OkStatus());
  verbs_->DropLargerThan(1000);
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

TEST_F(Roce, AddressWithoutAGidIsRefusedWithWhatThereIs) {
  verbs_->gids.erase(verbs_->gids.begin() + 1);
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(Words(status), HasSubstr("127.0.0.1"));
  EXPECT_THAT(Words(status), HasSubstr("index 0 ::ffff:127.0.0.1 (RoCE v1)"));
}

TEST_F(Roce, Ipv6IsAsGood) {
  ASSERT_EQ(Open(), absl::OkStatus());
  auto listener = fabric_->Listen("[::1]:0", SmallOptions("six"));
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 on this machine: " << listener.status();
  auto client = fabric_->Connect((*listener)->address(), SmallOptions("six"));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*listener)->Accept(Soon()).ok());
}

TEST_F(Roce, MissingDevicesAndWrongNamesSayWhatToDo) {
  RoceOptions named = SmallArena();
  named.device = "mlx5_7";
  EXPECT_THAT(Words(Open(named)), HasSubstr("no RDMA device \"mlx5_7\"; there are: fake0"));
  verbs_->no_device = true;
  EXPECT_THAT(Words(Open()), HasSubstr("rdma link"));
}

TEST_F(Roce, OptionsOutOfRangeAreRefusedByName) {
  RoceOptions bad = SmallArena();
  bad.path_mtu = 1500;
  EXPECT_THAT(Words(Open(bad)), HasSubstr("path_mtu is 1500"));
  bad = SmallArena();
  bad.hop_limit = 0;
  EXPECT_THAT(Words(Open(bad)), HasSubstr("hop_limit is 0"));
}

TEST_F(Roce, CudaMemoryIsRefusedWithItsReason) {
  RoceOptions cuda = SmallArena();
  cuda.arena_memory = MemoryKind::kCuda;
  absl::Status status = Open(cuda);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Words(status), HasSubstr("this build has no CUDA"));
  EXPECT_THAT(Words(status), HasSubstr("does not register memory by dma-buf"));
  verbs_->dmabuf_errno = EBADF;  // what a kernel says that supports it
  EXPECT_THAT(Words(Open(cuda)), HasSubstr("can register GPU memory by dma-buf"));
}

TEST_F(Roce, MemoryThatMayNotBeLockedIsRefusedAtTheStartWithTheNeed) {
  const roce::MemlockLimits limits{.limit_bytes = 64 * 1024, .exempt = false};
  const absl::Status status = roce::MakeFabricOver(verbs_, SmallArena(), limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  // 64 MiB of arena and 4 MiB for the drivers' queues.
  EXPECT_THAT(Words(status), HasSubstr("must lock 71303168 bytes"));
  EXPECT_THAT(Words(status), HasSubstr("may lock 65536"));
  EXPECT_THAT(Words(status), HasSubstr("ulimit -l 69632"));
  EXPECT_THAT(Words(status), HasSubstr("LimitMEMLOCK=infinity"));
  EXPECT_EQ(verbs_->calls("OpenDevice"), 0u);
  EXPECT_EQ(roce::CheckMemlock(1 << 30, kExempt), absl::OkStatus());
  EXPECT_EQ(roce::CheckMemlock(65536, limits), absl::OkStatus());
}

ibv_gid_entry Gid(uint32_t port, uint32_t index, const std::string& address, uint32_t type) {
  ibv_gid_entry entry{};
  entry.port_num = port;
  entry.gid_index = index;
  entry.gid_type = type;
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), entry.gid.raw), 1);
  return entry;
}

TEST(RoceGid, IsTheOneOfTheControlSocketsAddressAndOfVersion2) {
  const std::vector<std::vector<ibv_gid_entry>> tables = {
      {Gid(1, 0, "fe80::5", IBV_GID_TYPE_ROCE_V1), Gid(1, 1, "fe80::5", IBV_GID_TYPE_ROCE_V2)},
      {Gid(1, 0, "fe80::6", IBV_GID_TYPE_ROCE_V1), Gid(1, 1, "fe80::6", IBV_GID_TYPE_ROCE_V2),
       Gid(1, 2, "::ffff:10.0.0.6", IBV_GID_TYPE_ROCE_V1),
       Gid(1, 3, "::ffff:10.0.0.6", IBV_GID_TYPE_ROCE_V2),
       Gid(2, 0, "2001:db8::6", IBV_GID_TYPE_ROCE_V2)},
      {Gid(1, 0, "fe80::7", IBV_GID_TYPE_IB)}};
  roce::GidWish wish;
  wish.local = Gid(0, 0, "::ffff:10.0.0.6", 0).gid;
  auto choice = roce::PickGid(tables, wish);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->device, 1u);
  EXPECT_EQ(choice->entry.gid_index, 3u);
  wish.local = Gid(0, 0, "2001:db8::6", 0).gid;
  choice = roce::PickGid(tables, wish);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->entry.port_num, 2u);
  // An address that no table has; unless the index is told.
  wish.local = Gid(0, 0, "::ffff:127.0.0.1", 0).gid;
  EXPECT_EQ(roce::PickGid(tables, wish).status().code(), absl::StatusCode::kNotFound);
  wish.index = 1;
  choice = roce::PickGid(tables, wish);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->device, 0u);
  wish.index = 0;
  EXPECT_THAT(Words(roce::PickGid(tables, wish).status()), HasSubstr("RoCE v1"));
  wish.index = 9;
  EXPECT_THAT(Words(roce::PickGid(tables, wish).status()), HasSubstr("no GID of index 9"));
  // An IPoIB interface's hardware address names the port.
  wish.index = -1;
  wish.ipoib = Gid(0, 0, "fe80::7", 0).gid;
  choice = roce::PickGid(tables, wish);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->device, 2u);
}

TEST(RocePlan, ReceiveQueuesHoldAllThatThePeerMaySendAndClampsAreEven) {
  auto plan = roce::PlanQueues(8, 16, 2, {.queue_requests = 16384, .completions = 1 << 20});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->slots, 8u);
  EXPECT_EQ(plan->grant_room, 16u);
  EXPECT_GE(plan->depths.receive, 8u + 16u + 2u);
  EXPECT_EQ(plan->completions, 2 * (plan->depths.send + plan->depths.receive));
  plan = roce::PlanQueues(1024, 1024, 8, {.queue_requests = 256, .completions = 1000});
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->completions, 1000u);
  EXPECT_GE(plan->slots, 1u);
  EXPECT_GE(plan->grant_room, 1u);
  EXPECT_LT(plan->slots, 32u);
  EXPECT_EQ(roce::PlanQueues(8, 8, 8, {.queue_requests = 4, .completions = 1000}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

v1::RoceEndpoint GoodEndpoint() {
  v1::RoceEndpoint endpoint;
  endpoint.set_gid(std::string(16, 'g'));
  endpoint.set_mtu(1024);
  for (uint32_t i = 0; i < 2; ++i) {
    endpoint.add_queue_pair(i);
    endpoint.add_psn(i);
    endpoint.add_slot_address(4096 * i);
    endpoint.add_slot_key(1);
  }
  endpoint.set_grant_room(2);
  return endpoint;
}

TEST(RoceEndpoint, FieldsOutOfRangeAreRefused) {
  EXPECT_EQ(roce::CheckEndpoint(GoodEndpoint(), false, 2, 8), absl::OkStatus());
  const auto refused = [](auto change) {
    v1::RoceEndpoint endpoint = GoodEndpoint();
    change(endpoint);
    return roce::CheckEndpoint(endpoint, false, 2, 8).code();
  };
  EXPECT_EQ(refused([](auto& e) { e.set_gid("short"); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.set_mtu(1500); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.set_lid(70000); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.set_psn(0, 1 << 24); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.add_queue_pair(3); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.add_slot_key(3); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.clear_slot_address(); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.set_grant_room(0); }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& e) { e.set_infiniband(true); }),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(roce::CheckEndpoint(GoodEndpoint(), false, 2, 1).code(), absl::StatusCode::kDataLoss);
}

TEST(RoceEndpoint, BytesOfVersionOneNeverChange) {
  std::ifstream in(std::string(TRIBUTARY_SOURCE_DIR) + "/tests/golden/link/roce_v1.bin",
                   std::ios::binary);
  const std::string golden(std::istreambuf_iterator<char>(in), {});
  // Three messages behind their prefixes, taken apart here as a socket's reader does.
  std::vector<std::string> messages;
  for (size_t at = 0; at < golden.size();) {
    uint64_t length = 0;
    std::memcpy(&length, golden.data() + at + 8, sizeof(length));
    messages.push_back(golden.substr(at + 16, length));
    at += 16 + length;
  }
  ASSERT_EQ(messages.size(), 3u);
  const auto span = [](const std::string& text) {
    return ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  const auto hello = internal::DecodeHello(span(messages[0]));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->transport(), "roce");
  const auto set_up = roce::DecodeSetUp(span(messages[1]));
  ASSERT_TRUE(set_up.ok()) << set_up.status();
  const v1::RoceEndpoint& endpoint = set_up->endpoint();
  EXPECT_EQ(
      roce::CheckEndpoint(endpoint, /*infiniband=*/false, /*queue_pairs=*/2, /*peer_slots=*/8),
      absl::OkStatus());
  EXPECT_EQ(endpoint.mtu(), 1024u);
  EXPECT_EQ(endpoint.queue_pair(1), 300u);
  EXPECT_EQ(endpoint.psn(1), 0xffffffu);
  EXPECT_EQ(endpoint.slot_address(1), 0x7f0000103000u);
  EXPECT_EQ(endpoint.slot_key(0), 0xabcu);
  EXPECT_EQ(endpoint.grant_room(), 8u);
  const auto connected = roce::DecodeSetUp(span(messages[2]));
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_TRUE(connected->connected());
  EXPECT_EQ(
      internal::EncodeHello(*hello) + roce::EncodeSetUp(*set_up) + roce::EncodeSetUp(*connected),
      golden);
}

TEST(RoceErrors, KnownStatusesHaveHints) {
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_RETRY_EXC_ERR)), HasSubstr("PFC"));
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_REM_ACCESS_ERR)), HasSubstr("remote key"));
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_RNR_RETRY_EXC_ERR)), HasSubstr("receive request"));
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_LOC_PROT_ERR)), HasSubstr("local key"));
}

TEST(RoceFabric, WithoutADeviceTheStartIsRefusedAndSaysHowToMendIt) {
  RoceOptions options;
  options.device = "no such device";
  const auto fabric = MakeRoceFabric(options);
  EXPECT_EQ(fabric.status().code(), absl::StatusCode::kFailedPrecondition) << fabric.status();
}

}  // namespace
}  // namespace tributary::transport
