// The verbs that links need, as a table: filled from libibverbs with dlopen, so that one binary
// starts where no RDMA library is, and from a fake in the tests.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

// The header has macros of these names, which would rewrite every member that is called so.
#undef ibv_query_port
#undef ibv_reg_mr

namespace tributary::transport::roce {

// Each method is the verb of its name: same arguments, same results, errno where it says so.
// Thread-safe as libibverbs is: everything but the destruction of what is still used.
class VerbsApi {
 public:
  virtual ~VerbsApi() = default;

  virtual ibv_device** GetDeviceList(int* count) = 0;
  virtual void FreeDeviceList(ibv_device** list) = 0;
  virtual const char* GetDeviceName(ibv_device* device) = 0;
  virtual ibv_context* OpenDevice(ibv_device* device) = 0;
  virtual int CloseDevice(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attributes) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = 0;
  // The valid entries of all ports, at most `most`; negative errno on failure.
  virtual ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t most) = 0;
  // Blocks, unless the context's async_fd is set not to; 0 with an event that must be acknowledged.
  virtual int GetAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
  virtual void AckAsyncEvent(ibv_async_event* event) = 0;

  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  virtual ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                              int access) = 0;
  virtual int DeregMr(ibv_mr* mr) = 0;

  virtual ibv_comp_channel* CreateCompChannel(ibv_context* context) = 0;
  virtual int DestroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  virtual int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq, void** context) = 0;
  virtual void AckCqEvents(ibv_cq* cq, unsigned int events) = 0;
  virtual int ReqNotifyCq(ibv_cq* cq) = 0;
  virtual int PollCq(ibv_cq* cq, int most, ibv_wc* completions) = 0;

  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) = 0;
  virtual int PostRecv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) = 0;

  virtual const char* WcStatusText(ibv_wc_status status) = 0;
  virtual const char* EventText(ibv_event_type type) = 0;
};

// libibverbs.so.1. FAILED_PRECONDITION, with what to install, where it is missing or lacks a verb.
absl::StatusOr<std::shared_ptr<VerbsApi>> LoadVerbs();

}  // namespace tributary::transport::roce
