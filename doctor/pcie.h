// How far two PCI devices are from each other, from their places in /sys; and whether access
// control (ACS) sends what passes between them up to the root complex. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tributary::doctor {

// The nearest first; the names are those of `nvidia-smi topo -m`.
enum class PcieDistance {
  kSame,    // functions of one device
  kPix,     // at most one PCIe switch between them
  kPxb,     // several switches, but no host bridge
  kPhb,     // the host bridge (root complex) of a CPU
  kNode,    // two host bridges of one NUMA node
  kSystem,  // the link between NUMA nodes
  kUnknown,
};
std::string_view PcieDistanceText(PcieDistance distance);  // "PIX: at most one switch between"

struct PciPlace {
  std::string path;    // resolved: "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0", or below it
  int numa_node = -1;  // -1: the firmware does not say
};

// "0000:18:00.0": the last PCI function in a resolved /sys path; empty where there is none (virtual
// devices).
std::string PciAddress(const std::string& path);

PcieDistance DistanceBetween(const PciPlace& a, const PciPlace& b);

// The bridges that a packet between the two passes on its shortest way: those above either device
// and below the last one that both are under, a's first. Empty for functions of one card.
std::vector<std::string> BridgesBetween(const PciPlace& a, const PciPlace& b);

// The control register of the Access Control Services capability (PCI Express Base Specification,
// 7.7.8), found in a function's configuration space. Nothing where the function has none, or where
// fewer than 4 KiB could be read (that takes root).
std::optional<uint16_t> AcsControl(std::string_view config_space);
// Does this register send peer-to-peer requests or completions upstream?
bool AcsRedirects(uint16_t control);

}  // namespace tributary::doctor
