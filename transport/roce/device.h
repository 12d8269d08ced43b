// An opened RDMA device: its protection domain, its arena, and its events.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "transport/roce.h"
#include "transport/roce/arena.h"
#include "transport/roce/verbs_api.h"
#include "transport/tcp/socket.h"

namespace tributary::transport::roce {

// Shared by the links over it; closed with the last of them. Thread-safe.
class RoceDevice {
 public:
  // What happened, and to which queue pair (0: to the port or to all of the device).
  using OnFatal = std::function<void(const std::string& what, uint32_t queue_pair)>;

  static absl::StatusOr<std::shared_ptr<RoceDevice>> Open(
      std::shared_ptr<VerbsApi> api, const absl::StatusOr<std::shared_ptr<CudaApi>>& cuda,
      ibv_device* device, const RoceOptions& options);
  ~RoceDevice();
  RoceDevice(const RoceDevice&) = delete;
  RoceDevice& operator=(const RoceDevice&) = delete;

  VerbsApi& api() const { return *api_; }
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const std::string& name() const { return name_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  RegisteredArena& arena() const { return *arena_; }

  absl::StatusOr<std::vector<ibv_gid_entry>> Gids() const;
  // UNAVAILABLE where the port is not active.
  absl::StatusOr<ibv_port_attr> Port(uint8_t port) const;

  // `on_fatal` is called from the device's thread until Unwatch has returned.
  uint64_t Watch(OnFatal on_fatal);
  void Unwatch(uint64_t id);

 private:
  RoceDevice(std::shared_ptr<VerbsApi> api, tcp::Waker stop)
      : api_(std::move(api)), stop_(std::move(stop)) {}
  absl::Status SetUp(const absl::StatusOr<std::shared_ptr<CudaApi>>& cuda, ibv_device* device,
                     const RoceOptions& options);
  absl::StatusOr<std::unique_ptr<ArenaMemory>> Memory(
      const absl::StatusOr<std::shared_ptr<CudaApi>>& cuda, const RoceOptions& options);
  absl::Status StartEvents();
  void RunEvents();
  void HandleEvent(const ibv_async_event& event);

  const std::shared_ptr<VerbsApi> api_;
  const tcp::Waker stop_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr attributes_{};
  std::unique_ptr<RegisteredArena> arena_;
  std::mutex watchers_mutex_;
  std::map<uint64_t, OnFatal> watchers_ ABSL_GUARDED_BY(watchers_mutex_);
  uint64_t next_watcher_ ABSL_GUARDED_BY(watchers_mutex_) = 1;
  std::thread events_;
};

}  // namespace tributary::transport::roce
