// A connection manager without a kernel: one answer to every address, and an account.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "transport/rdma/gid.h"
#include "transport/roce/cm_api.h"

namespace tributary::transport::roce {

class FakeCm final : public CmApi {
 public:
  // --- the answer ---
  std::string device = "fake0";  // empty: the address resolves, and no RDMA device has it
  uint8_t port = 1;
  rdma::Gid gid{};
  int channel_errno = 0;  // of creating a channel
  int call_errno = 0;     // of rdma_resolve_addr itself
  int event_status = 0;   // negative: the address does not resolve
  bool silent = false;    // no event comes

  // --- what was seen ---
  std::vector<sockaddr_storage> asked;
  int live = 0;  // channels, ids and events that are not given back

  rdma_event_channel* CreateEventChannel() override {
    if (channel_errno != 0) {
      errno = channel_errno;
      return nullptr;
    }
    ++live;
    return new rdma_event_channel{.fd = eventfd(0, EFD_CLOEXEC)};
  }
  void DestroyEventChannel(rdma_event_channel* channel) override {
    close(channel->fd);
    delete channel;
    --live;
  }
  int CreateId(rdma_event_channel* channel, rdma_cm_id** id) override {
    *id = new rdma_cm_id{};
    (*id)->channel = channel;
    ++live;
    return 0;
  }
  int DestroyId(rdma_cm_id* id) override {
    delete id;
    --live;
    return 0;
  }
  int ResolveAddr(rdma_cm_id* id, sockaddr* /*source*/, sockaddr* destination,
                  int /*timeout_ms*/) override {
    sockaddr_storage to{};
    std::memcpy(&to, destination,
                destination->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    asked.push_back(to);
    if (call_errno != 0) {
      errno = call_errno;
      return -1;
    }
    if (silent) return 0;
    if (!device.empty()) {
      std::strcpy(device_.name, device.c_str());
      context_.device = &device_;
      id->verbs = &context_;
      id->port_num = port;
      std::memcpy(id->route.addr.addr.ibaddr.sgid.raw, gid.data(), gid.size());
    }
    waiting_ = true;
    const uint64_t one = 1;
    return write(id->channel->fd, &one, sizeof(one)) == sizeof(one) ? 0 : -1;
  }
  int GetCmEvent(rdma_event_channel*, rdma_cm_event** event) override {
    if (!waiting_) {
      errno = EAGAIN;
      return -1;
    }
    waiting_ = false;
    *event = new rdma_cm_event{};
    (*event)->event = event_status == 0 ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR;
    (*event)->status = event_status;
    ++live;
    return 0;
  }
  int AckCmEvent(rdma_cm_event* event) override {
    delete event;
    --live;
    return 0;
  }

 private:
  bool waiting_ = false;
  ibv_device device_{};
  ibv_context context_{};
};

}  // namespace tributary::transport::roce
