// dlopen and dlsym.
#include "doctor/verbs.h"

#include <dlfcn.h>

#include <climits>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::doctor {
namespace {

class Library {
 public:
  explicit Library(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* why = dlerror();
      status_ = absl::NotFoundError(why != nullptr ? why : name_);
    }
  }
  template <typename F>
  void Find(const char* symbol, F* out, bool needed = true) {
    if (handle_ == nullptr) return;
    *out = reinterpret_cast<F>(dlsym(handle_, symbol));
    if (*out == nullptr && needed)
      status_ = absl::NotFoundError(absl::StrCat(name_, " has no function ", symbol));
  }
  const absl::Status& status() const { return status_; }
  // The file that holds `function`.
  static std::string FileOf(const void* function) {
    Dl_info info{};
    char real[PATH_MAX];
    if (dladdr(function, &info) == 0 || realpath(info.dli_fname, real) == nullptr) return "";
    return real;
  }

 private:
  const char* name_;
  void* handle_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const VerbsTable>> LoadVerbs() {
  Library library("libibverbs.so.1");
  auto table = std::make_shared<VerbsTable>();
  library.Find("ibv_get_device_list", &table->get_device_list);
  library.Find("ibv_free_device_list", &table->free_device_list);
  library.Find("ibv_get_device_name", &table->get_device_name);
  library.Find("ibv_open_device", &table->open_device);
  library.Find("ibv_close_device", &table->close_device);
  library.Find("ibv_query_device", &table->query_device);
  library.Find("ibv_query_port", &table->query_port);
  library.Find("_ibv_query_gid_ex", &table->query_gid_ex, false);
  library.Find("ibv_is_fork_initialized", &table->is_fork_initialized, false);
  library.Find("ibv_alloc_pd", &table->alloc_pd);
  library.Find("ibv_dealloc_pd", &table->dealloc_pd);
  library.Find("ibv_reg_mr", &table->reg_mr);
  library.Find("ibv_dereg_mr", &table->dereg_mr);
  library.Find("ibv_create_cq", &table->create_cq);
  library.Find("ibv_destroy_cq", &table->destroy_cq);
  library.Find("ibv_create_qp", &table->create_qp);
  library.Find("ibv_destroy_qp", &table->destroy_qp);
  library.Find("ibv_modify_qp", &table->modify_qp);
  RETURN_IF_ERROR(library.status());
  table->library = Library::FileOf(reinterpret_cast<const void*>(table->get_device_list));
  return std::shared_ptr<const VerbsTable>(std::move(table));
}

absl::StatusOr<std::shared_ptr<const RdmaCmTable>> LoadRdmaCm() {
  Library library("librdmacm.so.1");
  auto table = std::make_shared<RdmaCmTable>();
  library.Find("rdma_create_event_channel", &table->create_event_channel);
  library.Find("rdma_destroy_event_channel", &table->destroy_event_channel);
  library.Find("rdma_create_id", &table->create_id);
  library.Find("rdma_destroy_id", &table->destroy_id);
  library.Find("rdma_resolve_addr", &table->resolve_addr);
  library.Find("rdma_resolve_route", &table->resolve_route);
  library.Find("rdma_connect", &table->connect);
  library.Find("rdma_get_cm_event", &table->get_cm_event);
  library.Find("rdma_ack_cm_event", &table->ack_cm_event);
  RETURN_IF_ERROR(library.status());
  table->library = Library::FileOf(reinterpret_cast<const void*>(table->create_id));
  return std::shared_ptr<const RdmaCmTable>(std::move(table));
}

}  // namespace tributary::doctor
