// The doctor's policies that need no machine: distances, bonds, NUMA, addresses, counters, peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/status.h"
#include "doctor/address.h"
#include "doctor/bond.h"
#include "doctor/counters.h"
#include "doctor/numa.h"
#include "doctor/pcie.h"
#include "doctor/peer.h"
#include "tests/doctor/fakes.h"

namespace tributary::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// ---- PCIe

struct PciCase {
  const char* name;
  PciPlace a, b;
  PcieDistance want;
};

class PciCases : public ::testing::TestWithParam<PciCase> {};

TEST_P(PciCases, DistanceIsTheSameBothWays) {
  EXPECT_EQ(DistanceBetween(GetParam().a, GetParam().b), GetParam().want);
  EXPECT_EQ(DistanceBetween(GetParam().b, GetParam().a), GetParam().want);
}

// A switch: upstream port 19:00.0 below root port 17:02.0, downstream ports 1a:00.0 and 1a:04.0.
const char kNic[] = "/sys/devices/pci0000:17/0000:17:02.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0";
const char kGpu[] = "/sys/devices/pci0000:17/0000:17:02.0/0000:19:00.0/0000:1a:04.0/0000:1c:00.0";

INSTANTIATE_TEST_SUITE_P(
    Places, PciCases,
    ::testing::Values(
        PciCase{"two_ports_of_a_card",
                {"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0", 1},
                {"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.1", 1},
                PcieDistance::kSame},
        PciCase{"one_switch", {kNic, 1}, {kGpu, 1}, PcieDistance::kPix},
        PciCase{"a_switch_behind_a_switch",
                {kNic, 1},
                {"/sys/devices/pci0000:17/0000:17:02.0/0000:19:00.0/0000:1a:04.0/0000:20:00.0/"
                 "0000:21:01.0/0000:22:00.0",
                 1},
                PcieDistance::kPxb},
        PciCase{"two_root_ports",
                {kNic, 1},
                {"/sys/devices/pci0000:17/0000:17:04.0/0000:40:00.0", 1},
                PcieDistance::kPhb},
        PciCase{"two_host_bridges_of_a_node",
                {kNic, 1},
                {"/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", 1},
                PcieDistance::kNode},
        PciCase{"two_nodes",
                {kNic, 1},
                {"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 0},
                PcieDistance::kSystem},
        PciCase{"a_node_that_is_not_told",
                {kNic, -1},
                {"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 0},
                PcieDistance::kUnknown},
        PciCase{"below_the_function",  // as /sys/class/net links resolve
                {"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/net/ens1f0", 1},
                {"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0", 1},
                PcieDistance::kSame},
        PciCase{"virtual", {"/sys/devices/virtual/net/lo", 0}, {kGpu, 1}, PcieDistance::kUnknown}),
    [](const auto& info) { return info.param.name; });

TEST(Pci, AddressComesFromThePath) {
  EXPECT_EQ(PciAddress(std::string(kNic) + "/infiniband/mlx5_2"), "0000:1b:00.0");
  EXPECT_EQ(PciAddress("/sys/devices/virtual/infiniband/rxe0"), "");
}

TEST(Pci, BridgesBetweenTwoAreThoseBelowTheLastThatBothAreUnder) {
  EXPECT_THAT(BridgesBetween({kGpu, 1}, {kNic, 1}), ElementsAre("0000:1a:04.0", "0000:1a:00.0"));
  EXPECT_THAT(BridgesBetween({kNic, 1}, {"/sys/devices/pci0000:17/0000:17:04.0/0000:40:00.0", 1}),
              ElementsAre("0000:17:02.0", "0000:19:00.0", "0000:1a:00.0", "0000:17:04.0"));
  const std::string card = "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.";
  EXPECT_THAT(BridgesBetween({card + "0", 1}, {card + "1", 1}), ElementsAre());
  // The same addresses in another domain are other bridges.
  EXPECT_THAT(BridgesBetween({"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 0},
                             {"/sys/devices/pci0001:00/0000:00:01.0/0000:01:00.0", 0}),
              ElementsAre("0000:00:01.0", "0000:00:01.0"));
  EXPECT_THAT(BridgesBetween({"/sys/devices/virtual/net/lo", 0}, {kGpu, 1}),
              ElementsAre("0000:17:02.0", "0000:19:00.0", "0000:1a:04.0"));
}

// A configuration space whose extended capabilities are AER at 0x100, then ACS at 0x148.
std::string ConfigSpace(uint16_t acs_control) {
  std::string bytes(4096, '\0');
  const auto put = [&](size_t at, uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
  };
  put(0x100, 0x14820001);                                       // next 0x148, version 2, id 1
  put(0x148, 0x0001000d);                                       // end, version 1, id 0xd
  put(0x14c, static_cast<uint32_t>(acs_control) << 16 | 0x5f);  // control, capabilities
  return bytes;
}

TEST(Acs, TheControlRegisterIsFoundBehindOtherCapabilities) {
  EXPECT_EQ(AcsControl(ConfigSpace(0x001d)), 0x001d);
  EXPECT_TRUE(AcsRedirects(0x001d));
  EXPECT_EQ(AcsControl(ConfigSpace(0)), 0);
  EXPECT_FALSE(AcsRedirects(0));
  EXPECT_FALSE(AcsRedirects(0x0001));  // source validation alone redirects nothing
}

TEST(Acs, ShortAndDamagedSpacesHaveNone) {
  EXPECT_EQ(AcsControl(ConfigSpace(0x1d).substr(0, 256)),
            std::nullopt);  // what others than root read
  EXPECT_EQ(AcsControl(std::string(4096, '\xff')), std::nullopt);
  std::string circle(4096, '\0');
  circle[0x100] = 1;
  circle[0x102] = 0x01;
  circle[0x103] = 0x10;  // next: 0x100
  EXPECT_EQ(AcsControl(circle), std::nullopt);
}

// ---- Bonds

Bond TwoLegs(int a, int b, bool b_up = true) {
  return {"bond0", "802.3ad", "layer3+4", {{"ens1f0", a, true}, {"ens1f1", b, b_up}}};
}

TEST(Bond, IsReadFromTheBondAndFromALeg) {
  const RecordedTree tree("bond");
  for (const char* netdev : {"bond0", "ens1f1"}) {
    const auto bond = ReadBond(*tree.files(), netdev);
    ASSERT_TRUE(bond.has_value()) << netdev;
    EXPECT_EQ(bond->netdev, "bond0");
    EXPECT_EQ(bond->mode, "802.3ad");
    ASSERT_EQ(bond->legs.size(), 2);
    EXPECT_EQ(bond->legs[1].netdev, "ens1f1");
    EXPECT_EQ(bond->legs[1].speed_mbps, 25000);
    EXPECT_TRUE(bond->legs[1].up);
  }
  EXPECT_FALSE(ReadBond(*tree.files(), "eth0").has_value());
}

TEST(Bond, EqualLegsAreFineAndTheRateOfOneLegIsTold) {
  const Finding f = JudgeBond(TwoLegs(25000, 25000), 2);
  EXPECT_EQ(f.verdict, Verdict::kOk);
  EXPECT_THAT(f.seen, HasSubstr("50 Gbit/s together"));
  EXPECT_THAT(f.seen, HasSubstr("a lane on one leg gets 25"));
}

TEST(Bond, FewerLanesThanLegsWarns) {
  const Finding f = JudgeBond(TwoLegs(25000, 25000), 1);
  EXPECT_EQ(f.verdict, Verdict::kWarn);
  EXPECT_EQ(f.mend, "[transport] lanes = 4");
}

TEST(Bond, UnequalAndDownLegsWarn) {
  EXPECT_EQ(JudgeBond(TwoLegs(25000, 10000), 2).verdict, Verdict::kWarn);
  const Finding down = JudgeBond(TwoLegs(25000, -1, false), 2);
  EXPECT_EQ(down.verdict, Verdict::kWarn);
  EXPECT_THAT(down.mend, HasSubstr("ip link set ens1f1 up"));
}

TEST(Bond, WithoutAnyLegUpItFails) {
  EXPECT_EQ(JudgeBond({"bond0", "802.3ad", "", {{"a", -1, false}}}, 2).verdict, Verdict::kFail);
  EXPECT_EQ(JudgeBond({"bond0", "802.3ad", "", {}}, 2).verdict, Verdict::kFail);
}

TEST(Bond, OneLegThatStandsByIsWhatActiveBackupIsFor) {
  Bond bond = TwoLegs(25000, 25000);
  bond.mode = "active-backup";
  EXPECT_EQ(JudgeBond(bond, 1).verdict, Verdict::kOk);
}

// ---- NUMA

TEST(Numa, CpuListsAreParsedAndNonsenseIsEmpty) {
  EXPECT_THAT(ParseCpuList("0-2,8,10-11"), ElementsAre(0, 1, 2, 8, 10, 11));
  EXPECT_THAT(ParseCpuList(""), IsEmpty());
  EXPECT_THAT(ParseCpuList("a-b"), IsEmpty());
  EXPECT_THAT(ParseCpuList("0-99999999"), IsEmpty());
}

NumaView TwoNodes(std::set<int> cpus, std::set<int> memory) {
  return {{{0, {0, 1}}, {1, {2, 3}}}, std::move(cpus), std::move(memory), {{0, 21}, {1, 10}}};
}

TEST(Numa, PinnedToTheDevicesNodeIsFine) {
  EXPECT_EQ(JudgeNuma(TwoNodes({2, 3}, {1}), 1, "f.toml").verdict, Verdict::kOk);
}

TEST(Numa, CpusOrMemoryElsewhereWarnWithTheLineToPin) {
  for (const NumaView& view :
       {TwoNodes({0, 1, 2, 3}, {0, 1}), TwoNodes({2, 3}, {0, 1}), TwoNodes({0, 1}, {0})}) {
    const Finding f = JudgeNuma(view, 1, "f.toml");
    EXPECT_EQ(f.verdict, Verdict::kWarn);
    EXPECT_EQ(f.mend, "numactl --cpunodebind=1 --membind=1 tributary serve f.toml");
    EXPECT_THAT(f.seen, HasSubstr("distance up to 21"));
  }
}

TEST(Numa, OneNodeAndAnUnknownNodeAreNoFault) {
  EXPECT_EQ(JudgeNuma({{{0, {0}}}, {0}, {0}, {}}, 0, "f").verdict, Verdict::kOk);
  EXPECT_EQ(JudgeNuma(TwoNodes({0}, {0}), -1, "f").verdict, Verdict::kOk);
}

TEST(Numa, TheViewIsReadFromTheTree) {
  const RecordedTree tree("dual_stack");
  const NumaView view = ReadNumaView(*tree.files(), 1);
  EXPECT_EQ(view.cpus_of_node.at(1), std::set<int>({4, 5, 6, 7}));
  EXPECT_EQ(view.distances.at(0), 21);
  EXPECT_EQ(view.allowed_memory, std::set<int>({0, 1}));
}

// ---- Addresses

TEST(PickAddress, NeverLoopbackAndTheDefaultRoutesDeviceFirst) {
  const std::vector<InterfaceAddress> machine = {
      {"lo", "127.0.0.1", true},     {"lo", "::1", true},         {"docker0", "172.17.0.1", true},
      {"eth1", "192.168.7.1", true}, {"eth0", "fe80::1", true},   {"eth0", "2001:db8::5", true},
      {"eth0", "10.0.0.5", true},    {"eth2", "10.9.9.9", false},
  };
  EXPECT_EQ(PickAddress(machine, "eth0")->address, "10.0.0.5");
  EXPECT_EQ(PickAddress(machine, "eth1")->address, "192.168.7.1");
  EXPECT_EQ(PickAddress(machine, "")->address, "192.168.7.1");  // not docker0
}

TEST(PickAddress, LinkLocalIsTheLastResortAndSaidToBe) {
  const auto picked = PickAddress({{"lo", "127.0.0.1", true}, {"eth0", "fe80::1", true}}, "eth0");
  ASSERT_TRUE(picked.ok());
  EXPECT_TRUE(picked->link_local);
  EXPECT_FALSE(picked->loopback);
}

TEST(PickAddress, LoopbackAloneIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(
      PickAddress({{"lo", "127.0.0.1", true}, {"eth0", "10.0.0.5", false}}, "").status()));
}

TEST(Addresses, AreTakenApartAndRecognised) {
  EXPECT_EQ(SplitHostPort("[::1]:7070").host, "::1");
  EXPECT_EQ(SplitHostPort(":7070").host, "");
  EXPECT_EQ(SplitHostPort("a.example:70").port, "70");
  EXPECT_TRUE(IsLoopback("127.0.1.1"));
  EXPECT_TRUE(IsLoopback("::ffff:127.0.0.1"));
  EXPECT_FALSE(IsLoopback("10.127.0.1"));
  EXPECT_TRUE(IsWildcard("::"));
  EXPECT_FALSE(IsWildcard("0.0.0.1"));
}

TEST(Addresses, TheDefaultRouteWithTheLeastMetricCounts) {
  EXPECT_EQ(DefaultRouteInterface("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
                                  "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
                                  "eth0\t00000000\t0101000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
                                  "eth1\t0000000A\t00000000\t0001\t0\t0\t1\t00FFFFFF\t0\t0\t0"),
            "eth0");
  EXPECT_EQ(DefaultRouteInterface(""), "");
}

// ---- Counters

TEST(Counters, LossDuringTheTestWarnsAndOldLossDoesNot) {
  const Counters before = {{"out_of_sequence", 17}, {"packet_seq_err", 4}, {"np_cnp_sent", 2}};
  Counters after = before;
  const Finding quiet = JudgeCounters(before, after);
  EXPECT_EQ(quiet.verdict, Verdict::kOk);
  EXPECT_THAT(quiet.seen, HasSubstr("since boot: np_cnp_sent 2, out_of_sequence 17"));
  after["out_of_sequence"] = 20;
  const Finding lossy = JudgeCounters(before, after);
  EXPECT_EQ(lossy.verdict, Verdict::kWarn);
  EXPECT_THAT(lossy.seen, HasSubstr("out_of_sequence +3"));
  EXPECT_THAT(lossy.mend, HasSubstr("mlnx_qos"));
}

TEST(Counters, CongestionSignalsAreToldWithoutAlarm) {
  const Finding f = JudgeCounters({{"np_cnp_sent", 2}, {"rx_prio3_pause", 0}},
                                  {{"np_cnp_sent", 9}, {"rx_prio3_pause", 5}});
  EXPECT_EQ(f.verdict, Verdict::kOk);
  EXPECT_THAT(f.seen, HasSubstr("np_cnp_sent +7"));
  EXPECT_THAT(f.seen, HasSubstr("rx_prio3_pause +5"));
}

TEST(Counters, OneThatWasResetCountsFromZeroAndUnknownOnesAreIgnored) {
  const Finding f = JudgeCounters({{"out_of_sequence", 17}}, {{"out_of_sequence", 1}});
  EXPECT_THAT(f.seen, HasSubstr("out_of_sequence +1"));
  EXPECT_EQ(JudgeCounters({}, {{"rx_bytes", 5}, {"rx_prio_pause", 1}}).verdict, Verdict::kSkipped);
}

TEST(Counters, AreReadFromBothFolders) {
  const RecordedTree tree("dual_stack");
  const Counters counters = ReadPortCounters(*tree.files(), "mlx5_0", 1);
  EXPECT_EQ(counters.at("link_downed"), 2);
  EXPECT_EQ(counters.at("np_cnp_sent"), 41);
}

// ---- Peers

Finding Judge(std::optional<CmAnswer> cm, absl::StatusOr<UdpAnswer> udp) {
  return JudgePeer(cm, udp, "10.0.0.9", Verdict::kFail);
}

TEST(JudgePeer, AnAnswerOfTheConnectionManagerProvesBothWays) {
  EXPECT_EQ(Judge(CmAnswer::kAnswered, UdpAnswer::kSilent).verdict, Verdict::kOk);
  EXPECT_THAT(Judge(CmAnswer::kAnswered, UdpAnswer::kSilent).mend, IsEmpty());
}

TEST(JudgePeer, EachFaultHasItsOwnReason) {
  EXPECT_THAT(Judge(CmAnswer::kSilent, UdpAnswer::kUnreachable).seen, HasSubstr("no way to"));
  EXPECT_THAT(Judge(CmAnswer::kSilent, UdpAnswer::kRefused).seen, HasSubstr("no RoCE on"));
  EXPECT_THAT(Judge(CmAnswer::kSilent, UdpAnswer::kSilent).seen, HasSubstr("filtered"));
  EXPECT_THAT(Judge(CmAnswer::kNoDevice, UdpAnswer::kSilent).seen, HasSubstr("no RDMA device"));
  for (const CmAnswer cm : {CmAnswer::kSilent, CmAnswer::kNoDevice}) {
    EXPECT_EQ(Judge(cm, UdpAnswer::kSilent).verdict, Verdict::kFail);
    EXPECT_THAT(Judge(cm, UdpAnswer::kSilent).mend, Not(IsEmpty()));
  }
}

TEST(JudgePeer, SilenceWithoutRdmaHereProvesNothingAndSaysSo) {
  const Finding f = Judge(std::nullopt, UdpAnswer::kSilent);
  EXPECT_EQ(f.verdict, Verdict::kWarn);
  EXPECT_THAT(f.seen, HasSubstr("only a machine with RDMA can tell more"));
}

TEST(ProbeCm, ARefusalIsAnAnswer) {
  FakeCm cm;
  cm.events = {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_REJECTED};
  EXPECT_EQ(*ProbeCm(*cm.table(), "10.0.0.9", absl::Seconds(10)), CmAnswer::kAnswered);
}

TEST(ProbeCm, NoReplyEndsAtTheLimit) {
  FakeCm cm;
  cm.events = {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED};
  EXPECT_EQ(*ProbeCm(*cm.table(), "10.0.0.9", absl::Milliseconds(30)), CmAnswer::kSilent);
  cm.events = {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
               RDMA_CM_EVENT_UNREACHABLE};
  EXPECT_EQ(*ProbeCm(*cm.table(), "10.0.0.9", absl::Seconds(10)), CmAnswer::kSilent);
}

TEST(ProbeCm, AnAddressThatNobodyHasIsTold) {
  FakeCm cm;
  cm.events = {RDMA_CM_EVENT_ADDR_ERROR};
  cm.status = -ETIMEDOUT;
  EXPECT_EQ(*ProbeCm(*cm.table(), "10.0.0.9", absl::Seconds(10)), CmAnswer::kNoHost);
  EXPECT_THAT(Judge(CmAnswer::kNoHost, UdpAnswer::kSilent).seen, HasSubstr("no way to"));
}

TEST(ProbeCm, ARouteWithoutAnRdmaDeviceIsTold) {
  FakeCm cm;
  cm.events = {RDMA_CM_EVENT_ADDR_ERROR};
  EXPECT_EQ(*ProbeCm(*cm.table(), "10.0.0.9", absl::Seconds(10)), CmAnswer::kNoDevice);
  cm.has_device = false;
  cm.events = {RDMA_CM_EVENT_ADDR_RESOLVED};
  EXPECT_EQ(*ProbeCm(*cm.table(), "10.0.0.9", absl::Seconds(10)), CmAnswer::kNoDevice);
}

}  // namespace
}  // namespace tributary::doctor
