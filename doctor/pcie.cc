// PCI distance by common bridges.
#include "doctor/pcie.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace tributary::doctor {
namespace {

// "0000:18:00.0"
bool IsFunction(const std::string& text) {
  const size_t n = text.size();
  if (n < 12 || text[n - 2] != '.' || text[n - 5] != ':' || text[n - 8] != ':') return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isxdigit(c) || c == ':' || c == '.';
  });
}

struct Chain {
  std::string host_bridge;             // "pci0000:17"
  std::vector<std::string> functions;  // from the root port to the device
};

Chain ChainOf(const std::string& path) {
  Chain chain;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path, '/'))) {
    if (chain.functions.empty() && part.starts_with("pci") && part.find(':') != std::string::npos) {
      chain.host_bridge = part;
    } else if (!chain.host_bridge.empty() && IsFunction(part)) {
      chain.functions.push_back(part);
    }
  }
  return chain;
}

// Without the function's number: ports of one card.
std::string Slot(const std::string& function) { return function.substr(0, function.rfind('.')); }

// How many of the bridges above both are the same ones, from the root port on.
size_t CommonBridges(const Chain& a, const Chain& b) {
  if (a.functions.empty() || b.functions.empty() || a.host_bridge != b.host_bridge) return 0;
  const size_t most = std::min(a.functions.size(), b.functions.size()) - 1;
  size_t common = 0;
  while (common < most && a.functions[common] == b.functions[common]) ++common;
  return common;
}

uint32_t Word(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  return value;
}

}  // namespace

std::string_view PcieDistanceText(PcieDistance distance) {
  switch (distance) {
    case PcieDistance::kSame:
      return "same card";
    case PcieDistance::kPix:
      return "PIX: at most one PCIe switch between";
    case PcieDistance::kPxb:
      return "PXB: several PCIe switches between";
    case PcieDistance::kPhb:
      return "PHB: through the CPU's host bridge";
    case PcieDistance::kNode:
      return "NODE: through two host bridges of one NUMA node";
    case PcieDistance::kSystem:
      return "SYS: through the link between NUMA nodes";
    case PcieDistance::kUnknown:
      break;
  }
  return "not known";
}

std::string PciAddress(const std::string& path) {
  const Chain chain = ChainOf(path);
  return chain.functions.empty() ? "" : chain.functions.back();
}

PcieDistance DistanceBetween(const PciPlace& a, const PciPlace& b) {
  const Chain x = ChainOf(a.path), y = ChainOf(b.path);
  if (x.functions.empty() || y.functions.empty()) return PcieDistance::kUnknown;
  if (x.host_bridge != y.host_bridge) {
    if (a.numa_node < 0 || b.numa_node < 0) return PcieDistance::kUnknown;
    return a.numa_node == b.numa_node ? PcieDistance::kNode : PcieDistance::kSystem;
  }
  if (Slot(x.functions.back()) == Slot(y.functions.back())) return PcieDistance::kSame;
  const size_t common = CommonBridges(x, y);
  if (common == 0) return PcieDistance::kPhb;
  // What lies between the last common bridge and the device: a switch shows as one downstream port.
  const size_t longest = std::max(x.functions.size(), y.functions.size()) - 1 - common;
  return longest <= 1 ? PcieDistance::kPix : PcieDistance::kPxb;
}

std::vector<std::string> BridgesBetween(const PciPlace& a, const PciPlace& b) {
  const Chain x = ChainOf(a.path), y = ChainOf(b.path);
  const size_t common = CommonBridges(x, y);
  std::vector<std::string> out;
  for (const Chain* chain : {&x, &y}) {
    for (size_t i = common; i + 1 < chain->functions.size(); ++i)
      out.push_back(chain->functions[i]);
  }
  return out;
}

std::optional<uint16_t> AcsControl(std::string_view config_space) {
  constexpr size_t kFirst = 0x100, kSize = 4096;
  constexpr uint32_t kAcsId = 0x000d;
  if (config_space.size() < kSize) return std::nullopt;
  // The list's links are 12 bits; one that is damaged and runs in a circle ends with the budget.
  size_t at = kFirst;
  for (size_t steps = 0; steps < kSize / 8 && at >= kFirst && at + 8 <= kSize; ++steps) {
    const uint32_t header = Word(config_space, at);
    if (header == 0 || header == UINT32_MAX) return std::nullopt;
    if ((header & 0xffff) == kAcsId)
      return static_cast<uint16_t>(Word(config_space, at + 4) >> 16);  // after 2 B of capabilities
    at = (header >> 20) & 0xffc;
  }
  return std::nullopt;
}

bool AcsRedirects(uint16_t control) {
  constexpr uint16_t kRequestRedirect = 1 << 2, kCompletionRedirect = 1 << 3;
  return (control & (kRequestRedirect | kCompletionRedirect)) != 0;
}

}  // namespace tributary::doctor
