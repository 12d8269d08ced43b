// librdmacm by dlopen.
#include "transport/roce/cm_api.h"

#include "transport/roce/library.h"

namespace tributary::transport::roce {
namespace {

class LoadedCm final : public CmApi {
 public:
  LoadedCm() {
    constexpr const char* kVersion = "RDMACM_1.0";
    library_.Find("rdma_create_event_channel", kVersion, &create_event_channel_);
    library_.Find("rdma_destroy_event_channel", kVersion, &destroy_event_channel_);
    library_.Find("rdma_create_id", kVersion, &create_id_);
    library_.Find("rdma_destroy_id", kVersion, &destroy_id_);
    library_.Find("rdma_resolve_addr", kVersion, &resolve_addr_);
    library_.Find("rdma_get_cm_event", kVersion, &get_cm_event_);
    library_.Find("rdma_ack_cm_event", kVersion, &ack_cm_event_);
  }
  const std::string& missing() const { return library_.missing(); }

  rdma_event_channel* CreateEventChannel() override { return create_event_channel_(); }
  void DestroyEventChannel(rdma_event_channel* channel) override {
    destroy_event_channel_(channel);
  }
  int CreateId(rdma_event_channel* channel, rdma_cm_id** id) override {
    return create_id_(channel, id, /*context=*/nullptr, RDMA_PS_TCP);
  }
  int DestroyId(rdma_cm_id* id) override { return destroy_id_(id); }
  int ResolveAddr(rdma_cm_id* id, sockaddr* source, sockaddr* destination,
                  int timeout_ms) override {
    return resolve_addr_(id, source, destination, timeout_ms);
  }
  int GetCmEvent(rdma_event_channel* channel, rdma_cm_event** event) override {
    return get_cm_event_(channel, event);
  }
  int AckCmEvent(rdma_cm_event* event) override { return ack_cm_event_(event); }

 private:
  Library library_{"librdmacm.so.1"};
  decltype(::rdma_create_event_channel)* create_event_channel_ = nullptr;
  decltype(::rdma_destroy_event_channel)* destroy_event_channel_ = nullptr;
  decltype(::rdma_create_id)* create_id_ = nullptr;
  decltype(::rdma_destroy_id)* destroy_id_ = nullptr;
  decltype(::rdma_resolve_addr)* resolve_addr_ = nullptr;
  decltype(::rdma_get_cm_event)* get_cm_event_ = nullptr;
  decltype(::rdma_ack_cm_event)* ack_cm_event_ = nullptr;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CmApi>> LoadCm() {
  auto api = std::make_shared<LoadedCm>();
  if (api->missing().empty()) return api;
  return absl::FailedPreconditionError(
      absl::StrCat(api->missing(), " (apt-get install librdmacm1)"));
}

}  // namespace tributary::transport::roce
