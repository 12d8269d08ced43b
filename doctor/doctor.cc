// The order of the checks, and which of them a config asks for.
#include "doctor/doctor.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "doctor/internal/exam.h"

namespace tributary::doctor {
namespace {

using internal::Exam;
using internal::RdmaWish;

RdmaWish WishOf(const server::Config* config) {
  if (config == nullptr || config->transport.kind == "auto") return RdmaWish::kMaybe;
  return config->transport.kind == "roce" ? RdmaWish::kMust : RdmaWish::kNone;
}

std::string SubjectOf(const Options& options) {
  if (options.config == nullptr)
    return "tributary doctor: this machine, for a config of defaults (give a FILE to check its "
           "own)";
  const server::Config& c = *options.config;
  return absl::StrCat("tributary doctor: ", options.file, ", ", c.is_root() ? "root" : "rack",
                      " \"", c.node.name, "\", links over ", c.transport.kind);
}

void CheckRdma(const Exam& exam, const internal::Inventory& inventory) {
  if (exam.wish == RdmaWish::kNone) {
    exam.report.Skip(
        "rdma", absl::StrCat("[transport] kind = \"", exam.config.transport.kind, "\" uses none"));
    return;
  }
  if (inventory.devices.empty() && exam.wish == RdmaWish::kMaybe) {
    exam.report.Skip("rdma", "this machine has no RDMA device; transports tcp and shm need none");
    return;
  }
  if (inventory.devices.empty()) {
    exam.Add("rdma.devices", Verdict::kFail,
             inventory.verbs_status.ok()
                 ? "no RDMA device: /sys/class/infiniband is empty or not there"
                 : absl::StrCat("no RDMA device, and no library: ", Text(inventory.verbs_status)),
             "lspci | grep -iE 'mellanox|infiniband|ethernet'; modprobe mlx5_ib || modprobe irdma; "
             "or [transport] kind = \"tcp\"");
    exam.report.Skip("rdma", "all else of RDMA: there is no device");
    return;
  }
  internal::CheckRdmaBasis(exam, inventory);
  const bool may_register = internal::CheckMemlock(exam, inventory);
  internal::CheckPorts(exam, inventory);
  internal::CheckTraffic(exam, inventory, may_register);
}

}  // namespace

Report Examine(const Options& options, const Environment& environment) {
  static const server::Config defaults;
  const server::Config& config = options.config != nullptr ? *options.config : defaults;
  Report report(SubjectOf(options));
  const std::string& kind = config.transport.kind;
  const Exam exam = {.env = environment,
                     .config = config,
                     .file = options.file.empty() ? "FILE" : options.file,
                     .wish = WishOf(options.config),
                     .shm = options.config == nullptr || kind == "shm" || kind == "auto",
                     .peer = options.peer,
                     .report = report};
  internal::Inventory inventory;
  if (exam.wish != RdmaWish::kNone) inventory = internal::TakeInventory(environment);
  CheckRdma(exam, inventory);
  internal::CheckTopology(exam, inventory);
  internal::CheckPeer(exam, inventory);
  internal::CheckSharedMemory(exam);
  internal::CheckHost(exam);
  return report;
}

}  // namespace tributary::doctor
