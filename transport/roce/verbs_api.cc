// libibverbs by dlopen.
#include "transport/roce/verbs_api.h"

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/roce/library.h"

namespace tributary::transport::roce {
namespace {

class LoadedVerbs final : public VerbsApi {
 public:
  LoadedVerbs() {
    Find("ibv_get_device_list", "IBVERBS_1.1", &get_device_list_);
    Find("ibv_free_device_list", "IBVERBS_1.1", &free_device_list_);
    Find("ibv_get_device_name", "IBVERBS_1.1", &get_device_name_);
    Find("ibv_open_device", "IBVERBS_1.1", &open_device_);
    Find("ibv_close_device", "IBVERBS_1.1", &close_device_);
    Find("ibv_query_device", "IBVERBS_1.1", &query_device_);
    Find("ibv_query_port", "IBVERBS_1.1", &query_port_);
    Find("_ibv_query_gid_table", "IBVERBS_1.11", &query_gid_table_);
    Find("ibv_get_async_event", "IBVERBS_1.1", &get_async_event_);
    Find("ibv_ack_async_event", "IBVERBS_1.1", &ack_async_event_);
    Find("ibv_alloc_pd", "IBVERBS_1.1", &alloc_pd_);
    Find("ibv_dealloc_pd", "IBVERBS_1.1", &dealloc_pd_);
    Find("ibv_reg_mr", "IBVERBS_1.1", &reg_mr_);
    Find("ibv_dereg_mr", "IBVERBS_1.1", &dereg_mr_);
    Find("ibv_create_comp_channel", "IBVERBS_1.0", &create_comp_channel_);
    Find("ibv_destroy_comp_channel", "IBVERBS_1.0", &destroy_comp_channel_);
    Find("ibv_create_cq", "IBVERBS_1.1", &create_cq_);
    Find("ibv_destroy_cq", "IBVERBS_1.1", &destroy_cq_);
    Find("ibv_get_cq_event", "IBVERBS_1.1", &get_cq_event_);
    Find("ibv_ack_cq_events", "IBVERBS_1.1", &ack_cq_events_);
    Find("ibv_create_qp", "IBVERBS_1.1", &create_qp_);
    Find("ibv_modify_qp", "IBVERBS_1.1", &modify_qp_);
    Find("ibv_destroy_qp", "IBVERBS_1.1", &destroy_qp_);
    Find("ibv_wc_status_str", "IBVERBS_1.1", &wc_status_str_);
    Find("ibv_event_type_str", "IBVERBS_1.1", &event_type_str_);
    // Of rdma-core 34 and later; GPU memory alone needs it.
    library_.FindOptional("ibv_reg_dmabuf_mr", "IBVERBS_1.12", &reg_dmabuf_mr_);
  }
  const std::string& missing() const { return library_.missing(); }

