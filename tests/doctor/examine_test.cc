// The whole examination, over recorded machines with a fake RDMA device.
#include "doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/doctor/fakes.h"

namespace tributary::doctor {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

server::Config ConfigWith(const std::string& kind) {
  server::Config config;
  config.node.name = "rack-0";
  config.node.parent = {"10.0.0.1:7070"};
  config.transport.kind = kind;
  config.limits.max_sessions = 500;
  return config;
}

const Finding* Find(const Report& report, const std::string& name) {
  for (const Finding& f : report.findings()) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

// Examines a recorded machine whose tree's devices libibverbs lists.
class Examined : public ::testing::Test {
 protected:
  void Machine(const std::string& name) {
    tree_ = std::make_unique<RecordedTree>(name);
    env_ = FakeEnvironment(*tree_);
    verbs_.devices = env_.files->List("/sys/class/infiniband");
    env_.verbs = [this]() -> absl::StatusOr<std::shared_ptr<const VerbsTable>> {
      return verbs_.table();
    };
    env_.rdma_cm = [this]() -> absl::StatusOr<std::shared_ptr<const RdmaCmTable>> {
      return cm_.table();
    };
  }
  Report Run(const std::string& kind, const std::string& peer = "") {
    config_ = ConfigWith(kind);
    return Examine({.config = &config_, .file = "rack.toml", .peer = peer}, env_);
  }
  // The finding, or one that matches nothing.
  static Finding At(const Report& report, const std::string& name) {
    const Finding* f = Find(report, name);
    EXPECT_NE(f, nullptr) << name << " is not in\n" << report.ToText();
    return f == nullptr ? Finding() : *f;
  }

  FakeVerbs verbs_;
  FakeCm cm_;
  std::unique_ptr<RecordedTree> tree_;
  Environment env_;
  server::Config config_;
};

TEST_F(Examined, ATcpNodeWithoutRdmaIsFitAndReadsNothingAlarming) {
  Machine("plain");
  const Report report = Run("tcp");
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_EQ(report.Count(Verdict::kWarn), 0) << report.ToText();
  EXPECT_EQ(At(report, "rdma").verdict, Verdict::kSkipped);
  for (const Finding& f : report.findings())
    EXPECT_THAT(f.name, Not(StartsWith("rdma."))) << f.seen;
}

TEST_F(Examined, TheSameHostWith64KiBToLockFailsWithRoceAndSaysNothingOfItWithTcp) {
  Machine("container");
  const Report roce = Run("roce");
  EXPECT_EQ(roce.exit_code(), 1);
  const Finding memlock = At(roce, "rdma.memlock");
  EXPECT_EQ(memlock.verdict, Verdict::kFail);
  EXPECT_THAT(memlock.seen, HasSubstr("may lock 64 KiB"));
  EXPECT_THAT(memlock.mend, HasSubstr("LimitMEMLOCK=infinity"));
  EXPECT_EQ(At(roce, "rdma.self_test mlx5_0/1").verdict, Verdict::kSkipped);
  const Report tcp = Run("tcp");
  EXPECT_EQ(tcp.exit_code(), 0);
  EXPECT_THAT(tcp.ToText(), Not(HasSubstr("memlock")));
}

TEST_F(Examined, RoceWithoutADeviceFailsAndWithoutAConfigItIsSkipped) {
  Machine("plain");
  const Report roce = Run("roce");
  EXPECT_EQ(roce.exit_code(), 1);
  EXPECT_EQ(At(roce, "rdma.devices").verdict, Verdict::kFail);
  EXPECT_THAT(At(roce, "rdma.devices").mend, HasSubstr("kind = \"tcp\""));
  EXPECT_EQ(Run("auto").exit_code(), 0);
  const Report none = Examine({}, env_);
  EXPECT_EQ(none.exit_code(), 0);
  EXPECT_THAT(At(none, "rdma").seen, HasSubstr("no RDMA device"));
}

TEST_F(Examined, AWholeRoceMachineIsFit) {
  Machine("dual_stack");
  tree_->Write("/proc/self/limits",
               "Max open files            65536                65536                files\n"
               "Max locked memory         unlimited            unlimited            bytes\n");
  tree_->Write("/proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t4-7\nMems_allowed_list:\t1\n");
  env_.interfaces = [] {
    return std::vector<InterfaceAddress>{{"lo", "127.0.0.1", true}, {"ens1f0", "10.1.2.3", true}};
  };
  const Report report = Run("roce");
  EXPECT_EQ(report.exit_code(), 0) << report.ToText();
  EXPECT_EQ(report.Count(Verdict::kWarn), 0) << report.ToText();
  EXPECT_THAT(At(report, "rdma.gids mlx5_0/1").seen, StartsWith("best is 3 10.1.2.3 on ens1f0"));
  EXPECT_THAT(At(report, "rdma.mtu mlx5_0/1").seen, HasSubstr("active path MTU 4096"));
  EXPECT_EQ(At(report, "rdma.port mlx5_0/2").verdict, Verdict::kSkipped);  // no cable
  EXPECT_THAT(At(report, "rdma.self_test mlx5_0/1").seen, HasSubstr("16 MiB to itself over GID 3"));
  EXPECT_EQ(verbs_.writes, 256);
  EXPECT_THAT(At(report, "rdma.counters mlx5_0/1").seen, HasSubstr("since boot: link_downed 2"));
  EXPECT_THAT(At(report, "numa mlx5_0").seen, HasSubstr("NUMA node 1 of 2"));
}

TEST_F(Examined, ASmallMtuWarnsWithTheNumberThatHelps) {
  Machine("ipv6_only");
  verbs_.active_mtu = IBV_MTU_1024;
  const Finding mtu = At(Run("auto"), "rdma.mtu bnxt_re0/1");
  EXPECT_EQ(mtu.verdict, Verdict::kWarn);
  EXPECT_THAT(mtu.seen, HasSubstr("enp59s0 has MTU 1500, good for 1024"));
  EXPECT_THAT(mtu.mend, AllOf(HasSubstr("ip link set enp59s0 mtu 9000"), HasSubstr("4192")));
}

TEST_F(Examined, AnMtuThatTheDeviceHasNotTakenUpIsToldApart) {
  Machine("dual_stack");
  verbs_.active_mtu = IBV_MTU_1024;
  const Finding mtu = At(Run("roce"), "rdma.mtu mlx5_0/1");
  EXPECT_EQ(mtu.verdict, Verdict::kWarn);
  EXPECT_THAT(mtu.seen, HasSubstr("has not taken it up"));
}

TEST_F(Examined, TypesThatSysHidesAreAskedOfLibibverbs) {
  Machine("container");
  verbs_.gid_types = {{0, IBV_GID_TYPE_ROCE_V1},
                      {1, IBV_GID_TYPE_ROCE_V2},
                      {2, IBV_GID_TYPE_ROCE_V2},
                      {3, IBV_GID_TYPE_ROCE_V1}};
  EXPECT_THAT(At(Run("auto"), "rdma.gids mlx5_0/1").seen,
              StartsWith("best is 2 10.1.2.3 (RoCE v2,"));
  verbs_.gid_types.clear();
  EXPECT_THAT(At(Run("auto"), "rdma.gids mlx5_0/1").seen,
              StartsWith("best is 3 10.1.2.3 (RoCE v2 by its place"));
}

TEST_F(Examined, LinksThatWouldMissTheRdmaDeviceAreToldItsAddress) {
  Machine("dual_stack");  // whose default route is over eth0, 10.0.0.5, without RDMA
  const Finding f = At(Run("roce"), "rdma.address");
  EXPECT_EQ(f.verdict, Verdict::kFail);
  EXPECT_THAT(f.seen, HasSubstr("10.0.0.5"));
  EXPECT_THAT(f.mend, HasSubstr("[transport] listen = \"10.1.2.3:PORT\""));
  EXPECT_EQ(At(Run("auto"), "rdma.address").verdict, Verdict::kWarn);
  config_ = ConfigWith("roce");
  config_.transport.advertise = "10.1.2.3:7071";
  const Report told = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(At(told, "rdma.address").seen, "links to 10.1.2.3 use GID 3 of mlx5_0/1");
}

TEST_F(Examined, AServiceAddressIsServedByTheRouteWhereTheKernelCanBeAsked) {
  Machine("dual_stack");
  env_.interfaces = [] {
    return std::vector<InterfaceAddress>{
        {"lo", "127.0.0.1", true}, {"lo", "10.9.0.1", true}, {"ens1f0", "10.1.2.3", true}};
  };
  config_ = ConfigWith("roce");
  config_.transport.listen = "10.9.0.1:0";
  const auto address = [&] {
    return At(Examine({.config = &config_, .file = "f", .peer = ""}, env_), "rdma.address");
  };
  EXPECT_EQ(address().verdict, Verdict::kOk);
  EXPECT_THAT(address().seen, HasSubstr("the route to each peer (librdmacm)"));
  // As in a container without the node: links then go by the address alone.
  env_.may_open = [](const std::string& path) {
    return path == "/dev/infiniband/rdma_cm" ? absl::PermissionDeniedError(path) : absl::OkStatus();
  };
  EXPECT_EQ(address().verdict, Verdict::kFail);
}

TEST_F(Examined, MissingLibrariesAreNamedWithWhatToInstall) {
  Machine("dual_stack");
  env_.verbs = []() -> absl::StatusOr<std::shared_ptr<const VerbsTable>> {
    return absl::FailedPreconditionError("libibverbs.so.1: cannot open shared object file");
  };
  env_.rdma_cm = []() -> absl::StatusOr<std::shared_ptr<const RdmaCmTable>> {
    return absl::FailedPreconditionError("librdmacm.so.1: cannot open shared object file");
  };
  const Finding f = At(Run("roce"), "rdma.libraries");
  EXPECT_EQ(f.verdict, Verdict::kFail);
  EXPECT_THAT(f.seen, AllOf(HasSubstr("libibverbs.so.1"), HasSubstr("librdmacm.so.1")));
  EXPECT_THAT(f.mend, HasSubstr("apt-get install libibverbs1 librdmacm1"));
  EXPECT_EQ(At(Run("auto"), "rdma.libraries").verdict, Verdict::kWarn);
}

TEST_F(Examined, PortsAreToldWithStateLinkLayerAndRate) {
  Machine("dual_stack");
  EXPECT_THAT(At(Run("roce"), "rdma.port mlx5_0/1").seen,
              StartsWith("ACTIVE (LinkUp), Ethernet (RoCE), 100 Gb/sec (4X EDR)"));
  tree_->Write("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  const Finding down = At(Run("roce"), "rdma.port mlx5_0/1");
  EXPECT_EQ(down.verdict, Verdict::kFail);
  EXPECT_THAT(down.mend, HasSubstr("ip link set ens1f0 up"));
  Machine("infiniband");
  EXPECT_THAT(At(Run("roce"), "rdma.port mlx5_0/1").seen,
              HasSubstr("InfiniBand, 200 Gb/sec (4X HDR)"));
}

TEST_F(Examined, CountersAreReadBeforeAndAfterTheShortTest) {
  Machine("dual_stack");
  tree_->Write("/proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
  // The driver's: more at each look, as while traffic flows.
  env_.ethtool = [looks = 0](const std::string&) mutable {
    ++looks;
    return absl::StatusOr<std::map<std::string, uint64_t>>(
        std::map<std::string, uint64_t>{{"rx_prio3_pause", static_cast<uint64_t>(5 * looks)}});
  };
  const Report report = Run("roce");
  EXPECT_EQ(At(report, "rdma.self_test mlx5_0/1").verdict, Verdict::kOk);
  EXPECT_THAT(At(report, "rdma.counters mlx5_0/1").seen, HasSubstr("rx_prio3_pause +5"));
}

TEST_F(Examined, TheConfigsGidIndexIsTakenAtItsWord) {
  Machine("dual_stack");
  config_ = ConfigWith("roce");
  config_.transport.roce.gid_index = 5;
  const Report report = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_THAT(At(report, "rdma.gids mlx5_0/1").seen, StartsWith("best is 5 2001:db8:0:1::7"));
  EXPECT_EQ(At(report, "rdma.address").verdict, Verdict::kOk);
  config_.transport.roce.gid_index = 9;
  const Report empty = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(At(empty, "rdma.gids mlx5_0/1").verdict, Verdict::kFail);
  config_.transport.roce.port = 2;  // the index is in that port's table
  const Report other = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(At(other, "rdma.gids mlx5_0/1").verdict, Verdict::kOk);
}

TEST_F(Examined, MemlockCountsTheArenasOfChildrenAndOfTheParent) {
  Machine("dual_stack");
  config_ = ConfigWith("roce");  // has a parent
  config_.transport.roce.arena_bytes = 64 << 20;
  // 64 + 4 MiB; and 2 links of 2 * 8 slots of 1 MiB and 3 pages.
  const Report rack = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_THAT(At(rack, "rdma.memlock").seen, HasSubstr("100.4 MiB are needed"));
  // The defaults, as `tributary serve` asks for them (tests/e2e/e2e_process_test.cc).
  config_.transport.roce.arena_bytes = server::TransportConfig().roce.arena_bytes;
  const Report plain = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_THAT(At(plain, "rdma.memlock").mend, HasSubstr("ulimit -l 299392"));
  config_.transport.roce.arena_bytes = 64 << 20;
  config_.node.parent.clear();
  const Report root = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_THAT(At(root, "rdma.memlock").seen, HasSubstr("68 MiB are needed"));
}

TEST_F(Examined, RoceOverLoopbackIsAFaultAndSharedMemoryNeedsNoPort) {
  Machine("dual_stack");
  config_ = ConfigWith("roce");
  config_.node.listen = "127.0.0.1:7070";
  config_.transport.listen = "127.0.0.1:0";
  const Report roce = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(At(roce, "rdma.address").verdict, Verdict::kFail);
  const Report shm = Run("shm");
  EXPECT_EQ(Find(shm, "ports.links"), nullptr);
  EXPECT_EQ(At(shm, "address.links").verdict, Verdict::kSkipped);
}

TEST_F(Examined, ABondIsShownWithItsLegs) {
  Machine("bond");
  EXPECT_THAT(At(Run("auto"), "rdma.bond mlx5_bond_0/1").seen,
              HasSubstr("bond0 (802.3ad): ens1f0 25 Gbit/s, ens1f1 25 Gbit/s"));
}

TEST_F(Examined, ADeviceThatLibibverbsDoesNotListNamesTheProvider) {
  Machine("dual_stack");
  verbs_.devices.clear();
  const Finding f = At(Run("roce"), "rdma.devices");
  EXPECT_EQ(f.verdict, Verdict::kFail);
  EXPECT_THAT(f.mend, HasSubstr("ibverbs-providers"));
}

TEST_F(Examined, ADeviceThatCannotBeOpenedSaysWhy) {
  Machine("dual_stack");
  verbs_.unopenable = {"mlx5_0"};
  const Report report = Run("roce");
  EXPECT_THAT(At(report, "rdma.devices").seen, HasSubstr("mlx5_0 (Permission denied)"));
  EXPECT_EQ(At(report, "rdma.mtu mlx5_0/1").verdict, Verdict::kSkipped);
}

TEST_F(Examined, MissingDeviceNodesAreNamed) {
  Machine("ipv6_only");  // has neither uverbs nor rdma_cm
  const Finding f = At(Run("roce"), "rdma.nodes");
  EXPECT_EQ(f.verdict, Verdict::kFail);
  EXPECT_THAT(f.seen, AllOf(HasSubstr("bnxt_re0 has no uverbs node"), HasSubstr("rdma_cm")));
  EXPECT_EQ(At(Run("auto"), "rdma.nodes").verdict, Verdict::kWarn);
}

TEST_F(Examined, EveryFaultOfTheShortTestIsNamedAndNothingIsLeftBehind) {
  Machine("dual_stack");
  tree_->Write("/proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
  verbs_.reg_mr_errno = ENOMEM;
  EXPECT_THAT(At(Run("roce"), "rdma.self_test mlx5_0/1").seen, HasSubstr("ibv_reg_mr"));
  verbs_.reg_mr_errno = 0;
  verbs_.modify_qp_errno = EINVAL;
  EXPECT_THAT(At(Run("roce"), "rdma.self_test mlx5_0/1").seen, HasSubstr("RTR"));
  verbs_.modify_qp_errno = 0;
  verbs_.write_status = IBV_WC_RETRY_EXC_ERR;
  EXPECT_THAT(At(Run("roce"), "rdma.self_test mlx5_0/1").seen, HasSubstr("completion status 12"));
  verbs_.write_status = IBV_WC_SUCCESS;
  verbs_.damage_writes = true;
  EXPECT_THAT(At(Run("roce"), "rdma.self_test mlx5_0/1").seen, HasSubstr("not what was written"));
  EXPECT_EQ(verbs_.live_objects, 0);
}

// A bridge's configuration space: ACS at 0x100, next 0.
std::string AcsSpace(char control) {
  std::string config(4096, '\0');
  config[0x100] = 0x0d;
  config[0x102] = 0x01;
  config[0x106] = control;
  return config;
}
constexpr char kAcsRedirects = 0x1c;  // requests and completions

TEST_F(Examined, AcsOfABridgeAboveTheSwitchOfGpuAndNicSaysNothing) {
  Machine("gpu_switch");
  const std::string root_port = "/sys/devices/pci0000:17/0000:17:02.0";
  const std::string ports = root_port + "/0000:19:00.0/0000:1a:0";
  tree_->Write(root_port + "/config", AcsSpace(kAcsRedirects));
  EXPECT_THAT(At(Run("auto"), "gpu 0000:1c:00.0").seen, HasSubstr("ACS unknown"));
  tree_->Write(ports + "0.0/config", AcsSpace(0));
  tree_->Write(ports + "4.0/config", AcsSpace(0));
  const Finding gpu = At(Run("auto"), "gpu 0000:1c:00.0");
  EXPECT_EQ(gpu.verdict, Verdict::kOk) << gpu.seen;
  EXPECT_THAT(gpu.seen, HasSubstr("ACS redirects nothing"));
}

TEST_F(Examined, AGpuBehindTheSameSwitchIsFoundAndAcsThatRedirectsWarns) {
  Machine("gpu_switch");
  EXPECT_THAT(At(Run("auto"), "gpu 0000:1c:00.0").seen,
              AllOf(HasSubstr("nearest is mlx5_2, PIX"), HasSubstr("ACS unknown")));
  EXPECT_THAT(At(Run("auto"), "gpu 0000:01:00.0").seen, HasSubstr("SYS"));
  tree_->Write("/sys/devices/pci0000:17/0000:17:02.0/0000:19:00.0/0000:1a:04.0/config",
               AcsSpace(kAcsRedirects));
  const Finding gpu = At(Run("auto"), "gpu 0000:1c:00.0");
  EXPECT_EQ(gpu.verdict, Verdict::kWarn);
  EXPECT_THAT(gpu.mend, HasSubstr("setpci -s $b ECAP_ACS+0x6.w=0000"));
  EXPECT_THAT(gpu.seen, HasSubstr("0000:1a:04.0"));
}

TEST_F(Examined, APeerThatAnswersOverRdmaIsReached) {
  Machine("dual_stack");
  cm_.events = {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_REJECTED};
  const Report report = Run("roce", "10.1.2.9");
  EXPECT_EQ(At(report, "rdma.udp_4791").verdict, Verdict::kOk);
  EXPECT_THAT(At(report, "peer.route").seen, HasSubstr("from 10.0.0.5 on eth0"));
}

TEST_F(Examined, APeerIsOnlyRoutedToWithTcp) {
  Machine("plain");
  const Report report = Run("tcp", "10.1.2.9");
  EXPECT_EQ(At(report, "peer.route").verdict, Verdict::kOk);
  EXPECT_EQ(Find(report, "rdma.udp_4791"), nullptr);
}

TEST_F(Examined, APortInUseNamesItsHolder) {
  Machine("plain");
  env_.try_listen = [](const std::string& at) {
    return at == "0.0.0.0:7070" ? absl::AlreadyExistsError("the port is in use") : absl::OkStatus();
  };
  const Report report = Run("tcp");
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_THAT(At(report, "ports.node").seen, HasSubstr("by tributary (pid 4711)"));
  EXPECT_THAT(At(report, "ports.node").mend, HasSubstr("ss -ltnp 'sport = :7070'"));
}

TEST_F(Examined, APortOfLinksInUseIsTheLinksFaultAlone) {
  Machine("plain");  // where tributary listens on 7070
  env_.try_listen = [](const std::string& at) {
    return at == "10.0.0.5:7070" ? absl::AlreadyExistsError("the port is in use")
                                 : absl::OkStatus();
  };
  config_ = ConfigWith("tcp");
  config_.node.listen = "0.0.0.0:7080";
  config_.transport.listen = "10.0.0.5:7070";
  const Report report = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(At(report, "ports.node").verdict, Verdict::kOk);
  const Finding links = At(report, "ports.links");
  EXPECT_EQ(links.verdict, Verdict::kFail);
  EXPECT_EQ(links.seen, "10.0.0.5:7070: the port is in use, by tributary (pid 4711)");
  EXPECT_EQ(links.mend, "ss -ltnp 'sport = :7070'  # end it, or change [transport] listen");
}

TEST_F(Examined, TooFewDescriptorsForARoundFailAndForAllSessionsWarn) {
  Machine("plain");  // 1024 open files
  config_ = ConfigWith("tcp");
  config_.limits.max_sessions = 20000;
  Report report = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(At(report, "files").verdict, Verdict::kWarn);
  EXPECT_THAT(At(report, "files").mend, HasSubstr("LimitNOFILE=20152"));  // + 128 + 8 · 3
  config_.node.parent.clear();
  config_.cohort.minimum = 5000;
  report = Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  EXPECT_EQ(At(report, "files").verdict, Verdict::kFail);
}

TEST_F(Examined, TheAddressIsNeverLoopbackUnlessAsked) {
  Machine("plain");
  EXPECT_THAT(At(Run("tcp"), "address.node").seen, StartsWith("10.0.0.5 port 7070"));
  const auto with = [&](const std::string& listen, const std::string& links) {
    config_ = ConfigWith("tcp");
    config_.node.listen = listen;
    config_.transport.listen = links;
    return Examine({.config = &config_, .file = "f", .peer = ""}, env_);
  };
  EXPECT_EQ(At(with("127.0.0.1:7070", "127.0.0.1:0"), "address.links").verdict, Verdict::kOk);
  EXPECT_EQ(At(with("0.0.0.0:7070", "127.0.0.1:0"), "address.links").verdict, Verdict::kWarn);
  // Debian puts the machine's own name at 127.0.1.1.
  env_.resolve = [](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
    return std::vector<std::string>{"127.0.1.1"};
  };
  const Finding named = At(with("node7:7070", "0.0.0.0:0"), "address.node");
  EXPECT_EQ(named.verdict, Verdict::kFail);
  EXPECT_THAT(named.mend, HasSubstr("/etc/hosts"));
  env_.interfaces = [] { return std::vector<InterfaceAddress>{{"lo", "127.0.0.1", true}}; };
  EXPECT_EQ(At(with("0.0.0.0:7070", "0.0.0.0:0"), "address.node").verdict, Verdict::kFail);
}

TEST_F(Examined, SharedMemoryThatCannotBeHadFailsAndASmallGroupWarns) {
  Machine("plain");
  const std::string group = "/sys/fs/cgroup/system.slice/tributary.service/";
  tree_->Write(group + "memory.max", "209715200\n");  // 200 MiB, of which 100 are taken
  EXPECT_EQ(At(Run("shm"), "shm.memfd").verdict, Verdict::kWarn);
  tree_->Write(group + "memory.max", "max\n");
  EXPECT_EQ(At(Run("shm"), "shm.memfd").verdict, Verdict::kOk);
  tree_->Write("/sys/fs/cgroup/system.slice/memory.max", "104857600\n");  // of the group above
  tree_->Write("/sys/fs/cgroup/system.slice/memory.current", "104857600\n");
  EXPECT_EQ(At(Run("shm"), "shm.memfd").verdict, Verdict::kWarn);
  env_.try_memfd = [](uint64_t) { return absl::ResourceExhaustedError("no memory"); };
  EXPECT_EQ(At(Run("shm"), "shm.memfd").verdict, Verdict::kFail);
}

TEST_F(Examined, SpaceOfDevShmIsShownAndItsAbsenceIsNoFault) {
  Machine("plain");
  std::string asked;
  env_.space = [&asked](const std::string& path) -> absl::StatusOr<Space> {
    asked = path;
    return Space{.total_bytes = uint64_t{3} << 30, .free_bytes = uint64_t{64} << 20};
  };
  const Finding there = At(Run("auto"), "shm.dev_shm");
  EXPECT_EQ(asked, "/dev/shm");
  EXPECT_EQ(there.verdict, Verdict::kOk);
  EXPECT_THAT(there.seen, StartsWith("64 MiB free of 3 GiB; links use memory files"));
  env_.space = [](const std::string& path) -> absl::StatusOr<Space> {
    return absl::NotFoundError(path + ": No such file or directory");
  };
  const Report without = Run("shm");
  EXPECT_EQ(without.exit_code(), 0);  // links do not need it
  EXPECT_EQ(At(without, "shm.dev_shm").verdict, Verdict::kWarn);
  EXPECT_THAT(At(without, "shm.dev_shm").seen, HasSubstr("/dev/shm: No such file"));
  EXPECT_THAT(At(without, "shm.dev_shm").mend, HasSubstr("mount -t tmpfs tmpfs /dev/shm"));
  EXPECT_EQ(Find(Run("tcp"), "shm.dev_shm"), nullptr);
}

TEST_F(Examined, AFileSizeLimitIsToldBeforeItWouldKillTheProcess) {
  Machine("plain");
  tree_->Write("/proc/self/limits",
               "Max file size             1024                 1024   bytes\n");
  env_.try_memfd = [](uint64_t) -> absl::Status {
    ADD_FAILURE() << "tried in spite of the limit";
    return absl::OkStatus();
  };
  EXPECT_EQ(At(Run("shm"), "shm.memfd").mend, "ulimit -f unlimited");
}

TEST_F(Examined, ForkAndNamespacesAreTold) {
  Machine("dual_stack");
  EXPECT_EQ(At(Run("roce"), "rdma.fork").verdict, Verdict::kOk);
  EXPECT_THAT(At(Run("roce"), "rdma.netns").seen, StartsWith("shared"));
  verbs_.fork_status = IBV_FORK_DISABLED;
  tree_->Write("/sys/module/ib_core/parameters/netns_mode", "N\n");
  EXPECT_EQ(At(Run("roce"), "rdma.fork").mend, "export RDMAV_FORK_SAFE=1");
  EXPECT_THAT(At(Run("roce"), "rdma.netns").seen, StartsWith("exclusive"));
}

}  // namespace
}  // namespace tributary::doctor
