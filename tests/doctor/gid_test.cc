// Which GID a RoCE link uses: the policy, over recorded tables.
#include "transport/rdma/gid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/doctor/tree.h"
#include "transport/rdma/mtu.h"

namespace tributary::transport::rdma {
namespace {

using doctor::RecordedTree;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GidEntry Entry(uint32_t index, const std::string& gid, GidType type, std::string netdev = "") {
  return {index, *ParseGid(gid), type, std::move(netdev)};
}

std::vector<uint32_t> Order(const std::vector<RankedGid>& ranked, bool usable) {
  std::vector<uint32_t> out;
  for (const RankedGid& r : ranked) {
    if (r.usable == usable) out.push_back(r.entry.index);
  }
  return out;
}

struct Recorded {
  const char* tree;
  const char* device;
  const char* netdev;  // wished
  LinkLayer layer;
  uint32_t index;
  const char* address;
  GidType type;
  const char* why;
};

class RecordedTables : public ::testing::TestWithParam<Recorded> {};

TEST_P(RecordedTables, ThePickIsTheOneThatAPeerCanReach) {
  const Recorded& want = GetParam();
  const RecordedTree tree(want.tree);
  const auto table = ReadGidTable(*tree.files(), want.device, 1);
  ASSERT_TRUE(table.ok()) << table.status();
  const auto picked = PickGid(
      *table, {.link_layer = want.layer, .index = {}, .netdev = want.netdev, .address = {}});
  ASSERT_TRUE(picked.ok()) << picked.status();
  EXPECT_EQ(picked->entry.index, want.index);
  EXPECT_EQ(GidText(picked->entry.gid), want.address);
  EXPECT_EQ(picked->entry.type, want.type);
  EXPECT_THAT(picked->why, HasSubstr(want.why));
}

INSTANTIATE_TEST_SUITE_P(
    Trees, RecordedTables,
    ::testing::Values(
        // Index 0 is fe80:: in RoCE v1: taken blindly, it would not leave the segment.
        Recorded{"dual_stack", "mlx5_0", "", LinkLayer::kEthernet, 3, "10.1.2.3", GidType::kRoceV2,
                 "RoCE v2, IPv4 address"},
        Recorded{"ipv6_only", "bnxt_re0", "", LinkLayer::kEthernet, 3, "fd00:aa::1",
                 GidType::kRoceV2, "routable IPv6"},
        Recorded{"mixed_versions", "mlx5_1", "", LinkLayer::kEthernet, 5, "10.100.0.5",
                 GidType::kRoceV2, "RoCE v2"},
        Recorded{"mixed_versions", "mlx5_1", "enp59s0f1", LinkLayer::kEthernet, 6, "192.168.1.5",
                 GidType::kRoceV2, "RoCE v2"},
        Recorded{"container", "mlx5_0", "", LinkLayer::kEthernet, 3, "10.1.2.3", GidType::kRoceV2,
                 "by its place in the table"},
        Recorded{"bond", "mlx5_bond_0", "", LinkLayer::kEthernet, 3, "10.1.2.3", GidType::kRoceV2,
                 "IPv4"},
        Recorded{"private_ipv4", "rxe0", "", LinkLayer::kEthernet, 2, "192.168.0.2",
                 GidType::kRoceV2, "IPv4 address"},
        Recorded{"infiniband", "mlx5_0", "", LinkLayer::kInfiniband, 0, "fe80::b859:9f03:aa:1",
                 GidType::kInfiniband, "InfiniBand"}),
    [](const auto& info) {
      return absl::StrCat(info.param.tree, *info.param.netdev == 0 ? "" : "_one_netdev");
    });

TEST(RankGids, AddressesRankByReachAndVersion1IsNeverUsable) {
  const std::vector<RankedGid> ranked = RankGids(
      {
          Entry(0, "fe80::1", GidType::kRoceV2),
          Entry(1, "169.254.3.4", GidType::kRoceV2),
          Entry(2, "2001:db8::1", GidType::kRoceV2),
          Entry(3, "192.168.0.9", GidType::kRoceV1),
          Entry(4, "192.168.0.9", GidType::kRoceV2),
          Entry(5, "8.8.8.8", GidType::kRoceV2),
          Entry(6, "127.0.0.1", GidType::kRoceV2),
          Entry(7, "::1", GidType::kRoceV2),
          Entry(8, "ff02::1", GidType::kRoceV2),
      },
      {});
  // Private before public only by its index: both are reached the same way.
  EXPECT_THAT(Order(ranked, true), ElementsAre(4, 5, 2, 1, 0));
  EXPECT_THAT(Order(ranked, false), ElementsAre(3, 6, 7, 8));
}

TEST(RankGids, EmptyEntriesAreLeftOut) {
  EXPECT_TRUE(RankGids({GidEntry{.index = 0, .gid = {}, .type = {}, .netdev = ""}}, {}).empty());
}

TEST(RankGids, AKnownTypeGoesBeforeAnInferredAndThatBeforeAnUnknownOne) {
  const std::vector<RankedGid> ranked =
      RankGids({Entry(0, "10.0.0.3", GidType::kUnknown), Entry(1, "10.0.0.2", GidType::kUnknown),
                Entry(2, "10.0.0.2", GidType::kUnknown), Entry(3, "10.0.0.1", GidType::kRoceV2)},
               {});
  EXPECT_THAT(Order(ranked, true), ElementsAre(3, 2, 0));
  EXPECT_THAT(Order(ranked, false), ElementsAre(1));
  EXPECT_TRUE(ranked[1].type_inferred);
}

TEST(RankGids, OneKnownTypeOfAPairTellsTheOther) {
  // The pair stands in the unusual order, version 2 first: what is known decides.
  const std::vector<RankedGid> ranked = RankGids(
      {Entry(0, "10.0.0.2", GidType::kRoceV2), Entry(1, "10.0.0.2", GidType::kUnknown)}, {});
  EXPECT_EQ(ranked[0].entry.index, 0);
  EXPECT_FALSE(ranked[0].type_inferred);
  EXPECT_EQ(ranked[1].entry.type, GidType::kUnknown);

  const std::vector<RankedGid> other = RankGids(
      {Entry(0, "10.0.0.2", GidType::kRoceV1), Entry(1, "10.0.0.2", GidType::kUnknown)}, {});
  EXPECT_EQ(other[0].entry.index, 1);
  EXPECT_EQ(other[0].entry.type, GidType::kRoceV2);
  EXPECT_TRUE(other[0].type_inferred);
}

TEST(PickGid, AnIndexThatIsAskedForWinsWhateverItsRankButNotAsVersion1) {
  const std::vector<GidEntry> table = {Entry(0, "10.0.0.2", GidType::kRoceV1),
                                       Entry(1, "10.0.0.2", GidType::kRoceV2),
                                       Entry(2, "fe80::2", GidType::kRoceV2)};
  GidWish wish;
  wish.index = 2;
  const auto picked = PickGid(table, wish);
  ASSERT_TRUE(picked.ok()) << picked.status();
  EXPECT_EQ(picked->entry.index, 2);
  EXPECT_THAT(picked->why, HasSubstr("asked for"));
  wish.index = 0;
  EXPECT_TRUE(absl::IsNotFound(PickGid(table, wish).status()));
  EXPECT_THAT(Text(PickGid(table, wish).status()),
              HasSubstr("GID index 0 (10.0.0.2) is RoCE v1: routers"));
}

TEST(PickGid, TheAddressOfALinkNarrowsTheChoiceAndAnIndexGoesBeforeIt) {
  const std::vector<GidEntry> table = {
      Entry(0, "10.0.0.2", GidType::kRoceV1), Entry(1, "10.0.0.2", GidType::kRoceV2),
      Entry(2, "10.0.1.2", GidType::kRoceV1), Entry(3, "10.0.1.2", GidType::kRoceV2)};
  GidWish wish;
  wish.address = *ParseGid("10.0.1.2");
  EXPECT_EQ(PickGid(table, wish)->entry.index, 3);
  wish.address = *ParseGid("10.0.2.2");
  EXPECT_TRUE(absl::IsNotFound(PickGid(table, wish).status()));
  wish.index = 1;
  EXPECT_EQ(PickGid(table, wish)->entry.index, 1);
  // On InfiniBand the address is the port's GID.
  GidWish port;
  port.link_layer = LinkLayer::kInfiniband;
  port.address = *ParseGid("fe80::7");
  EXPECT_EQ(PickGid({Entry(0, "fe80::7", GidType::kUnknown)}, port)->entry.index, 0);
  EXPECT_TRUE(absl::IsNotFound(PickGid({Entry(0, "fe80::8", GidType::kUnknown)}, port).status()));
}

TEST(PickGid, AnEmptyIndexIsRefusedWithTheBestInstead) {
  GidWish wish;
  wish.index = 7;
  const auto picked = PickGid({Entry(3, "10.0.0.2", GidType::kRoceV2)}, wish);
  EXPECT_TRUE(absl::IsNotFound(picked.status()));
  EXPECT_THAT(Text(picked.status()), HasSubstr("GID index 7 is empty; the best is 3 (10.0.0.2"));
}

TEST(PickGid, ATableOfVersion1AloneIsRefusedWithTheReason) {
  const auto picked = PickGid({Entry(0, "fe80::1", GidType::kRoceV1)}, {});
  EXPECT_TRUE(absl::IsNotFound(picked.status()));
  EXPECT_THAT(Text(picked.status()), HasSubstr("RoCE v1"));
}

TEST(PickGid, AnEmptyTableIsRefusedWithTheMend) {
  EXPECT_THAT(Text(PickGid({}, {}).status()), HasSubstr("ip addr add"));
}

TEST(ReadGidTable, HolesAreLeftOutAndUnreadableTypesStayUnknown) {
  const RecordedTree mixed("mixed_versions");
  EXPECT_EQ(ReadGidTable(*mixed.files(), "mlx5_1", 1)->size(), 6);  // 0..6 without the hole at 2
  const RecordedTree container("container");
  const auto table = ReadGidTable(*container.files(), "mlx5_0", 1);
  ASSERT_EQ(table->size(), 4);
  EXPECT_EQ((*table)[0].type, GidType::kUnknown);
  EXPECT_EQ((*table)[0].netdev, "");
}

TEST(ReadGidTable, APortThatIsNotThereIsNotFound) {
  const RecordedTree tree("plain");
  EXPECT_TRUE(absl::IsNotFound(ReadGidTable(*tree.files(), "mlx5_0", 1).status()));
}

TEST(Gid, TextAndParsingAgree) {
  EXPECT_EQ(GidText(*ParseGid("0000:0000:0000:0000:0000:ffff:0a01:0203")), "10.1.2.3");
  EXPECT_EQ(GidText(*ParseGid("10.1.2.3")), "10.1.2.3");
  EXPECT_EQ(GidText(*ParseGid("fe80:0000:0000:0000:0e42:a1ff:fe5c:1234")),
            "fe80::e42:a1ff:fe5c:1234");
  EXPECT_TRUE(absl::IsInvalidArgument(ParseGid("fe80").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseGid("").status()));
}

// The kernel takes 96 bytes off and rounds down: 1500 → 1404 → 1024.
TEST(RoceMtu, FollowsTheNetworkDevice) {
  EXPECT_EQ(RoceMtuFor(1500), 1024);
  EXPECT_EQ(RoceMtuFor(2143), 1024);
  EXPECT_EQ(RoceMtuFor(2144), 2048);
  EXPECT_EQ(RoceMtuFor(4191), 2048);
  EXPECT_EQ(RoceMtuFor(4192), 4096);
  EXPECT_EQ(RoceMtuFor(9000), 4096);
  EXPECT_EQ(RoceMtuFor(351), 0);
  EXPECT_EQ(NetdevMtuFor(4096), 4192);
}

}  // namespace
}  // namespace tributary::transport::rdma
