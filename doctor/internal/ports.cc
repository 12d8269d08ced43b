// Each RDMA port: its state, MTU, GID table, and bond.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "doctor/address.h"
#include "doctor/bond.h"
#include "doctor/internal/exam.h"
#include "transport/rdma/mtu.h"

namespace tributary::doctor::internal {
namespace {

using transport::rdma::GidText;
using transport::rdma::GidWish;
using transport::rdma::LinkLayer;
using transport::rdma::NetdevMtuFor;
using transport::rdma::RankedGid;
using transport::rdma::RoceMtuFor;

constexpr uint32_t kBestMtu = 4096;

std::string LayerText(LinkLayer layer) {
  if (layer == LinkLayer::kEthernet) return "Ethernet (RoCE)";
  return layer == LinkLayer::kInfiniband ? "InfiniBand" : "link layer unknown";
}

void CheckState(const Exam& exam, const Inventory& inventory, const RdmaPort& port,
                const std::string& where) {
  const std::string name = "rdma.port " + where;
  std::string seen = absl::StrCat(port.state, " (", port.phys_state, "), ",
                                  LayerText(port.link_layer), ", ", port.rate);
  if (!port.netdev.empty()) absl::StrAppend(&seen, ", network device ", port.netdev);
  if (port.active()) {
    exam.report.Ok(name, seen);
  } else if (inventory.any_active()) {
    exam.report.Skip(name, seen + ": another port is active");
  } else {
    exam.Add(
        name, exam.Bad(), seen,
        port.link_layer == LinkLayer::kInfiniband
            ? "ibstat  # cable, then a subnet manager: systemctl start opensm"
            : absl::StrCat("ip link set ", port.netdev.empty() ? "IFACE" : port.netdev, " up"));
  }
}

void CheckMtu(const Exam& exam, const RdmaPort& port, const std::string& where) {
  const std::string name = "rdma.mtu " + where;
  if (port.active_mtu == 0) {
    exam.report.Skip(
        name, absl::StrCat("libibverbs could not be asked for the active MTU",
                           port.netdev_mtu > 0
                               ? absl::StrCat("; ", port.netdev, " has MTU ", port.netdev_mtu,
                                              ", good for ", RoceMtuFor(port.netdev_mtu))
                               : ""));
    return;
  }
  std::string seen = absl::StrCat("active path MTU ", port.active_mtu);
  if (port.netdev_mtu > 0)
    absl::StrAppend(&seen, "; ", port.netdev, " has MTU ", port.netdev_mtu, ", good for ",
                    RoceMtuFor(port.netdev_mtu));
  if (port.netdev_mtu > 0 && port.active_mtu < RoceMtuFor(port.netdev_mtu)) {
    exam.Add(
        name, Verdict::kWarn, seen + ": the device has not taken it up",
        absl::StrCat("ip link set ", port.netdev, " down && ip link set ", port.netdev, " up"));
  } else if (port.active_mtu < kBestMtu && !port.netdev.empty()) {
    exam.Add(
        name, Verdict::kWarn,
        absl::StrCat(seen, ": ", kBestMtu / port.active_mtu, " times the packets of ", kBestMtu),
        absl::StrCat("ip link set ", port.netdev, " mtu 9000  # at least ", NetdevMtuFor(kBestMtu),
                     ", on both sides and every switch between"));
  } else {
    exam.report.Ok(name, seen);
  }
}

std::string GidLine(const RankedGid& gid) {
  std::string text = absl::StrCat(gid.entry.index, " ", GidText(gid.entry.gid));
  if (!gid.entry.netdev.empty()) absl::StrAppend(&text, " on ", gid.entry.netdev);
  return absl::StrCat(text, " (", gid.why, ")");
}

void CheckGids(const Exam& exam, const RdmaDevice& device, const RdmaPort& port,
               const std::string& where) {
  const std::string name = "rdma.gids " + where;
  const GidWish wish = WishOf(exam, device, port);
  const auto picked = PickGid(port.gids, wish);
  if (!picked.ok()) {
    exam.Add(
        name, exam.Bad(), Text(picked.status()),
        absl::StrCat("ip addr add ADDRESS/24 dev ", port.netdev.empty() ? "IFACE" : port.netdev,
                     "  # then: rdma link show; ls /sys/class/infiniband/*/ports/*/gids"));
    return;
  }
  std::vector<std::string> rest;
  for (const RankedGid& gid : RankGids(port.gids, wish)) {
    if (gid.entry.index != picked->entry.index) rest.push_back(GidLine(gid));
  }
  std::string seen = absl::StrCat("best is ", GidLine(*picked));
  if (!rest.empty()) absl::StrAppend(&seen, "; before ", absl::StrJoin(rest, ", "));
  const bool unknown = picked->entry.type == transport::rdma::GidType::kUnknown;
  exam.Add(name, unknown ? Verdict::kWarn : Verdict::kOk, seen,
           unknown
               ? "cat /sys/class/infiniband/*/ports/*/gid_attrs/types/*  # on the host, outside "
                 "the container; then set the index of the RoCE v2 entry in the config"
               : "");
}

// Where an address stands as a GID of an active port; nothing in `port` where it does not.
struct Owner {
  std::string port;
  RankedGid gid;
};

// The owner of `address`; else, where there is one, the first port's best.
Owner OwnerOf(const Exam& exam, const Inventory& inventory, const transport::rdma::Gid& address,
              Owner* instead) {
  for (const RdmaDevice& device : inventory.devices) {
    for (const RdmaPort& port : device.ports) {
      if (!port.active() || port.link_layer == LinkLayer::kInfiniband) continue;
      const uint32_t wanted = exam.config.transport.roce.port;
      if (wanted != 0 && wanted != port.number) continue;
      GidWish wish = WishOf(exam, device, port);
      if (const auto best = PickGid(port.gids, wish); best.ok() && instead->port.empty())
        *instead = {PortName(device, port), *best};
      wish.address = address;
      if (const auto own = PickGid(port.gids, wish); own.ok())
        return {PortName(device, port), *own};
    }
  }
  return {};
}

// Whether links to a service address (one of lo, that is not loopback) can find their device: the
// kernel's route to each peer names it, which takes librdmacm and its node.
bool RouteServes(const Exam& exam, const std::string& address) {
  const std::vector<InterfaceAddress> all = exam.env.interfaces();
  const bool on_lo = std::any_of(all.begin(), all.end(), [&](const InterfaceAddress& one) {
    return one.interface == "lo" && one.address == address && !IsLoopback(address);
  });
  return on_lo && exam.env.rdma_cm().ok() && exam.env.may_open("/dev/infiniband/rdma_cm").ok();
}

// A link's queue pairs use the port of the route to the peer; where nobody can be asked for that,
// the GID of the address that its control socket has.
void CheckLinkAddress(const Exam& exam, const Inventory& inventory) {
  const std::string name = "rdma.address";
  if (exam.config.transport.roce.gid_index >= 0) {
    exam.report.Ok(name, absl::StrCat("GID ", exam.config.transport.roce.gid_index,
                                      " whatever the address: [transport.roce] gid_index"));
    return;
  }
  const auto address = LinkAddress(exam);
  if (!address.ok() || (address->loopback && exam.wish != RdmaWish::kMust)) {
    exam.report.Skip(name, address.ok() ? "links stay on this machine" : Text(address.status()));
    return;
  }
  const auto gid = transport::rdma::ParseGid(address->address);
  if (!gid.ok()) {
    exam.report.Skip(name, Text(gid.status()));
    return;
  }
  Owner instead;
  const Owner owner = OwnerOf(exam, inventory, *gid, &instead);
  if (!owner.port.empty()) {
    exam.report.Ok(name, absl::StrCat("links to ", address->address, " use GID ",
                                      owner.gid.entry.index, " of ", owner.port));
  } else if (instead.port.empty()) {
    exam.report.Skip(name, "no active RoCE port has a GID to use");
  } else if (RouteServes(exam, address->address)) {
    exam.report.Ok(name, absl::StrCat("links to ", address->address,
                                      ", a service address that no RDMA device has, take the port "
                                      "of the route to each peer (librdmacm)"));
  } else {
    const std::string better = GidText(instead.gid.entry.gid);
    exam.Add(name, exam.Bad(),
             absl::StrCat("links would go to ", address->address, " (", address->why,
                          "), which no RDMA device has; ", instead.port, " has ", better),
             absl::StrCat("[transport] listen = \"",
                          better.find(':') == std::string::npos ? better : "[" + better + "]",
                          ":PORT\", and children join under an address of that network"));
  }
}

}  // namespace

transport::rdma::GidWish WishOf(const Exam& exam, const RdmaDevice& device, const RdmaPort& port) {
  transport::rdma::GidWish wish;
  wish.link_layer = port.link_layer;
  wish.netdev = port.netdev;
  const server::RoceConfig& roce = exam.config.transport.roce;
  const bool meant = (roce.device.empty() || roce.device == device.name) &&
                     (roce.port == 0 || roce.port == port.number);
  if (roce.gid_index >= 0 && meant) wish.index = static_cast<uint32_t>(roce.gid_index);
  return wish;
}

std::string PortName(const RdmaDevice& device, const RdmaPort& port) {
  return absl::StrCat(device.name, "/", port.number);
}

void CheckPorts(const Exam& exam, const Inventory& inventory) {
  for (const RdmaDevice& device : inventory.devices) {
    for (const RdmaPort& port : device.ports) {
      const std::string where = PortName(device, port);
      CheckState(exam, inventory, port, where);
      if (!port.active()) continue;
      CheckMtu(exam, port, where);
      CheckGids(exam, device, port, where);
      if (port.netdev.empty()) continue;
      if (const auto bond = ReadBond(*exam.env.files, port.netdev); bond.has_value()) {
        Finding finding = JudgeBond(*bond, exam.config.transport.lanes);
        finding.name = "rdma.bond " + where;
        exam.report.Add(std::move(finding));
      }
    }
  }
  if (inventory.any_active()) CheckLinkAddress(exam, inventory);
}

}  // namespace tributary::doctor::internal
