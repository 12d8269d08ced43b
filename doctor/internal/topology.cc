// Where network devices and GPUs are plugged in, against where this process runs.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "doctor/address.h"
#include "doctor/internal/exam.h"
#include "doctor/numa.h"
#include "doctor/pcie.h"

namespace tributary::doctor::internal {
namespace {

constexpr const char* kPci = "/sys/bus/pci/devices/";

struct Nic {
  std::string name;
  PciPlace place;
};

// RDMA devices; where links do not use them, the network device of the default route.
std::vector<Nic> Nics(const Exam& exam, const Inventory& inventory) {
  std::vector<Nic> out;
  for (const RdmaDevice& device : inventory.devices)
    out.push_back({device.name, {device.path, device.numa_node}});
  if (!out.empty()) return out;
  const SysFiles& files = *exam.env.files;
  const auto routes = files.Read("/proc/net/route");
  const std::string netdev = routes.ok() ? DefaultRouteInterface(*routes) : "";
  if (netdev.empty()) return out;
  const std::string base = "/sys/class/net/" + netdev + "/device";
  const auto path = files.Resolve(base);
  if (path.ok())
    out.push_back(
        {netdev, {*path, static_cast<int>(files.ReadNumber(base + "/numa_node").value_or(-1))}});
  return out;
}

// Display and 3-D controllers of NVIDIA, processing accelerators of AMD.
bool IsGpu(const SysFiles& files, const std::string& address) {
  const int64_t type = files.ReadNumber(kPci + address + "/class").value_or(0) >> 8;
  const int64_t vendor = files.ReadNumber(kPci + address + "/vendor").value_or(0);
  return (vendor == 0x10de && (type == 0x0300 || type == 0x0302)) ||
         (vendor == 0x1002 && (type == 0x0380 || type == 0x1200));
}

struct AcsView {
  std::vector<std::string> redirecting;  // bridges
  bool readable = true;
};

// Of the bridges between the two: those that send peer-to-peer packets up. What is above the last
// bridge that both are under sees none of them.
AcsView ReadAcs(const SysFiles& files, const PciPlace& a, const PciPlace& b) {
  AcsView view;
  for (const std::string& bridge : BridgesBetween(a, b)) {
    const auto config = files.ReadBytes(kPci + bridge + "/config");
    view.readable = view.readable && config.ok() && config->size() > 256;
    const auto control = config.ok() ? AcsControl(*config) : std::nullopt;
    if (control.has_value() && AcsRedirects(*control)) view.redirecting.push_back(bridge);
  }
  return view;
}

void CheckGpu(const Exam& exam, const std::string& address, const std::vector<Nic>& nics) {
  const SysFiles& files = *exam.env.files;
  const auto path = files.Resolve(kPci + address);
  const PciPlace gpu = {
      path.ok() ? *path : "",
      static_cast<int>(files.ReadNumber(kPci + address + "/numa_node").value_or(-1))};
  const std::string name = "gpu " + address;
  const auto nearest = std::min_element(nics.begin(), nics.end(), [&](const Nic& a, const Nic& b) {
    return DistanceBetween(gpu, a.place) < DistanceBetween(gpu, b.place);
  });
  if (nearest == nics.end()) {
    exam.report.Ok(name,
                   absl::StrCat("NUMA node ", gpu.numa_node, "; no network device to compare"));
    return;
  }
  const PcieDistance distance = DistanceBetween(gpu, nearest->place);
  std::string seen =
      absl::StrCat("NUMA node ", gpu.numa_node, "; nearest is ", nearest->name, ", ");
  const std::string_view text = PcieDistanceText(distance);
  absl::StrAppend(&seen, absl::string_view(text.data(), text.size()));
  absl::StrAppend(&seen, files.Exists("/sys/module/nvidia_peermem") ? "; nvidia_peermem is loaded"
                                                                    : "; no nvidia_peermem");
  const AcsView acs = ReadAcs(files, gpu, nearest->place);
  const bool near = distance <= PcieDistance::kPxb;
  if (near && !acs.redirecting.empty()) {
    exam.Add(name, Verdict::kWarn,
             absl::StrCat(seen, "; ACS sends packets between them through the CPU at ",
                          absl::StrJoin(acs.redirecting, ", ")),
             absl::StrCat("for b in ", absl::StrJoin(acs.redirecting, " "),
                          "; do setpci -s $b ECAP_ACS+0x6.w=0000; done  # until the next boot"));
    return;
  }
  if (near)
    seen += acs.readable ? "; ACS redirects nothing" : "; ACS unknown (reading it takes root)";
  exam.report.Ok(name, near ? seen : seen + ": copies through host memory are as good");
}

}  // namespace

void CheckTopology(const Exam& exam, const Inventory& inventory) {
  const std::vector<Nic> nics = Nics(exam, inventory);
  for (const Nic& nic : nics) {
    Finding finding = JudgeNuma(ReadNumaView(*exam.env.files, nic.place.numa_node),
                                nic.place.numa_node, exam.file);
    finding.name = "numa " + nic.name;
    exam.report.Add(std::move(finding));
  }
  if (nics.empty()) exam.report.Skip("numa", "no network device with a place in /sys");
  if (exam.wish == RdmaWish::kNone) return;  // GPU memory travels over RDMA only
  bool any = false;
  for (const std::string& address : exam.env.files->List(kPci)) {
    if (!IsGpu(*exam.env.files, address)) continue;
    any = true;
    CheckGpu(exam, address, nics);
  }
  if (!any) exam.report.Skip("gpu", "no GPU here");
}

}  // namespace tributary::doctor::internal
