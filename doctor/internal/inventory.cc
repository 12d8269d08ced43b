// After Documentation/ABI/stable/sysfs-class-infiniband.
#include "doctor/internal/inventory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::doctor::internal {
namespace {

using transport::rdma::GidEntry;
using transport::rdma::GidType;
using transport::rdma::LinkLayer;

constexpr const char* kClass = "/sys/class/infiniband/";

std::string ReadOr(const SysFiles& files, const std::string& path, const std::string& otherwise) {
  auto text = files.Read(path);
  return text.ok() ? *std::move(text) : otherwise;
}

// "4: ACTIVE" → "ACTIVE"
std::string AfterColon(const std::string& text) {
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

LinkLayer LayerOf(const std::string& text) {
  if (text == "Ethernet") return LinkLayer::kEthernet;
  return text == "InfiniBand" ? LinkLayer::kInfiniband : LinkLayer::kUnknown;
}

// The network device of a port: the GID table names it; else the one device beneath the same
// function; else (rxe, siw) the attribute `parent`.
std::string NetdevOf(const SysFiles& files, const std::string& device, const RdmaPort& port) {
  for (const GidEntry& entry : port.gids) {
    if (!entry.netdev.empty()) return entry.netdev;
  }
  const std::vector<std::string> below = files.List(kClass + device + "/device/net");
  if (below.size() == 1) return below[0];
  return ReadOr(files, kClass + device + "/parent", "");
}

RdmaPort ReadPort(const SysFiles& files, const std::string& device, uint32_t number) {
  const std::string base = absl::StrCat(kClass, device, "/ports/", number, "/");
  RdmaPort port;
  port.number = number;
  port.state = AfterColon(ReadOr(files, base + "state", "unknown"));
  port.phys_state = AfterColon(ReadOr(files, base + "phys_state", "unknown"));
  port.link_layer = LayerOf(ReadOr(files, base + "link_layer", ""));
  port.rate = ReadOr(files, base + "rate", "rate unknown");
  if (auto gids = transport::rdma::ReadGidTable(files, device, number); gids.ok())
    port.gids = *std::move(gids);
  port.lid = static_cast<uint16_t>(files.ReadNumber(base + "lid").value_or(0));
  if (port.link_layer != LinkLayer::kInfiniband) port.netdev = NetdevOf(files, device, port);
  if (!port.netdev.empty()) {
    port.netdev_mtu = static_cast<uint32_t>(
        files.ReadNumber("/sys/class/net/" + port.netdev + "/mtu").value_or(0));
  }
  return port;
}

RdmaDevice ReadDevice(const SysFiles& files, const std::string& name) {
  RdmaDevice device;
  device.name = name;
  const auto path = files.Resolve(kClass + name + "/device");
  if (path.ok()) device.path = *path;
  device.numa_node =
      static_cast<int>(files.ReadNumber(kClass + name + "/device/numa_node").value_or(-1));
  device.firmware = ReadOr(files, kClass + name + "/fw_ver", "");
  for (const std::string& node : files.List("/sys/class/infiniband_verbs")) {
    if (ReadOr(files, "/sys/class/infiniband_verbs/" + node + "/ibdev", "") == name)
      device.node = "/dev/infiniband/" + node;
  }
  for (const std::string& port : files.List(kClass + name + "/ports")) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(port, &number)) device.ports.push_back(ReadPort(files, name, number));
  }
  return device;
}

// Adds what only libibverbs knows of a port: the path MTU in force, and GID types that /sys hides.
void AskPort(const VerbsTable& verbs, ibv_context* context, RdmaPort* port) {
  ibv_port_attr attributes{};
  if (verbs.query_port(context, static_cast<uint8_t>(port->number),
                       reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) == 0 &&
      attributes.active_mtu >= IBV_MTU_256 && attributes.active_mtu <= IBV_MTU_4096) {
    port->active_mtu = 128U << attributes.active_mtu;  // 1 is 256, 5 is 4096
  }
  if (verbs.query_gid_ex == nullptr) return;
  for (GidEntry& entry : port->gids) {
    ibv_gid_entry told{};
    if (entry.type != GidType::kUnknown ||
        verbs.query_gid_ex(context, port->number, entry.index, &told, 0, sizeof(told)) != 0)
      continue;
    if (told.gid_type == IBV_GID_TYPE_ROCE_V1) entry.type = GidType::kRoceV1;
    if (told.gid_type == IBV_GID_TYPE_ROCE_V2) entry.type = GidType::kRoceV2;
  }
}

void AskDevice(const std::shared_ptr<const VerbsTable>& verbs, ibv_device* from,
               RdmaDevice* device) {
  device->in_verbs = true;
  errno = 0;
  ibv_context* context = verbs->open_device(from);
  if (context == nullptr) {
    device->open_error = errno != 0 ? strerror(errno) : "no reason given";
    return;
  }
  device->context = VerbsContext(context, [verbs](ibv_context* c) { verbs->close_device(c); });
  ibv_device_attr attributes{};
  if (verbs->query_device(context, &attributes) == 0) {
    device->max_mr_bytes = attributes.max_mr_size;
    device->max_queue_pairs = attributes.max_qp;
  }
  for (RdmaPort& port : device->ports) AskPort(*verbs, context, &port);
}

}  // namespace

bool Inventory::any_active() const {
  return std::any_of(devices.begin(), devices.end(), [](const RdmaDevice& d) {
    return std::any_of(d.ports.begin(), d.ports.end(),
                       [](const RdmaPort& p) { return p.active(); });
  });
}

Inventory TakeInventory(const Environment& env) {
  Inventory out;
  for (const std::string& name : env.files->List("/sys/class/infiniband"))
    out.devices.push_back(ReadDevice(*env.files, name));
  auto verbs = env.verbs();
  out.verbs_status = verbs.status();
  if (!verbs.ok()) return out;
  out.verbs = *verbs;
  if (out.devices.empty()) return out;
  int count = 0;
  ibv_device** list = out.verbs->get_device_list(&count);
  if (list == nullptr) return out;
  for (int i = 0; i < count; ++i) {
    const std::string name = out.verbs->get_device_name(list[i]);
    for (RdmaDevice& device : out.devices) {
      if (device.name == name) AskDevice(out.verbs, list[i], &device);
    }
  }
  out.verbs->free_device_list(list);
  return out;
}

}  // namespace tributary::doctor::internal
