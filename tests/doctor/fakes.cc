// Functions for the tables, over one current fake each.
#include "tests/doctor/fakes.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tributary::doctor {
namespace {

FakeVerbs* verbs = nullptr;
FakeCm* cm = nullptr;

struct Device {
  ibv_device device{};
  std::string name;
};
std::vector<std::unique_ptr<Device>> device_store;
std::vector<ibv_device*> device_list;

struct Queue {  // completions that wait to be polled
  std::deque<ibv_wc> done;
} queue;

ibv_device** GetDeviceList(int* count) {
  device_store.clear();
  device_list.clear();
  for (const std::string& name : verbs->devices) {
    device_store.push_back(std::make_unique<Device>());
    device_store.back()->name = name;
    device_list.push_back(&device_store.back()->device);
  }
  *count = static_cast<int>(device_list.size());
  device_list.push_back(nullptr);
  return device_list.data();
}

const char* GetDeviceName(ibv_device* device) {
  for (const auto& d : device_store) {
    if (&d->device == device) return d->name.c_str();
  }
  return "";
}

int PostSend(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  auto* to = reinterpret_cast<uint8_t*>(request->wr.rdma.remote_addr);
  std::memcpy(to, reinterpret_cast<void*>(request->sg_list[0].addr), request->sg_list[0].length);
  if (verbs->damage_writes) to[99] ^= 1;
  ++verbs->writes;
  ibv_wc done{};
  done.wr_id = request->wr_id;
  done.status = verbs->write_status;
  if (!verbs->lose_completions) queue.done.push_back(done);
  return 0;
}

int PollCq(ibv_cq*, int most, ibv_wc* out) {
  int n = 0;
  for (; n < most && !queue.done.empty(); ++n) {
    out[n] = queue.done.front();
    queue.done.pop_front();
  }
  return n;
}

ibv_context* OpenDevice(ibv_device* device) {
  if (verbs->unopenable.contains(GetDeviceName(device))) {
    errno = EACCES;
    return nullptr;
  }
  auto* context = new ibv_context{};
  context->device = device;
  context->ops.post_send = &PostSend;
  context->ops.poll_cq = &PollCq;
  ++verbs->live_objects;
  return context;
}

template <typename T>
T* Make() {
  ++verbs->live_objects;
  return new T{};
}
template <typename T>
int Drop(T* object) {
  --verbs->live_objects;
  delete object;
  return 0;
}

int QueryPort(ibv_context*, uint8_t, _compat_ibv_port_attr* out) {
  reinterpret_cast<ibv_port_attr*>(out)->active_mtu = verbs->active_mtu;
  return 0;
}

int QueryGid(ibv_context*, uint32_t, uint32_t index, ibv_gid_entry* out, uint32_t, size_t) {
  const auto it = verbs->gid_types.find(index);
  if (it == verbs->gid_types.end()) return EINVAL;
  out->gid_type = it->second;
  return 0;
}

ibv_mr* RegMr(ibv_pd*, void*, size_t, int) {
  errno = verbs->reg_mr_errno;
  return errno == 0 ? Make<ibv_mr>() : nullptr;
}

int ModifyQp(ibv_qp*, ibv_qp_attr* attributes, int) {
  return attributes->qp_state == IBV_QPS_RTR ? verbs->modify_qp_errno : 0;
}

// The channel's descriptor is a semaphore that counts the events left.
rdma_event_channel* CreateChannel() {
  auto* channel = new rdma_event_channel{};
  channel->fd = eventfd(static_cast<unsigned>(cm->events.size()), EFD_SEMAPHORE | EFD_CLOEXEC);
  ++cm->live_objects;
  return channel;
}

void DestroyChannel(rdma_event_channel* channel) {
  close(channel->fd);
  --cm->live_objects;
  delete channel;
}

int CreateId(rdma_event_channel* channel, rdma_cm_id** out, void*, rdma_port_space) {
  static ibv_context some_device;
  *out = new rdma_cm_id{};
  (*out)->channel = channel;
  (*out)->verbs = cm->has_device ? &some_device : nullptr;
  ++cm->live_objects;
  return 0;
}

int DestroyId(rdma_cm_id* id) {
  --cm->live_objects;
  delete id;
  return 0;
}

int GetEvent(rdma_event_channel* channel, rdma_cm_event** out) {
  uint64_t one = 0;
  if (read(channel->fd, &one, sizeof(one)) != sizeof(one)) return -1;
  *out = new rdma_cm_event{};
  (*out)->event = cm->events.front();
  (*out)->status = cm->status;
  cm->events.pop_front();
  return 0;
}

int AckEvent(rdma_cm_event* event) {
  delete event;
  return 0;
}

}  // namespace

