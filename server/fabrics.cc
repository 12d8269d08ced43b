// Making fabrics, and passing their addresses from parent to child.
#include "server/fabrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/auto.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

bool IsHostPort(const std::string& address) {
  return !address.starts_with('@') && address.find(':') != std::string::npos;
}

}  // namespace

const std::vector<std::string>& TransportKinds() {
  static const std::vector<std::string> kinds = {"tcp", "shm", "auto"};
  return kinds;
}

absl::StatusOr<FabricChoice> MakeFabric(const TransportConfig& config) {
  if (config.kind == "tcp") return FabricChoice{transport::MakeTcpFabric(), config.listen};
  if (config.kind == "shm") return FabricChoice{transport::MakeShmFabric(), "@"};
  if (config.kind == "auto") {
    std::vector<transport::AutoCandidate> candidates;
    candidates.push_back(transport::ShmCandidate());
    candidates.push_back(transport::TcpCandidate(config.listen));
    return FabricChoice{transport::MakeAutoFabric(std::move(candidates)), ""};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("[transport] kind \"", config.kind, "\" is not in this build"));
}

std::vector<LinkPlace> PlacesToTell(const std::string& kind, const std::string& bound,
                                    const std::string& advertise) {
  const auto told = [&](const std::string& address) {
    if (!IsHostPort(address)) return address;
    return advertise.empty() ? address.substr(address.rfind(':')) : advertise;
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
