// The pure parts of RoCE links: GID choice, queue sizes, set-up messages, hints.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "transport/internal/hello.h"
#include "transport/roce/completion_error.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/library.h"
#include "transport/roce/place.h"
#include "transport/roce/plan.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

std::string Words(const absl::Status& status) { return std::string(status.message()); }

ibv_gid_entry Gid(uint32_t port, uint32_t index, const std::string& address, uint32_t type) {
  ibv_gid_entry entry{};
  entry.port_num = port;
  entry.gid_index = index;
  entry.gid_type = type;
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), entry.gid.raw), 1);
  return entry;
}

TEST(RocePlace, IsThePortWithTheAddressAndItsEntryOfVersion2) {
  std::vector<roce::PortTable> tables;
  const std::vector<std::vector<ibv_gid_entry>> devices = {
      {Gid(1, 0, "fe80::5", IBV_GID_TYPE_ROCE_V1), Gid(1, 1, "fe80::5", IBV_GID_TYPE_ROCE_V2)},
      {Gid(1, 0, "fe80::6", IBV_GID_TYPE_ROCE_V1), Gid(1, 1, "fe80::6", IBV_GID_TYPE_ROCE_V2),
       Gid(1, 2, "::ffff:10.0.0.6", IBV_GID_TYPE_ROCE_V1),
       Gid(1, 3, "::ffff:10.0.0.6", IBV_GID_TYPE_ROCE_V2),
       Gid(2, 0, "2001:db8::6", IBV_GID_TYPE_ROCE_V2)},
      {Gid(1, 0, "fe80::7", IBV_GID_TYPE_IB)}};
  for (size_t i = 0; i < devices.size(); ++i) {
    for (auto& table : roce::PortTables(i, absl::StrCat("mlx5_", i), devices[i])) {
      tables.push_back(std::move(table));
    }
  }
  ASSERT_EQ(tables.size(), 4u);
  roce::PlaceWish wish;
  wish.address = *rdma::ParseGid("10.0.0.6");
  wish.address_text = "10.0.0.6";
  auto place = roce::PickPlace(tables, wish);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->device, 1u);
  EXPECT_EQ(place->gid.index, 3u);
  wish.address = *rdma::ParseGid("2001:db8::6");
  place = roce::PickPlace(tables, wish);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->port, 2u);
  // A device or port that the wish names leaves out the others.
  wish.port = 1;
  EXPECT_EQ(roce::PickPlace(tables, wish).status().code(), absl::StatusCode::kNotFound);
  wish.port = 0;
  wish.device = "mlx5_9";
  EXPECT_THAT(Words(roce::PickPlace(tables, wish).status()),
              HasSubstr("\"mlx5_9\" is not among the devices"));
  wish.device = "";
  // An address that no table has; unless the index is told.
  wish.address = *rdma::ParseGid("127.0.0.1");
  EXPECT_EQ(roce::PickPlace(tables, wish).status().code(), absl::StatusCode::kNotFound);
  wish.index = 1;
  place = roce::PickPlace(tables, wish);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->device, 0u);
  wish.index = 2;
  EXPECT_THAT(Words(roce::PickPlace(tables, wish).status()), HasSubstr("RoCE v1"));
  wish.index = 9;
  EXPECT_THAT(Words(roce::PickPlace(tables, wish).status()), HasSubstr("no GID of index 9"));
  // An IPoIB interface's hardware address names the port.
  wish.index = -1;
  wish.infiniband = *rdma::ParseGid("fe80::7");
  place = roce::PickPlace(tables, wish);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->device, 2u);
}

