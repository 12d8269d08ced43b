// What RoCE links promise beyond the conformance suite, over fake verbs: refusals at each step,
// devices that grant less, chunks in order.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/transport/roce_fixture.h"
#include "transport/auto.h"
#include "transport/roce.h"

namespace tributary::transport {
namespace {

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

// Not chosen steps, but each call there is: what a device may refuse grows with the code.
TEST_F(Roce, WhicheverCallOfASetUpFailsNothingIsLeft) {
  ASSERT_EQ(Open(), absl::OkStatus());
  const size_t live = verbs_->live_objects();
  for (const std::string verb : {"QueryGidTable", "QueryPort", "CreateCompChannel", "CreateCq",
                                 "CreateQp", "ModifyQp", "PostRecv", "PostSend"}) {
    const size_t before = verbs_->calls(verb);
    ASSERT_EQ(Link(), absl::OkStatus());
    client_.reset();
    server_.reset();
    listener_.reset();
    const size_t calls = verbs_->calls(verb) - before;
    ASSERT_GE(calls, 2u) << verb;  // both sides
    for (size_t nth = 1; nth <= calls; ++nth) {
      verbs_->FailCall(verb, static_cast<int>(nth), ENOMEM);
      // Towards the end a call may belong to a link that is made: what counts is what is left.
      Link().IgnoreError();
      client_.reset();
      server_.reset();
      listener_.reset();
      ASSERT_EQ(verbs_->live_objects(), live) << verb << " " << nth;
      ASSERT_EQ(verbs_->unaccounted(), 0u) << verb << " " << nth;
    }
  }
}

TEST_F(Roce, OptionsReachEveryQueuePair) {
  RoceOptions options = SmallArena();
  options.gid_index = 2;
  options.traffic_class = 106;
  options.hop_limit = 3;
  options.service_level = 4;
  options.retries = 5;
  options.ack_timeout = absl::Milliseconds(16);  // 4.096 µs × 2^12 is 16.8 ms
  ASSERT_EQ(Open(options), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
  const auto receive = verbs_->receive_attributes();
  ASSERT_EQ(receive.size(), 6u);  // three lanes on two sides
  for (const ibv_qp_attr& one : receive) {
    EXPECT_EQ(one.ah_attr.is_global, 1);
    EXPECT_EQ(one.ah_attr.grh.sgid_index, 2);
    EXPECT_EQ(one.ah_attr.grh.traffic_class, 106);
    EXPECT_EQ(one.ah_attr.grh.hop_limit, 3);
    EXPECT_EQ(one.ah_attr.sl, 4);
    EXPECT_EQ(one.path_mtu, IBV_MTU_1024);  // the port's own
  }
  const auto send = verbs_->send_attributes();
  ASSERT_EQ(send.size(), 6u);
  for (const ibv_qp_attr& one : send) {
    EXPECT_EQ(one.retry_cnt, 5);
    EXPECT_LT(one.rnr_retry, 7);  // 7 would be for ever
    EXPECT_EQ(one.timeout, 12);
  }
}

// A device with several ports: one of them is named, and has the address's GID too.
TEST_F(Roce, TheConfigsPortIsEveryQueuePairs) {
  const std::vector<ibv_gid_entry> first = verbs_->gids;
  for (ibv_gid_entry second : first) {
    second.port_num = 2;
    verbs_->gids.push_back(second);
  }
  RoceOptions options = SmallArena();
  options.port = 2;
  ASSERT_EQ(Open(options), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
  for (const ibv_qp_attr& one : verbs_->receive_attributes()) EXPECT_EQ(one.ah_attr.port_num, 2);
  client_.reset();
  server_.reset();
  listener_.reset();
  options.port = 3;
  ASSERT_EQ(Open(options), absl::OkStatus());
  EXPECT_THAT(Words(Link()), HasSubstr(" on port 3 as a RoCE v2 GID"));
}

TEST_F(Roce, PathMtuIsTheLeastOfBothSidesPortsAndOptions) {
  const auto mtu = [&](uint32_t server_mtu, uint32_t client_mtu) {
    libraries_.verbs = verbs_;
    RoceOptions options = SmallArena();
    options.path_mtu = server_mtu;
    const auto server = roce::MakeFabricOver(libraries_, options, kExempt);
    options.path_mtu = client_mtu;
    const auto client = roce::MakeFabricOver(libraries_, options, kExempt);
    auto listener = (*server)->Listen("127.0.0.1:0", SmallOptions("rack"));
    auto connected = (*client)->Connect((*listener)->address(), SmallOptions("rack"));
    EXPECT_TRUE(connected.ok()) << connected.status();
    EXPECT_TRUE((*listener)->Accept(Soon()).ok());
    std::set<int> codes;
    const auto all = verbs_->receive_attributes();
    for (size_t i = all.size() - 6; i < all.size(); ++i) codes.insert(all[i].path_mtu);
    return codes;
  };
  EXPECT_EQ(mtu(0, 0), std::set<int>{IBV_MTU_1024});
  EXPECT_EQ(mtu(512, 0), std::set<int>{IBV_MTU_512});
  EXPECT_EQ(mtu(0, 256), std::set<int>{IBV_MTU_256});
  EXPECT_EQ(mtu(4096, 2048), std::set<int>{IBV_MTU_1024});
}

// By the same code, but for the address: within a subnet, queue pairs go by LID.
TEST_F(Roce, InfinibandGoesByLid) {
  verbs_->port_attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  verbs_->port_attributes.lid = 77;
  for (ibv_gid_entry& entry : verbs_->gids) entry.gid_type = IBV_GID_TYPE_IB;
  RoceOptions options = SmallArena();
  options.gid_index = 0;
  options.service_level = 2;
  ASSERT_EQ(Open(options), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
  for (const ibv_qp_attr& one : verbs_->receive_attributes()) {
    EXPECT_EQ(one.ah_attr.is_global, 0);
    EXPECT_EQ(one.ah_attr.dlid, 77);
    EXPECT_EQ(one.ah_attr.sl, 2);
  }
  ASSERT_EQ(SendOne(7, 3000), absl::OkStatus());
  ExpectOne(7, 3000);
}

TEST_F(Roce, MoreLanesThanEightAreEightQueuePairs) {
  LinkOptions options = SmallOptions("wide");
  options.lanes = 16;
  ASSERT_EQ(Link(options), absl::OkStatus());
  EXPECT_EQ(verbs_->receive_attributes().size(), 16u);  // of both sides
  ASSERT_EQ(SendOne(7, 3000), absl::OkStatus());
  ExpectOne(7, 3000);
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
  const LogCapture log;
  ASSERT_EQ(Link(options), absl::OkStatus());
  EXPECT_THAT(log.text(), HasSubstr("RDMA device fake0 grants 20 requests a queue and 100 "
                                    "completions: links have 4 slots instead of 64"));
  std::vector<Chunk> held;
  while (true) {
    auto chunk = client_->Borrow(Deadline::After(absl::Milliseconds(20)));
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

TEST_F(Roce, WhicheverPieceOfAnArenaCannotBeRegisteredThoseBeforeItAreGivenBack) {
  verbs_->device_attributes.max_mr_size = uint64_t{2} << 30;
  RoceOptions options;
  options.arena_bytes = size_t{5} << 30;
  for (int piece = 1; piece <= 3; ++piece) {
    SCOPED_TRACE(piece);
    const size_t made = verbs_->registrations();
    verbs_->FailCall("RegMr", piece, ENOMEM);
    const absl::Status status = Open(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(Words(status), HasSubstr("fake0"));
    EXPECT_EQ(verbs_->registrations(), made + static_cast<size_t>(piece) - 1);
    EXPECT_EQ(verbs_->live_objects(), 0u);
  }
}

TEST_F(Roce, SlotsNeverStraddleRegistrations) {
  // Three pages each: of a slot of 17 pages nothing fits, of one page three times each.
  verbs_->device_attributes.max_mr_size = 3 * 4096 + 1000;
  RoceOptions options;
  options.arena_bytes = 300 * 4096;
  ASSERT_EQ(Open(options), absl::OkStatus());
  EXPECT_EQ(verbs_->registrations(), 100u);
  const absl::Status refused = Link();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(Words(refused), HasSubstr("room for 0 in the 0 bytes that are for such links; raise "
                                        "arena_bytes"));
  LinkOptions tiny = SmallOptions("tiny");
  tiny.chunk_bytes = 1000;
  tiny.slots = 2;  // four pages a side
  ASSERT_EQ(Link(tiny), absl::OkStatus());
  ASSERT_EQ(SendOne(9, 1000), absl::OkStatus());
  ExpectOne(9, 1000);
}

TEST_F(Roce, ArenaOfWhatALinkIsSaidToTakeHoldsOne) {
  const std::pair<uint32_t, size_t> shapes[] = {
      {2, size_t{64} << 20}, {8, size_t{1} << 20}, {3, 64 * 1024 + 1}, {256, 64}};
  for (const auto& [slots, chunk_bytes] : shapes) {
    SCOPED_TRACE(absl::StrCat(slots, " slots of ", chunk_bytes));
    RoceOptions options;
    // Both ends are of this fabric.
    options.arena_bytes = 2 * rdma::LinkArenaBytes(slots, chunk_bytes);
    ASSERT_EQ(Open(options), absl::OkStatus());
    LinkOptions shape = SmallOptions("shape");
    shape.slots = slots;
    shape.chunk_bytes = chunk_bytes;
    ASSERT_EQ(Link(shape), absl::OkStatus());
    ASSERT_EQ(SendOne(1, 64), absl::OkStatus());
    ExpectOne(1, 64);
    client_.reset();
    server_.reset();
    listener_.reset();
  }
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

TEST_F(Roce, AddressWithoutAGidIsRefusedWithWhatThereIs) {
  verbs_->gids.erase(verbs_->gids.begin() + 1);
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(Words(status), HasSubstr("127.0.0.1"));
  EXPECT_THAT(Words(status), HasSubstr("fake0 port 1 index 0 127.0.0.1 (RoCE v1)"));
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

TEST_F(Roce, MemoryThatMayNotBeLockedIsRefusedAtTheStartWithTheNeed) {
  const rdma::MemlockLimit limit{.bytes = 64 * 1024, .hard_bytes = 64 * 1024};
  libraries_.verbs = verbs_;
  const absl::Status status = roce::MakeFabricOver(libraries_, SmallArena(), limit).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  // 64 MiB of arena and 4 MiB for the drivers' queues.
  EXPECT_THAT(Words(status), HasSubstr("71303168 bytes"));
  EXPECT_THAT(Words(status), HasSubstr("64 KiB"));
  EXPECT_THAT(Words(status), HasSubstr("ulimit -l 69632"));
  EXPECT_THAT(Words(status), HasSubstr("LimitMEMLOCK=infinity"));
  EXPECT_EQ(verbs_->calls("OpenDevice"), 0u);
}

// A rack's: towards its children and towards its parent. Whoever takes all of theirs leaves the
// others' alone, and one device is opened, with one arena.
TEST_F(Roce, FabricsOverTheSameDevicesKeepToTheirShareOfTheArena) {
  // As a config has it: a little more than the slots of a link's end.
  LinkOptions small = SmallOptions("rack");
  small.chunk_bytes = size_t{1} << 20;
  const size_t end = rdma::LinkArenaBytes(small.slots, small.chunk_bytes);
  libraries_.verbs = verbs_;
  RoceOptions options;
  options.arena_bytes = 6 * end;
  auto devices = roce::RoceNode::Open(libraries_, options, kExempt);
  ASSERT_TRUE(devices.ok()) << devices.status();
  const auto to_children = MakeRoceFabric(*devices, 4 * end, 2 * end);
  const auto to_parent = MakeRoceFabric(*devices, 2 * end, 0);
  devices->reset();
  EXPECT_EQ(verbs_->calls("OpenDevice"), 1u);
  EXPECT_EQ(verbs_->calls("RegMr"), 1u);
  std::vector<std::unique_ptr<class Link>> links;
  const auto make = [&](Fabric& fabric) {
    auto listener = fabric.Listen("127.0.0.1:0", small);
    EXPECT_TRUE(listener.ok()) << listener.status();
    auto client = fabric.Connect((*listener)->address(), small);
    if (!client.ok()) return client.status();
    auto server = (*listener)->Accept(Soon());
    EXPECT_TRUE(server.ok()) << server.status();
    links.push_back(*std::move(client));
    links.push_back(*std::move(server));
    return absl::OkStatus();
  };
  ASSERT_EQ(make(*to_children), absl::OkStatus());
  ASSERT_EQ(make(*to_children), absl::OkStatus());
  const absl::Status full = make(*to_children);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(Words(full), HasSubstr("the RDMA arena has room for 0 in the "));
  ASSERT_EQ(make(*to_parent), absl::OkStatus());
  EXPECT_EQ(make(*to_parent).code(), absl::StatusCode::kResourceExhausted);
  links.erase(links.begin(), links.begin() + 2);  // what it gives back is its fabric's again
  EXPECT_EQ(make(*to_parent).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(make(*to_children), absl::OkStatus());
}

// No slot straddles two registrations: what is lost at their ends the children go without, and not
// the parent.
TEST_F(Roce, WhatIsLostBetweenRegistrationsIsNotTakenFromTheKeptShare) {
  LinkOptions link = SmallOptions("rack");
  link.chunk_bytes = 2 * 4096;  // with its header three pages
  link.slots = 1;
  const size_t slot = size_t{3} * 4096, end = 2 * slot;
  verbs_->device_attributes.max_mr_size = 5 * 4096;  // a slot each, and two pages lost
  libraries_.verbs = verbs_;
  RoceOptions options;
  options.arena_bytes = size_t{8} * 5 * 4096;  // 8 slots of 13
  auto devices = roce::RoceNode::Open(libraries_, options, kExempt);
  ASSERT_TRUE(devices.ok()) << devices.status();
  const auto to_children = MakeRoceFabric(*devices, options.arena_bytes - 2 * end, 2 * end);
  const auto to_parent = MakeRoceFabric(*devices, 2 * end, 0);
  std::vector<std::unique_ptr<class Link>> links;
  for (Fabric* const fabric : {to_children.get(), to_children.get(), to_parent.get()}) {
    const bool beyond = links.size() == 2 && fabric == to_children.get();
    auto listener = fabric->Listen("127.0.0.1:0", link);
    ASSERT_TRUE(listener.ok()) << listener.status();
    auto client = fabric->Connect((*listener)->address(), link);
    EXPECT_EQ(client.ok(), !beyond) << client.status();
    if (!client.ok()) continue;
    auto server = (*listener)->Accept(Soon());
    ASSERT_TRUE(server.ok()) << server.status();
    links.push_back(*std::move(client));
    links.push_back(*std::move(server));
  }
  EXPECT_EQ(links.size(), 4u);
}

TEST(RoceFabric, WithoutADeviceTheStartIsRefusedAndSaysHowToMendIt) {
  RoceOptions options;
  options.device = "no such device";
  const auto fabric = MakeRoceFabric(options);
  EXPECT_EQ(fabric.status().code(), absl::StatusCode::kFailedPrecondition) << fabric.status();
}

TEST_F(Roce, AutoTakesItOnANetworkInCommonAndDoesNotEvenTryElsewhere) {
  const auto side = [](const std::shared_ptr<FakeVerbs>& verbs) {
    roce::Libraries libraries;
    libraries.verbs = verbs;
    const auto devices = roce::RoceNode::Open(libraries, SmallArena(), kExempt);
    EXPECT_TRUE(devices.ok()) << devices.status();
    std::vector<AutoCandidate> candidates;
    candidates.push_back(RoceCandidate(*devices, SmallArena().arena_bytes, 0, "127.0.0.1:0"));
    candidates.push_back(TcpCandidate("127.0.0.1:0"));
    return MakeAutoFabric(std::move(candidates));
  };
  // Beside the loopback addresses, which say nothing of a network.
  ibv_gid_entry entry = verbs_->gids.back();
  entry.gid_index = static_cast<uint32_t>(verbs_->gids.size());
  ASSERT_EQ(inet_pton(AF_INET6, "::ffff:10.0.0.5", entry.gid.raw), 1);
  verbs_->gids.push_back(entry);
  const auto infiniband = std::make_shared<FakeVerbs>();
  entry.gid_index = 0;
  entry.gid_type = IBV_GID_TYPE_IB;
  ASSERT_EQ(inet_pton(AF_INET6, "fe80::5", entry.gid.raw), 1);
  infiniband->gids = {entry};
  const auto here = side(verbs_);
  const auto elsewhere = side(infiniband);
  const auto link_over = [&](Fabric& server, Fabric& client) {
    auto listener = server.Listen("", SmallOptions("server"));
    EXPECT_TRUE(listener.ok()) << listener.status();
    auto link = client.Connect((*listener)->address(), SmallOptions("client"));
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? std::string((*link)->transport()) : "";
  };
  EXPECT_EQ(link_over(*here, *here), "roce");
  const LogCapture log;
  EXPECT_EQ(link_over(*here, *elsewhere), "tcp");
  EXPECT_EQ(link_over(*elsewhere, *here), "tcp");
  EXPECT_THAT(log.text(), HasSubstr("(roce: no RDMA network in common: ethernet/ipv4 on this "
                                    "side, infiniband/fe80000000000000 on the other"));
}

}  // namespace
}  // namespace tributary::transport
