// The short test of each active port, and its counters before and after.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "doctor/counters.h"
#include "doctor/internal/exam.h"
#include "doctor/internal/self_test.h"

namespace tributary::doctor::internal {
namespace {

constexpr absl::Duration kTestLimit = absl::Seconds(2);

// The port's own counters, and its network device's where the driver tells them.
Counters AllCounters(const Exam& exam, const RdmaDevice& device, const RdmaPort& port) {
  Counters out = ReadPortCounters(*exam.env.files, device.name, port.number);
  if (port.netdev.empty()) return out;
  if (const auto driver = exam.env.ethtool(port.netdev); driver.ok())
    out.insert(driver->begin(), driver->end());
  return out;
}

void TestPort(const Exam& exam, const Inventory& inventory, const RdmaDevice& device,
              const RdmaPort& port, bool may_register) {
  const std::string name = "rdma.self_test " + PortName(device, port);
  const auto gid = PickGid(port.gids, WishOf(exam, device, port));
  if (device.context == nullptr || !gid.ok() || !may_register) {
    exam.report.Skip(name, device.context == nullptr ? "the device is not open"
                           : !gid.ok()               ? "no GID can be used"
                                                     : "memory cannot be registered");
    return;
  }
  const auto result =
      RunSelfTest(*inventory.verbs, device.context.get(), port, gid->entry, kTestLimit);
  if (!result.ok()) {
    exam.Add(name, exam.Bad(), Text(result.status()),
             absl::StrCat("ibv_rc_pingpong -d ", device.name, " -g ", gid->entry.index,
                          " & sleep 1; ibv_rc_pingpong -d ", device.name, " -g ", gid->entry.index,
                          " localhost; dmesg | tail"));
    return;
  }
  exam.report.Ok(name, absl::StrFormat("wrote %s to itself over GID %d in %.0f ms, all arrived",
                                       BytesText(result->bytes), gid->entry.index,
                                       absl::ToDoubleMilliseconds(result->took)));
}

}  // namespace

void CheckTraffic(const Exam& exam, const Inventory& inventory, bool may_register) {
  for (const RdmaDevice& device : inventory.devices) {
    for (const RdmaPort& port : device.ports) {
      if (!port.active()) continue;
      const Counters before = AllCounters(exam, device, port);
      TestPort(exam, inventory, device, port, may_register);
      Finding finding = JudgeCounters(before, AllCounters(exam, device, port));
      finding.name = "rdma.counters " + PortName(device, port);
      if (!port.netdev.empty())
        finding.mend = absl::StrReplaceAll(finding.mend, {{"IFACE", port.netdev}});
      exam.report.Add(std::move(finding));
    }
  }
}

}  // namespace tributary::doctor::internal
