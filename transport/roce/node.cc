// Opens devices, and finds the one for a link.
#include "transport/roce/node.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/roce/queue_pair.h"
#include "transport/roce/route.h"
#include "transport/tcp/socket.h"

namespace tributary::transport::roce {
namespace {

// The list of devices, freed at its end.
class DeviceList {
 public:
  explicit DeviceList(VerbsApi& api) : api_(api) {
    errno = 0;
    list_ = api.GetDeviceList(&count_);
    error_ = errno;
  }
  ~DeviceList() {
    if (list_ != nullptr) api_.FreeDeviceList(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  absl::StatusOr<std::vector<ibv_device*>> Choose(const std::string& name) const {
    std::vector<ibv_device*> chosen;
    std::string names;
    for (int i = 0; list_ != nullptr && i < count_; ++i) {
      const char* one = api_.GetDeviceName(list_[i]);
      absl::StrAppend(&names, names.empty() ? "" : ", ", one);
      if (name.empty() || name == one) chosen.push_back(list_[i]);
    }
    if (!chosen.empty()) return chosen;
    if (!names.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no RDMA device \"", name, "\"; there are: ", names));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("there is no RDMA device on this machine",
                     list_ == nullptr ? absl::StrCat(" (", std::strerror(error_), ")") : "",
                     "; load its driver (`rdma link` lists devices), pass /dev/infiniband into the "
                     "container, add "
                     "a software device (`rdma link add rxe0 type rxe netdev eth0`), or set "
                     "transport = \"tcp\""));
  }

 private:
  VerbsApi& api_;
  int count_ = 0;
  int error_ = 0;
  ibv_device** list_ = nullptr;
};

constexpr absl::Duration kCmPatience = absl::Seconds(2);

template <typename T>
absl::Status InRange(absl::string_view field, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("RoCE ", field, " is ", value, "; it must be ", least, " to ", most));
}

}  // namespace

