// Making fabrics, and passing their addresses from parent to child.
#include "server/fabrics.h"

#include <spdlog/spdlog.h>
#include <algorithm>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/auto.h"
#include "transport/faults.h"
#include "transport/rdma/memlock.h"
#include "transport/roce.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

bool IsHostPort(const std::string& address) {
  return !address.starts_with('@') && address.find(':') != std::string::npos;
}

// Two: a link that ends may still hold its memory while the next is made.
constexpr uint32_t kLinksToParent = 2;

// Of each RDMA arena, what a rack keeps for its parent.
size_t ArenaToParent(const TransportConfig& config) {
  return std::min<size_t>(config.roce.arena_bytes,
                          kLinksToParent * transport::rdma::LinkArenaBytes(
                                               config.slots, transport::LinkOptions().chunk_bytes));
}

// This machine's RDMA, null where the kind has none to do with it, or where auto goes without.
absl::StatusOr<transport::RoceDevices> OpenDevices(const TransportConfig& config, bool is_root) {
  if (config.kind != "roce" && config.kind != "auto") return nullptr;
  auto devices = transport::OpenRoceDevices(RoceOptionsOf(config, is_root));
  if (devices.ok() || config.kind == "roce") return devices;
  spdlog::info("links: auto goes without RoCE: {}", Text(devices.status()));
  return nullptr;
}

// What links over RDMA may take; tcp and shm know nothing of it.
struct RdmaPart {
  transport::RoceDevices devices;
  size_t arena_bytes = 0, kept_bytes = 0;
};

absl::StatusOr<FabricChoice> MakeFabricOver(const TransportConfig& config, const RdmaPart& rdma) {
  if (config.kind == "tcp") return FabricChoice{transport::MakeTcpFabric(), config.listen};
  if (config.kind == "shm") return FabricChoice{transport::MakeShmFabric(), "@"};
  if (config.kind == "roce") {
    return FabricChoice{transport::MakeRoceFabric(rdma.devices, rdma.arena_bytes, rdma.kept_bytes),
                        config.listen};
  }
  if (config.kind == "auto") {
    std::vector<transport::AutoCandidate> candidates;
    candidates.push_back(transport::ShmCandidate());
    if (rdma.devices != nullptr) {  // it listens on a port of its own
      const std::string listen = config.listen.substr(0, config.listen.rfind(':')) + ":0";
      candidates.push_back(
          transport::RoceCandidate(rdma.devices, rdma.arena_bytes, rdma.kept_bytes, listen));
    }
    candidates.push_back(transport::TcpCandidate(config.listen));
    return FabricChoice{transport::MakeAutoFabric(std::move(candidates)), ""};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("[transport] kind \"", config.kind, "\" is not in this build"));
}

absl::StatusOr<std::unique_ptr<transport::Fabric>> MakeFabricToParent(
    const TransportConfig& config, transport::RoceDevices devices) {
  ASSIGN_OR_RETURN(
      FabricChoice choice,
      MakeFabricOver(config, {std::move(devices), ArenaToParent(config), /*kept_bytes=*/0}));
  transport::Faults faults;
  if (config.faults.stall_after > 0) faults.stall_after = config.faults.stall_after;
  if (config.faults.cut_after > 0) faults.cut_after = config.faults.cut_after;
  if (!faults.stall_after.has_value() && !faults.cut_after.has_value())
    return std::move(choice.fabric);
  spdlog::warn("[transport.faults]: links to the parent stall or are cut on purpose");
  return transport::MakeFaultyFabric(std::move(choice.fabric), faults);
}

}  // namespace

const std::vector<std::string>& TransportKinds() {
  static const std::vector<std::string> kinds = {"tcp", "shm", "roce", "auto"};
  return kinds;
}

transport::RoceOptions RoceOptionsOf(const TransportConfig& config, bool is_root) {
  transport::RoceOptions options;
  options.device = config.roce.device;
  options.port = config.roce.port;
  options.gid_index = config.roce.gid_index;
  options.path_mtu = config.roce.path_mtu;
  options.traffic_class = config.roce.traffic_class;
  options.hop_limit = config.roce.hop_limit;
  options.service_level = config.roce.service_level;
  options.ack_timeout = absl::Seconds(config.roce.ack_timeout_s);
  options.retries = config.roce.retries;
  options.arena_bytes = config.roce.arena_bytes + (is_root ? 0 : ArenaToParent(config));
  if (config.roce.memory == "cuda") options.arena_memory = transport::MemoryKind::kCuda;
  return options;
}

transport::LinkOptions LinkOptionsOf(const TransportConfig& config) {
  transport::LinkOptions options;
  options.slots = config.slots;
  options.lanes = config.lanes;
  options.heartbeat = absl::Seconds(config.heartbeat_s);
  options.heartbeats_missed = config.heartbeats_missed;
  options.progress_timeout = absl::Seconds(config.progress_timeout_s);
  return options;
}

absl::StatusOr<NodeFabrics> MakeFabrics(const TransportConfig& config, bool is_root) {
  ASSIGN_OR_RETURN(const transport::RoceDevices devices, OpenDevices(config, is_root));
  NodeFabrics out;
  ASSIGN_OR_RETURN(out.to_children, MakeFabricOver(config, {devices, config.roce.arena_bytes,
                                                            is_root ? 0 : ArenaToParent(config)}));
  if (is_root) return out;
  ASSIGN_OR_RETURN(out.to_parent, MakeFabricToParent(config, devices));
  return out;
}

std::vector<LinkPlace> PlacesToTell(const std::string& kind, const std::string& bound,
                                    const std::string& advertise) {
  // What is advertised is the port that [transport] listen gives; auto's others are behind its
  // host.
  std::string advertised = bound;
  if (const auto offers = transport::DecodeOffers(bound); offers.ok()) {
    for (const transport::AutoOffer& offer : *offers) {
      if (offer.kind == "tcp") advertised = offer.address;
    }
  }
  const auto told = [&](const std::string& address) {
    if (!IsHostPort(address)) return address;
    const std::string port = address.substr(address.rfind(':'));
    if (advertise.empty() || address == advertised) return advertise.empty() ? port : advertise;
    return advertise.substr(0, advertise.rfind(':')) + port;
  };
  std::vector<LinkPlace> out = {{kind, transport::MapAddresses(bound, told)}};
  if (const auto offers = transport::DecodeOffers(bound); offers.ok()) {
    for (const transport::AutoOffer& offer : *offers) {
      out.push_back({offer.kind, told(offer.address)});
    }
  }
  return out;
}

std::string PlaceToTake(const std::string& kind, const std::vector<LinkPlace>& offered,
                        const std::string& parent_host) {
  const auto with_host = [&](const std::string& address) {
    return address.starts_with(':') ? parent_host + address : address;
  };
  std::vector<transport::AutoOffer> singles;
  for (const LinkPlace& place : offered) {
    if (place.transport == kind) return transport::MapAddresses(place.address, with_host);
    singles.push_back({.kind = place.transport,
                       .preference = 0,
                       .self = "",
                       .address = with_host(place.address)});
  }
  return kind == "auto" && !singles.empty() ? transport::EncodeOffers(singles) : "";
}

}  // namespace tributary::server
