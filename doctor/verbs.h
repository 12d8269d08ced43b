// libibverbs and librdmacm through tables of functions, loaded with dlopen: the same binary starts
// where neither is installed, and tests put functions of their own in.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tributary::doctor {

// Only what the doctor calls. Posting and polling go through the context's own table, as libibverbs
// has it. Each function is the library's, with its meaning.
struct VerbsTable {
  std::string library;  // the file that was loaded
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  // The older form of the structure, which is how a struct ibv_port_attr begins.
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;               // may be missing
  decltype(&::ibv_is_fork_initialized) is_fork_initialized = nullptr;  // may be missing
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int) = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
};

struct RdmaCmTable {
  std::string library;
  decltype(&::rdma_create_event_channel) create_event_channel = nullptr;
  decltype(&::rdma_destroy_event_channel) destroy_event_channel = nullptr;
  decltype(&::rdma_create_id) create_id = nullptr;
  decltype(&::rdma_destroy_id) destroy_id = nullptr;
  decltype(&::rdma_resolve_addr) resolve_addr = nullptr;
  decltype(&::rdma_resolve_route) resolve_route = nullptr;
  decltype(&::rdma_connect) connect = nullptr;
  decltype(&::rdma_get_cm_event) get_cm_event = nullptr;
  decltype(&::rdma_ack_cm_event) ack_cm_event = nullptr;
};

// The libraries stay loaded while the process lives. NOT_FOUND names the library or the function
// that is missing.
absl::StatusOr<std::shared_ptr<const VerbsTable>> LoadVerbs();
absl::StatusOr<std::shared_ptr<const RdmaCmTable>> LoadRdmaCm();

}  // namespace tributary::doctor