TEST(RoceReach, IsTheNetworksOfUsableGidsWithinWhatTheConfigLeavesOpen) {
  const std::vector<ibv_gid_entry> entries = {Gid(1, 0, "fe80::1", IBV_GID_TYPE_ROCE_V1),
                                              Gid(1, 1, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V1),
                                              Gid(1, 2, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V2),
                                              Gid(2, 0, "fe80::5", IBV_GID_TYPE_ROCE_V2),
                                              Gid(2, 1, "fd00::5", IBV_GID_TYPE_ROCE_V2),
                                              Gid(3, 0, "fe80::7", IBV_GID_TYPE_IB)};
  const auto tables = roce::PortTables(0, "mlx5_0", entries);
  EXPECT_EQ(roce::ReachOf(tables, {}), "ethernet/ipv4 ethernet/ipv6 infiniband/fe80000000000000");
  roce::PlaceWish second;
  second.port = 2;
  EXPECT_EQ(roce::ReachOf(tables, second), "ethernet/ipv6");
  roce::PlaceWish entry;
  entry.port = 1;
  entry.index = 2;
  EXPECT_EQ(roce::ReachOf(tables, entry), "ethernet/ipv4");
  entry.port = 9;
  EXPECT_EQ(roce::ReachOf(tables, entry), "");
  EXPECT_EQ(roce::ReachOf({}, {}), "");
}

TEST(RoceReach, FitsWhereANetworkIsInCommonWhicheverSideAsks) {
  const std::string v4 = "ethernet/ipv4";
  const std::string v6 = "ethernet/ipv6";
  const std::string both = "ethernet/ipv4 ethernet/ipv6";
  const std::string ib = "infiniband/fe80000000000000";
  const std::string other_ib = "infiniband/fe80000000000001";
  const struct {
    std::string one, other;
    bool fits;
  } rows[] = {{v4, v4, true}, {v4, both, true},      {v4, v6, false},           {both, ib, false},
              {ib, ib, true}, {ib, other_ib, false}, {v6 + " " + ib, ib, true}, {"", v4, true},
              {"", "", true}};
  for (const auto& [one, other, fits] : rows) {
    EXPECT_EQ(roce::ReachFits(one, other).ok(), fits) << one << " | " << other;
    EXPECT_EQ(roce::ReachFits(other, one).ok(), fits) << one << " | " << other;
  }
  const absl::Status apart = roce::ReachFits(v4, ib);
  EXPECT_EQ(apart.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Words(apart), HasSubstr("ethernet/ipv4 on this side, infiniband/"));
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

TEST(RoceLibrary, OneThatIsNotThereIsAnErrorAndNoCrash) {
  roce::Library library("libtributary-no-such.so.1");
  int (*function)() = nullptr;
  library.Find("ibv_no_such", "IBVERBS_1.1", &function);
  EXPECT_EQ(function, nullptr);
  EXPECT_THAT(library.missing(), HasSubstr("libtributary-no-such.so.1"));
}

TEST(RoceLibrary, FunctionThatIsNotThereIsNamedWithItsVersionAndTheFirstIsTold) {
  roce::Library library("libc.so.6");
  EXPECT_EQ(library.missing(), "");
  int (*found)() = nullptr;
  library.Find("getpid", nullptr, &found);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found(), getpid());
  int (*optional)() = nullptr;
  library.FindOptional("ibv_no_such", nullptr, &optional);
  EXPECT_EQ(optional, nullptr);
  EXPECT_EQ(library.missing(), "");
  library.Find("getpid", "IBVERBS_1.1", &optional);
  library.Find("ibv_no_such", nullptr, &optional);
  EXPECT_EQ(library.missing(), "libc.so.6 has no getpid of version IBVERBS_1.1");
}

TEST(RoceErrors, KnownStatusesHaveHints) {
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_RETRY_EXC_ERR)), HasSubstr("PFC"));
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_REM_ACCESS_ERR)), HasSubstr("remote key"));
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_RNR_RETRY_EXC_ERR)), HasSubstr("receive request"));
  EXPECT_THAT(std::string(roce::HintFor(IBV_WC_LOC_PROT_ERR)), HasSubstr("local key"));
}

}  // namespace
}  // namespace tributary::transport