FakeVerbs::FakeVerbs() {
  verbs = this;
  queue.done.clear();
}
FakeVerbs::~FakeVerbs() {
  EXPECT_EQ(live_objects, 0) << "RDMA objects were not given back";
  verbs = nullptr;
}

std::shared_ptr<const VerbsTable> FakeVerbs::table() const {
  auto t = std::make_shared<VerbsTable>();
  t->library = "/usr/lib/libibverbs.so.1.14.44.0";
  t->get_device_list = &GetDeviceList;
  t->free_device_list = [](ibv_device**) {};
  t->get_device_name = &GetDeviceName;
  t->open_device = &OpenDevice;
  t->close_device = [](ibv_context* context) { return Drop(context); };
  t->query_device = [](ibv_context*, ibv_device_attr* out) {
    out->max_mr_size = uint64_t{1} << 40;
    out->max_qp = 131072;
    return 0;
  };
  t->query_port = &QueryPort;
  t->query_gid_ex = &QueryGid;
  t->is_fork_initialized = [] { return verbs->fork_status; };
  t->alloc_pd = [](ibv_context*) { return Make<ibv_pd>(); };
  t->dealloc_pd = [](ibv_pd* pd) { return Drop(pd); };
  t->reg_mr = &RegMr;
  t->dereg_mr = [](ibv_mr* mr) { return Drop(mr); };
  t->create_cq = [](ibv_context*, int, void*, ibv_comp_channel*, int) { return Make<ibv_cq>(); };
  t->destroy_cq = [](ibv_cq* cq) { return Drop(cq); };
  t->create_qp = [](ibv_pd*, ibv_qp_init_attr*) { return Make<ibv_qp>(); };
  t->destroy_qp = [](ibv_qp* qp) { return Drop(qp); };
  t->modify_qp = &ModifyQp;
  return t;
}

FakeCm::FakeCm() { cm = this; }
FakeCm::~FakeCm() {
  EXPECT_EQ(live_objects, 0) << "connection manager objects were not given back";
  cm = nullptr;
}

std::shared_ptr<const RdmaCmTable> FakeCm::table() const {
  auto t = std::make_shared<RdmaCmTable>();
  t->library = "/usr/lib/librdmacm.so.1.3.44.0";
  t->create_event_channel = &CreateChannel;
  t->destroy_event_channel = &DestroyChannel;
  t->create_id = &CreateId;
  t->destroy_id = &DestroyId;
  t->resolve_addr = [](rdma_cm_id*, sockaddr*, sockaddr*, int) { return 0; };
  t->resolve_route = [](rdma_cm_id*, int) { return 0; };
  t->connect = [](rdma_cm_id*, rdma_conn_param*) { return 0; };
  t->get_cm_event = &GetEvent;
  t->ack_cm_event = &AckEvent;
  return t;
}

Environment FakeEnvironment(const RecordedTree& tree) {
  Environment env;
  env.files = tree.files();
  env.verbs = []() -> absl::StatusOr<std::shared_ptr<const VerbsTable>> {
    return absl::NotFoundError("libibverbs.so.1: cannot open shared object file");
  };
  env.rdma_cm = []() -> absl::StatusOr<std::shared_ptr<const RdmaCmTable>> {
    return absl::NotFoundError("librdmacm.so.1: cannot open shared object file");
  };
  env.interfaces = [] {
    return std::vector<InterfaceAddress>{{"lo", "127.0.0.1", true}, {"eth0", "10.0.0.5", true}};
  };
  env.resolve = [](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
    return std::vector<std::string>{host};
  };
  env.try_listen = [](const std::string&) { return absl::OkStatus(); };
  env.try_memfd = [](uint64_t) { return absl::OkStatus(); };
  env.space = [](const std::string&) -> absl::StatusOr<Space> {
    return Space{uint64_t{1} << 30, uint64_t{1} << 29};
  };
  env.may_open = [files = env.files](const std::string& path) {
    return files->Exists(path) ? absl::OkStatus()
                               : absl::NotFoundError(absl::StrCat(path, ": no such file"));
  };
  env.ethtool = [](const std::string&) -> absl::StatusOr<std::map<std::string, uint64_t>> {
    return absl::UnimplementedError("no counters");
  };
  env.route = [](const std::string& host) -> absl::StatusOr<Route> {
    return Route{host, "10.0.0.5", "eth0", 1500};
  };
  env.udp = [](const std::string&, absl::Duration) -> absl::StatusOr<UdpAnswer> {
    return UdpAnswer::kSilent;
  };
  return env;
}

}  // namespace tributary::doctor
