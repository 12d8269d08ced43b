// RDMA before any port is looked at: libraries, devices, device nodes, namespaces, fork, memlock.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "doctor/internal/exam.h"
#include "server/fabrics.h"
#include "transport/link.h"
#include "transport/rdma/memlock.h"

namespace tributary::doctor::internal {
namespace {

constexpr const char* kInstall =
    "apt-get install libibverbs1 librdmacm1 ibverbs-providers rdma-core";

void CheckLibraries(const Exam& exam, const Inventory& inventory) {
  const auto cm = exam.env.rdma_cm();
  std::vector<std::string> missing;
  if (!inventory.verbs_status.ok()) missing.push_back(Text(inventory.verbs_status));
  if (!cm.ok()) missing.push_back(Text(cm.status()));
  if (!missing.empty()) {
    exam.Add("rdma.libraries", exam.Bad(), absl::StrJoin(missing, "; "), kInstall);
    return;
  }
  exam.report.Ok("rdma.libraries", absl::StrCat(inventory.verbs->library, " and ", (*cm)->library));
}

std::string DeviceText(const RdmaDevice& device) {
  std::string text = device.name;
  if (!device.firmware.empty()) absl::StrAppend(&text, ", firmware ", device.firmware);
  if (device.max_mr_bytes != 0) {
    const bool any = device.max_mr_bytes == UINT64_MAX;
    absl::StrAppend(&text, any ? ", regions of any size, " : ", regions up to ",
                    any ? "" : BytesText(device.max_mr_bytes) + ", ", device.max_queue_pairs,
                    " queue pairs");
  }
  return text;
}

void CheckDevices(const Exam& exam, const Inventory& inventory) {
  std::vector<std::string> texts, unlisted, unopened;
  for (const RdmaDevice& device : inventory.devices) {
    texts.push_back(DeviceText(device));
    if (!device.in_verbs) {
      unlisted.push_back(device.name);
    } else if (device.context == nullptr) {
      unopened.push_back(absl::StrCat(device.name, " (", device.open_error, ")"));
    }
  }
  if (inventory.verbs_status.ok() && !unlisted.empty()) {
    exam.Add("rdma.devices", exam.Bad(),
             absl::StrCat("the kernel has ", absl::StrJoin(unlisted, ", "),
                          ", libibverbs does not list it: its provider library or its device node "
                          "is missing"),
             "apt-get install ibverbs-providers && modprobe ib_uverbs && ls /dev/infiniband");
  } else if (!unopened.empty()) {
    exam.Add("rdma.devices", exam.Bad(),
             absl::StrCat("cannot be opened: ", absl::StrJoin(unopened, ", ")),
             "ls -l /dev/infiniband  # in a container: --device /dev/infiniband");
  } else {
    exam.report.Ok("rdma.devices", absl::StrJoin(texts, "; "));
  }
}

void CheckNodes(const Exam& exam, const Inventory& inventory) {
  std::vector<std::string> good, bad;
  std::vector<std::string> nodes = {"/dev/infiniband/rdma_cm"};
  for (const RdmaDevice& device : inventory.devices) {
    if (!device.node.empty()) {
      nodes.push_back(device.node);
    } else {
      bad.push_back(absl::StrCat(device.name, " has no uverbs node"));
    }
  }
  for (const std::string& node : nodes) {
    const absl::Status status = exam.env.may_open(node);
    if (status.ok()) {
      good.push_back(node);
    } else {
      bad.push_back(Text(status));
    }
  }
  if (bad.empty()) {
    exam.report.Ok("rdma.nodes", absl::StrCat(absl::StrJoin(good, ", "), " can be opened"));
    return;
  }
  exam.Add("rdma.nodes", exam.Bad(), absl::StrJoin(bad, "; "),
           "modprobe -a ib_uverbs rdma_ucm && chmod 666 /dev/infiniband/{uverbs*,rdma_cm}  # in a "
           "container: --device /dev/infiniband");
}

void CheckNamespace(const Exam& exam) {
  const auto mode = exam.env.files->Read("/sys/module/ib_core/parameters/netns_mode");
  if (!mode.ok()) {
    exam.report.Skip("rdma.netns",
                     "the kernel does not say: /sys/module/ib_core/parameters/"
                     "netns_mode cannot be read");
  } else if (*mode == "Y" || *mode == "1") {
    exam.report.Ok("rdma.netns",
                   "shared: every network namespace sees all devices, and can use the GIDs whose "
                   "network device is its own");
  } else {
    exam.report.Ok("rdma.netns",
                   "exclusive: a network namespace sees only devices moved into it (rdma dev set "
                   "DEVICE netns NAME)");
  }
}

void CheckFork(const Exam& exam, const Inventory& inventory) {
  if (inventory.verbs == nullptr || inventory.verbs->is_fork_initialized == nullptr) {
    exam.report.Skip("rdma.fork", "this libibverbs cannot be asked (rdma-core before 35)");
    return;
  }
  switch (inventory.verbs->is_fork_initialized()) {
    case IBV_FORK_UNNEEDED:
      exam.report.Ok("rdma.fork", "the kernel copies registered pages on fork: nothing to do");
      return;
    case IBV_FORK_ENABLED:
      exam.report.Ok("rdma.fork", "libibverbs guards registered pages against fork");
      return;
    case IBV_FORK_DISABLED:
      break;
  }
  exam.Add(
      "rdma.fork", Verdict::kWarn,
      "a fork while memory is registered would damage it; an aggregator does not fork, what is "
      "loaded into it might",
      "export RDMAV_FORK_SAFE=1");
}

// What the aggregator itself will ask for.
uint64_t MemlockNeedOf(const server::Config& config, uint32_t devices) {
  const transport::RoceOptions roce = server::RoceOptionsOf(config.transport, config.is_root());
  return transport::rdma::MemlockNeedBytes({.arena_bytes = roce.arena_bytes, .devices = devices});
}

}  // namespace

void CheckRdmaBasis(const Exam& exam, const Inventory& inventory) {
  CheckLibraries(exam, inventory);
  CheckDevices(exam, inventory);
  CheckNodes(exam, inventory);
  CheckNamespace(exam);
  CheckFork(exam, inventory);
}

bool CheckMemlock(const Exam& exam, const Inventory& inventory) {
  const auto limit = transport::rdma::ReadMemlockLimit(*exam.env.files);
  if (!limit.ok()) {
    exam.report.Skip("rdma.memlock", Text(limit.status()));
    return true;
  }
  const bool one = !exam.config.transport.roce.device.empty();
  const auto devices = one ? 1 : static_cast<uint32_t>(inventory.devices.size());
  const uint64_t need = MemlockNeedOf(exam.config, devices);
  std::string seen = absl::StrCat(BytesText(need), " are needed for arenas on ", devices,
                                  devices == 1 ? " device" : " devices");
  if (limit->exempt) {
    exam.report.Ok("rdma.memlock", absl::StrCat("no limit (CAP_IPC_LOCK); ", seen));
    return true;
  }
  seen = absl::StrCat("this process may lock ", BytesText(limit->bytes), "; ", seen);
  if (MemlockSuffices(need, *limit)) {
    exam.report.Ok("rdma.memlock", seen);
    return true;
  }
  exam.Add("rdma.memlock", exam.Bad(), seen, transport::rdma::MemlockMend(need));
  return false;
}

}  // namespace tributary::doctor::internal
