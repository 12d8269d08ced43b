// What links need of the RDMA connection manager, as a table: filled from librdmacm with dlopen,
// and from a fake in the tests.
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>

#include "absl/status/statusor.h"

namespace tributary::transport::roce {

// Each method is the function of its name in librdmacm: same arguments, same results, errno.
// Thread-safe, each event channel for one thread.
class CmApi {
 public:
  virtual ~CmApi() = default;
  // Null with ENOENT or ENODEV where the kernel has no connection manager for user space.
  virtual rdma_event_channel* CreateEventChannel() = 0;
  virtual void DestroyEventChannel(rdma_event_channel* channel) = 0;
  virtual int CreateId(rdma_event_channel* channel, rdma_cm_id** id) = 0;  // RDMA_PS_TCP
  virtual int DestroyId(rdma_cm_id* id) = 0;
  virtual int ResolveAddr(rdma_cm_id* id, sockaddr* source, sockaddr* destination,
                          int timeout_ms) = 0;
  virtual int GetCmEvent(rdma_event_channel* channel, rdma_cm_event** event) = 0;
  virtual int AckCmEvent(rdma_cm_event* event) = 0;
};

// librdmacm.so.1. FAILED_PRECONDITION where it is missing or lacks a function.
absl::StatusOr<std::shared_ptr<CmApi>> LoadCm();

}  // namespace tributary::transport::roce