  ibv_device** GetDeviceList(int* count) override { return get_device_list_(count); }
  void FreeDeviceList(ibv_device** list) override { free_device_list_(list); }
  const char* GetDeviceName(ibv_device* device) override { return get_device_name_(device); }
  ibv_context* OpenDevice(ibv_device* device) override { return open_device_(device); }
  int CloseDevice(ibv_context* context) override { return close_device_(context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attributes) override {
    return query_device_(context, attributes);
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    // The symbol knows the struct's older, shorter form: what is beyond stays zero.
    *attributes = {};
    return query_port_(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
  }
  ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t most) override {
    return query_gid_table_(context, entries, most, /*flags=*/0, sizeof(*entries));
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    return get_async_event_(context, event);
  }
  void AckAsyncEvent(ibv_async_event* event) override { ack_async_event_(event); }

  ibv_pd* AllocPd(ibv_context* context) override { return alloc_pd_(context); }
  int DeallocPd(ibv_pd* pd) override { return dealloc_pd_(pd); }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return reg_mr_(pd, address, bytes, access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override {
    if (reg_dmabuf_mr_ == nullptr) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    return reg_dmabuf_mr_(pd, offset, bytes, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override { return dereg_mr_(mr); }

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    return create_comp_channel_(context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    return destroy_comp_channel_(channel);
  }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return create_cq_(context, entries, /*cq_context=*/nullptr, channel, /*comp_vector=*/0);
  }
  int DestroyCq(ibv_cq* cq) override { return destroy_cq_(cq); }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq, void** context) override {
    return get_cq_event_(channel, cq, context);
  }
  void AckCqEvents(ibv_cq* cq, unsigned int events) override { ack_cq_events_(cq, events); }
  // These four go through the context's own table: the library has no symbols for them.
  int ReqNotifyCq(ibv_cq* cq) override { return ibv_req_notify_cq(cq, /*solicited_only=*/0); }
  int PollCq(ibv_cq* cq, int most, ibv_wc* completions) override {
    return ibv_poll_cq(cq, most, completions);
  }
  int PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) override {
    return ibv_post_send(qp, request, bad);
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) override {
    return ibv_post_recv(qp, request, bad);
  }

  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    return create_qp_(pd, attributes);
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return modify_qp_(qp, attributes, mask);
  }
  int DestroyQp(ibv_qp* qp) override { return destroy_qp_(qp); }
  const char* WcStatusText(ibv_wc_status status) override { return wc_status_str_(status); }
  const char* EventText(ibv_event_type type) override { return event_type_str_(type); }

 private:
  template <typename Function>
  void Find(const char* name, const char* version, Function** to) {
    library_.Find(name, version, to);
  }

  Library library_{"libibverbs.so.1"};
  decltype(::ibv_get_device_list)* get_device_list_ = nullptr;
  decltype(::ibv_free_device_list)* free_device_list_ = nullptr;
  decltype(::ibv_get_device_name)* get_device_name_ = nullptr;
  decltype(::ibv_open_device)* open_device_ = nullptr;
  decltype(::ibv_close_device)* close_device_ = nullptr;
  decltype(::ibv_query_device)* query_device_ = nullptr;
  int (*query_port_)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;
  decltype(::_ibv_query_gid_table)* query_gid_table_ = nullptr;
  decltype(::ibv_get_async_event)* get_async_event_ = nullptr;
  decltype(::ibv_ack_async_event)* ack_async_event_ = nullptr;
  decltype(::ibv_alloc_pd)* alloc_pd_ = nullptr;
  decltype(::ibv_dealloc_pd)* dealloc_pd_ = nullptr;
  decltype(::ibv_reg_mr)* reg_mr_ = nullptr;
  decltype(::ibv_reg_dmabuf_mr)* reg_dmabuf_mr_ = nullptr;
  decltype(::ibv_dereg_mr)* dereg_mr_ = nullptr;
  decltype(::ibv_create_comp_channel)* create_comp_channel_ = nullptr;
  decltype(::ibv_destroy_comp_channel)* destroy_comp_channel_ = nullptr;
  decltype(::ibv_create_cq)* create_cq_ = nullptr;
  decltype(::ibv_destroy_cq)* destroy_cq_ = nullptr;
  decltype(::ibv_get_cq_event)* get_cq_event_ = nullptr;
  decltype(::ibv_ack_cq_events)* ack_cq_events_ = nullptr;
  decltype(::ibv_create_qp)* create_qp_ = nullptr;
  decltype(::ibv_modify_qp)* modify_qp_ = nullptr;
  decltype(::ibv_destroy_qp)* destroy_qp_ = nullptr;
  decltype(::ibv_wc_status_str)* wc_status_str_ = nullptr;
  decltype(::ibv_event_type_str)* event_type_str_ = nullptr;
};

}  // namespace

absl::StatusOr<std::shared_ptr<VerbsApi>> LoadVerbs() {
  auto api = std::make_shared<LoadedVerbs>();
  if (api->missing().empty()) return api;
  return absl::FailedPreconditionError(
      absl::StrCat("RoCE needs libibverbs 1.11 or later (rdma-core 34): ", api->missing(),
                   "; install libibverbs1 and ibverbs-providers, or set transport = \"tcp\""));
}

}  // namespace tributary::transport::roce
