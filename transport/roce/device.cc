// Opens a device and listens to its events.
#include "transport/roce/device.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::roce {
namespace {

const char* PortStateText(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initialising (is a subnet manager running?)";
    case IBV_PORT_ARMED:
      return "armed, not active";
    default:
      return "in no known state";
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<RoceDevice>> RoceDevice::Open(
    std::shared_ptr<VerbsApi> api, const absl::StatusOr<std::shared_ptr<CudaApi>>& cuda,
    ibv_device* device, const RoceOptions& options) {
  ASSIGN_OR_RETURN(tcp::Waker stop, tcp::Waker::Create());
  std::shared_ptr<RoceDevice> opened(new RoceDevice(std::move(api), std::move(stop)));
  opened->name_ = opened->api_->GetDeviceName(device);
  const absl::Status status = opened->SetUp(cuda, device, options);
  if (!status.ok()) return Annotate(status, absl::StrCat("RDMA device ", opened->name_));
  return opened;
}

absl::StatusOr<std::unique_ptr<ArenaMemory>> RoceDevice::Memory(
    const absl::StatusOr<std::shared_ptr<CudaApi>>& cuda, const RoceOptions& options) {
  const size_t bytes = (options.arena_bytes + kArenaPage - 1) / kArenaPage * kArenaPage;
  if (options.arena_memory == MemoryKind::kHost) return MapHostMemory(*api_, bytes);
  if (options.arena_memory == MemoryKind::kShared) {
    return absl::InvalidArgumentError("an RDMA arena is in host or in CUDA memory, not in shared");
  }
  if (!cuda.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("an RDMA arena in CUDA memory was asked for, and there is no CUDA here: ",
                     cuda.status().message(),
                     "; install the GPU's driver, or set [transport.roce] memory = \"host\""));
  }
  return MapCudaMemory(*cuda, *api_, pd_, bytes);
}

absl::Status RoceDevice::SetUp(const absl::StatusOr<std::shared_ptr<CudaApi>>& cuda,
                               ibv_device* device, const RoceOptions& options) {
  context_ = api_->OpenDevice(device);
  if (context_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot be opened: ", std::strerror(errno),
                     "; does this process see and may it use /dev/infiniband/uverbs*?"));
  }
  if (const int error = api_->QueryDevice(context_, &attributes_); error != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot be queried: ", std::strerror(error)));
  }
  pd_ = api_->AllocPd(context_);
  if (pd_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("has no protection domain for us: ", std::strerror(errno)));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ArenaMemory> memory, Memory(cuda, options));
  ASSIGN_OR_RETURN(arena_,
                   RegisteredArena::Create(*api_, pd_, std::move(memory), attributes_.max_mr_size));
  spdlog::info("RDMA device {}: arena of {} bytes of {} in {} registration(s)", name_,
               options.arena_bytes, arena_->description(), arena_->registrations());
  return StartEvents();
}

RoceDevice::~RoceDevice() {
  stop_.Wake();
  if (events_.joinable()) events_.join();
  arena_.reset();
  if (pd_ != nullptr) api_->DeallocPd(pd_);
  if (context_ != nullptr) api_->CloseDevice(context_);
}

absl::StatusOr<std::vector<ibv_gid_entry>> RoceDevice::Gids() const {
  // The largest tables in use have 256 entries a port; twice that for two ports.
  std::vector<ibv_gid_entry> entries(512);
  const ssize_t n = api_->QueryGidTable(context_, entries.data(), entries.size());
  if (n < 0) {
    return absl::UnavailableError(
        absl::StrCat("RDMA device ", name_,
                     ": its GID table cannot be read: ", std::strerror(static_cast<int>(-n))));
  }
  entries.resize(static_cast<size_t>(n));
  return entries;
}

absl::StatusOr<ibv_port_attr> RoceDevice::Port(uint8_t port) const {
  ibv_port_attr attributes{};
  if (const int error = api_->QueryPort(context_, port, &attributes); error != 0) {
    return absl::NotFoundError(absl::StrCat("there is no port ", port, ": ", std::strerror(error)));
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    return absl::UnavailableError(absl::StrCat("port ", port, " is ",
                                               PortStateText(attributes.state),
                                               "; bring its network interface up"));
  }
  return attributes;
}

uint64_t RoceDevice::Watch(OnFatal on_fatal) {
  std::lock_guard lock(watchers_mutex_);
  watchers_.emplace(next_watcher_, std::move(on_fatal));
  return next_watcher_++;
}

void RoceDevice::Unwatch(uint64_t id) {
  std::lock_guard lock(watchers_mutex_);
  watchers_.erase(id);
}

absl::Status RoceDevice::StartEvents() {
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return tcp::ErrnoStatus("its events cannot be listened to", errno);
  }
  try {
    events_ = std::thread([this] { RunEvents(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the thread for its events: ", error.what()));
  }
  return absl::OkStatus();
}

void RoceDevice::RunEvents() {
  while (true) {
    pollfd entries[2] = {{.fd = stop_.fd(), .events = POLLIN, .revents = 0},
                         {.fd = context_->async_fd, .events = POLLIN, .revents = 0}};
    poll(entries, 2, -1);
    if (entries[0].revents != 0) return;
    ibv_async_event event{};
    if (api_->GetAsyncEvent(context_, &event) != 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      spdlog::warn("RDMA device {}: its events can no longer be read: {}", name_,
                   std::strerror(errno));
      return;
    }
    HandleEvent(event);
    api_->AckAsyncEvent(&event);  // not later: destroying what the event names waits for this
  }
}

void RoceDevice::HandleEvent(const ibv_async_event& event) {
  const std::string what = api_->EventText(event.event_type);
  uint32_t queue_pair = 0;
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      queue_pair = event.element.qp->qp_num;
      break;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
      break;
    default:
      // Ports going down and up, GID and partition tables changing: links notice by themselves if
      // it is for long.
      spdlog::info("RDMA device {}: {}", name_, what);
      return;
  }
  spdlog::error("RDMA device {}: {}", name_, what);
  std::lock_guard lock(watchers_mutex_);
  for (const auto& [id, on_fatal] : watchers_) on_fatal(what, queue_pair);
}

}  // namespace tributary::transport::roce