absl::Status CheckRoceOptions(const RoceOptions& options) {
  RETURN_IF_ERROR(InRange<uint32_t>("port", options.port, 0, 255));
  RETURN_IF_ERROR(InRange<int>("gid_index", options.gid_index, -1, 255));
  RETURN_IF_ERROR(InRange<uint32_t>("traffic_class", options.traffic_class, 0, 255));
  RETURN_IF_ERROR(InRange<uint32_t>("hop_limit", options.hop_limit, 1, 255));
  RETURN_IF_ERROR(InRange<uint32_t>("service_level", options.service_level, 0, 15));
  RETURN_IF_ERROR(InRange<uint32_t>("retries", options.retries, 1, 7));
  RETURN_IF_ERROR(InRange<int64_t>("ack_timeout in µs",
                                   absl::ToInt64Microseconds(options.ack_timeout), 1, 60'000'000));
  RETURN_IF_ERROR(
      InRange<int64_t>("spin in µs", absl::ToInt64Microseconds(options.spin), 0, 10'000));
  if (options.path_mtu != 0 && !IsMtu(options.path_mtu)) {
    return absl::InvalidArgumentError(
        absl::StrCat("RoCE path_mtu is ", options.path_mtu,
                     "; it must be 0 (automatic), 256, 512, 1024, 2048 or 4096"));
  }
  return InRange<size_t>("arena_bytes", options.arena_bytes, RegisteredArena::kPage,
                         size_t{1} << 46);
}

absl::StatusOr<std::shared_ptr<RoceNode>> RoceNode::Open(const Libraries& libraries,
                                                         const RoceOptions& options,
                                                         const rdma::MemlockLimit& limit) {
  RETURN_IF_ERROR(CheckRoceOptions(options));
  // Before anything is opened, and said even where no device is: with one the start would fail too.
  const auto need = [&](size_t devices) {
    return rdma::MemlockNeedBytes(
        {.arena_bytes = options.arena_bytes, .devices = static_cast<uint32_t>(devices)});
  };
  RETURN_IF_ERROR(rdma::CheckMemlock(need(1), limit));
  const DeviceList list(*libraries.verbs);
  ASSIGN_OR_RETURN(const std::vector<ibv_device*> chosen, list.Choose(options.device));
  RETURN_IF_ERROR(rdma::CheckMemlock(need(chosen.size()), limit));
  std::shared_ptr<RoceNode> node(new RoceNode(options, libraries.cm));
  for (ibv_device* device : chosen) {
    ASSIGN_OR_RETURN(std::shared_ptr<RoceDevice> opened,
                     RoceDevice::Open(libraries.verbs, libraries.cuda, device, options));
    node->devices_.push_back(std::move(opened));
  }
  return node;
}

absl::StatusOr<std::vector<PortTable>> RoceNode::Tables() const {
  std::vector<PortTable> tables;
  for (size_t i = 0; i < devices_.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<ibv_gid_entry> entries, devices_[i]->Gids());
    for (PortTable& table : PortTables(i, devices_[i]->name(), entries)) {
      tables.push_back(std::move(table));
    }
  }
  return tables;
}

std::string RoceNode::Reach() const {
  absl::StatusOr<std::vector<PortTable>> tables = Tables();
  if (!tables.ok()) return "";
  std::erase_if(*tables, [this](const PortTable& table) {
    return !devices_[table.device]->Port(static_cast<uint8_t>(table.port)).ok();
  });
  PlaceWish wish;
  wish.port = options_.port;
  wish.index = options_.gid_index;
  return ReachOf(*tables, wish);
}

absl::StatusOr<GidPlace> RoceNode::ByRoute(absl::Span<const PortTable> tables, int fd,
                                           const Deadline& deadline) const {
  if (!cm_.ok()) return cm_.status();
  // The address resolves from tables, or by one neighbour solicitation: more is a broken network,
  // and whoever set the link up has a use for the rest of the time.
  const auto until = Deadline::Sooner(deadline, Deadline::After(kCmPatience));
  ASSIGN_OR_RETURN(const CmRoute route, AskRoute(**cm_, tcp::PeerAddress(fd), until));
  if (options_.port != 0 && options_.port != route.port) {
    return absl::FailedPreconditionError(
        absl::StrCat("the route goes by port ", route.port, ", and port = ", options_.port));
  }
  const PlaceWish wish{.device = route.device,
                       .port = route.port,
                       .index = options_.gid_index,
                       .address = route.gid,
                       .infiniband = route.gid,
                       .address_text = rdma::GidText(route.gid)};
  return PickPlace(tables, wish);
}

absl::StatusOr<GidPlace> RoceNode::ByAddress(absl::Span<const PortTable> tables, int fd) const {
  const tcp::SocketAddress local = tcp::LocalAddress(fd);
  return PickPlace(
      tables, {.device = {},
               .port = options_.port,
               .index = options_.gid_index,
               .address = rdma::GidOfAddress(reinterpret_cast<const sockaddr&>(local.storage)),
               .infiniband = IpoibGidOf(local.storage),
               .address_text = absl::StrCat(tcp::ToText(local), " of the link's control socket")});
}

absl::StatusOr<RoceNode::Place> RoceNode::PlaceFor(int fd, const Deadline& deadline) const {
  ASSIGN_OR_RETURN(const std::vector<PortTable> tables, Tables());
  absl::StatusOr<GidPlace> place = ByRoute(tables, fd, deadline);
  if (place.ok()) {
    place->why = absl::StrCat("by the route to the peer (librdmacm): ", place->why);
  } else {
    const absl::Status no_route = place.status();
    place = ByAddress(tables, fd);
    if (!place.ok()) {
      return Annotate(place.status(), absl::StrCat("not by route (", no_route.message(), ")"));
    }
    place->why = absl::StrCat("by the control socket's address, since not by route (",
                              no_route.message(), "): ", place->why);
  }
  return Place{.device = devices_[place->device], .at = *std::move(place)};
}

}  // namespace tributary::transport::roce
