// Verbs over memcpy.
#include "tests/transport/fake_verbs.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tributary::transport::roce {

namespace {

void Ring(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
}
void Unring(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd, &count, sizeof(count));
}
ibv_gid_entry Entry(uint32_t index, std::initializer_list<uint8_t> last_bytes, uint32_t type) {
  ibv_gid_entry entry{};
  std::copy(last_bytes.begin(), last_bytes.end(), entry.gid.raw + 16 - last_bytes.size());
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = type;
  return entry;
}

}  // namespace

FakeVerbs::FakeVerbs() {
  device_attributes.max_mr_size = UINT64_MAX;
  device_attributes.max_qp_wr = 16384;
  device_attributes.max_cqe = 1 << 20;
  port_attributes.state = IBV_PORT_ACTIVE;
  port_attributes.max_mtu = IBV_MTU_4096;
  port_attributes.active_mtu = IBV_MTU_1024;
  port_attributes.max_msg_sz = uint32_t{1} << 31;
  port_attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  gids = {Entry(0, {0xff, 0xff, 127, 0, 0, 1}, IBV_GID_TYPE_ROCE_V1),
          Entry(1, {0xff, 0xff, 127, 0, 0, 1}, IBV_GID_TYPE_ROCE_V2),
          Entry(2, {1}, IBV_GID_TYPE_ROCE_V2)};
  std::strcpy(device_.name, "fake0");
  wire_ = std::thread([this] { RunWire(); });
}

FakeVerbs::~FakeVerbs() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  wire_.join();
}

void FakeVerbs::FailCall(const std::string& verb, int nth, int error) {
  std::lock_guard lock(mutex_);
  fail_at_[verb] = {calls_[verb] + static_cast<size_t>(nth), error};
}
void FakeVerbs::DropLargerThan(uint32_t bytes) {
  std::lock_guard lock(mutex_);
  drop_larger_than_ = bytes;
}
void FakeVerbs::SplitWrites(bool split) {
  std::lock_guard lock(mutex_);
  split_ = split;
}
void FakeVerbs::Hold(bool held) {
  {
    std::lock_guard lock(mutex_);
    held_ = held;
  }
  work_.notify_all();
}
void FakeVerbs::HoldCompletions(bool held) {
  {
    std::lock_guard lock(mutex_);
    completions_held_ = held;
  }
  work_.notify_all();
}
void FakeVerbs::RefuseNextWrite() {
  std::lock_guard lock(mutex_);
  refuse_next_ = true;
}
void FakeVerbs::FindNoNextReceive() {
  std::lock_guard lock(mutex_);
  no_next_receive_ = true;
}
void FakeVerbs::ForgetNextLocalKey() {
  std::lock_guard lock(mutex_);
  forget_next_key_ = true;
}
void FakeVerbs::FlushBeforeTheCause(bool on) {
  std::lock_guard lock(mutex_);
  flush_first_ = on;
}
void FakeVerbs::Raise(ibv_event_type type) {
  std::lock_guard lock(mutex_);
  ibv_async_event event{};
  event.event_type = type;
  events_.push_back(event);
  Ring(event_fd_);
}

#define TRIBUTARY_FAKE_COUNTER(name, member) \
  size_t FakeVerbs::name() const {           \
    std::lock_guard lock(mutex_);            \
    return member;                           \
  }
TRIBUTARY_FAKE_COUNTER(live_objects, live_)
TRIBUTARY_FAKE_COUNTER(registrations, registrations_)
TRIBUTARY_FAKE_COUNTER(largest_registration, largest_registration_)
TRIBUTARY_FAKE_COUNTER(receiver_not_ready, receiver_not_ready_)
TRIBUTARY_FAKE_COUNTER(overflows, overflows_)
TRIBUTARY_FAKE_COUNTER(unaccounted, unaccounted_)
TRIBUTARY_FAKE_COUNTER(unacknowledged, unacknowledged_)
TRIBUTARY_FAKE_COUNTER(signalled, signalled_)
TRIBUTARY_FAKE_COUNTER(sent, sent_)
TRIBUTARY_FAKE_COUNTER(landed, landed_)
#undef TRIBUTARY_FAKE_COUNTER

std::vector<FakeVerbs::Posted> FakeVerbs::posted() const {
  std::lock_guard lock(mutex_);
  return posted_;
}
std::vector<ibv_wc_status> FakeVerbs::polled_failures() const {
  std::lock_guard lock(mutex_);
  return polled_failures_;
}
std::vector<ibv_qp_attr> FakeVerbs::receive_attributes() const {
  std::lock_guard lock(mutex_);
  return receive_attributes_;
}
std::vector<ibv_qp_attr> FakeVerbs::send_attributes() const {
  std::lock_guard lock(mutex_);
  return send_attributes_;
}

size_t FakeVerbs::calls(const std::string& verb) const {
  std::lock_guard lock(mutex_);
  const auto it = calls_.find(verb);
  return it == calls_.end() ? 0 : it->second;
}

bool FakeVerbs::Fails(const std::string& verb) {
  const size_t call = ++calls_[verb];
  const auto it = fail_at_.find(verb);
  if (it == fail_at_.end() || it->second.first != call) return false;
  errno = it->second.second;
  return true;
}

ibv_device** FakeVerbs::GetDeviceList(int* count) {
  std::lock_guard lock(mutex_);
  if (Fails("GetDeviceList")) return nullptr;
  auto** list = new ibv_device* [2] { no_device ? nullptr : &device_, nullptr };
  *count = no_device ? 0 : 1;
  ++live_;
  return list;
}
void FakeVerbs::FreeDeviceList(ibv_device** list) {
  std::lock_guard lock(mutex_);
  delete[] list;
  --live_;
}
const char* FakeVerbs::GetDeviceName(ibv_device* device) { return device->name; }

ibv_context* FakeVerbs::OpenDevice(ibv_device* device) {
  std::lock_guard lock(mutex_);
  if (Fails("OpenDevice")) return nullptr;
  auto* context = new ibv_context{};
  context->device = device;
  context->async_fd = event_fd_ = eventfd(0, EFD_CLOEXEC);
  ++live_;
  return context;
}
int FakeVerbs::CloseDevice(ibv_context* context) {
  std::lock_guard lock(mutex_);
  close(context->async_fd);
  delete context;
  --live_;
  return 0;
}
int FakeVerbs::QueryDevice(ibv_context*, ibv_device_attr* attributes) {
  std::lock_guard lock(mutex_);
  if (Fails("QueryDevice")) return errno;
  *attributes = device_attributes;
  return 0;
}
int FakeVerbs::QueryPort(ibv_context*, uint8_t port, ibv_port_attr* attributes) {
  std::lock_guard lock(mutex_);
  if (Fails("QueryPort")) return errno;
  const auto has = [port](const ibv_gid_entry& entry) { return entry.port_num == port; };
  if (std::none_of(gids.begin(), gids.end(), has)) return EINVAL;
  *attributes = port_attributes;
  return 0;
}
ssize_t FakeVerbs::QueryGidTable(ibv_context*, ibv_gid_entry* entries, size_t most) {
  std::lock_guard lock(mutex_);
  if (Fails("QueryGidTable")) return -errno;
  const size_t n = std::min(most, gids.size());
  std::copy_n(gids.begin(), n, entries);
  return static_cast<ssize_t>(n);
}
int FakeVerbs::GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  std::lock_guard lock(mutex_);
  if (events_.empty()) {
    Unring(context->async_fd);
    errno = EAGAIN;
    return -1;
  }
  *event = events_.front();
  events_.pop_front();
  return 0;
}
void FakeVerbs::AckAsyncEvent(ibv_async_event*) {}

ibv_pd* FakeVerbs::AllocPd(ibv_context* context) {
  std::lock_guard lock(mutex_);
  if (Fails("AllocPd")) return nullptr;
  auto* pd = new ibv_pd{};
  pd->context = context;
  ++live_;
  return pd;
}
int FakeVerbs::DeallocPd(ibv_pd* pd) {
  std::lock_guard lock(mutex_);
  delete pd;
  --live_;
  return 0;
}
ibv_mr* FakeVerbs::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  std::lock_guard lock(mutex_);
  if (Fails("RegMr")) return nullptr;
  const bool on_gpu = translate(reinterpret_cast<uint64_t>(address)) != address;
  if (on_gpu && !peer_memory) {
    errno = EFAULT;
    return nullptr;
  }
  return AddRegion(pd, reinterpret_cast<uint64_t>(address), bytes, access);
}
ibv_mr* FakeVerbs::RegDmabufMr(ibv_pd* pd, uint64_t, size_t bytes, uint64_t iova, int fd,
                               int access) {
  std::lock_guard lock(mutex_);
  if (Fails("RegDmabufMr")) return nullptr;
  if (fd >= 0 && dmabuf_registers) return AddRegion(pd, iova, bytes, access);
  errno = dmabuf_errno;
  return nullptr;
}
ibv_mr* FakeVerbs::AddRegion(ibv_pd* pd, uint64_t address, size_t bytes, int access) {
  if (bytes > device_attributes.max_mr_size) {
    errno = EINVAL;
    return nullptr;
  }
  auto mr = std::make_unique<ibv_mr>();
  mr->pd = pd;
  mr->addr = reinterpret_cast<void*>(address);
  mr->length = bytes;
  mr->handle = static_cast<uint32_t>(access);
  mr->lkey = mr->rkey = next_key_++;
  ++live_;
  ++registrations_;
  largest_registration_ = std::max(largest_registration_, bytes);
  return (regions_[mr->lkey] = std::move(mr)).get();
}
int FakeVerbs::DeregMr(ibv_mr* mr) {
  std::lock_guard lock(mutex_);
  regions_.erase(mr->lkey);
  --live_;
  return 0;
}

ibv_comp_channel* FakeVerbs::CreateCompChannel(ibv_context* context) {
  std::lock_guard lock(mutex_);
  if (Fails("CreateCompChannel")) return nullptr;
  auto* channel = new Channel;
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC);
  ++live_;
  return channel;
}
int FakeVerbs::DestroyCompChannel(ibv_comp_channel* channel) {
  std::lock_guard lock(mutex_);
  close(channel->fd);
  delete static_cast<Channel*>(channel);
  --live_;
  return 0;
}
ibv_cq* FakeVerbs::CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  std::lock_guard lock(mutex_);
  if (Fails("CreateCq")) return nullptr;
  auto* queue = new Queue;
  queue->context = context;
  queue->channel = channel;
  queue->capacity = static_cast<size_t>(entries);
  ++live_;
  return queue;
}
int FakeVerbs::DestroyCq(ibv_cq* cq) {
  std::lock_guard lock(mutex_);
  auto* queue = static_cast<Queue*>(cq);
  unacknowledged_ += queue->unacknowledged;
  delete queue;
  --live_;
  return 0;
}
int FakeVerbs::GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq, void** context) {
  std::lock_guard lock(mutex_);
  auto* from = static_cast<Channel*>(channel);
  if (from->events.empty()) {
    Unring(channel->fd);
    errno = EAGAIN;
    return -1;
  }
  *cq = from->events.front();
  *context = nullptr;
  from->events.pop_front();
  ++static_cast<Queue*>(*cq)->unacknowledged;
  return 0;
}
void FakeVerbs::AckCqEvents(ibv_cq* cq, unsigned int events) {
  std::lock_guard lock(mutex_);
  static_cast<Queue*>(cq)->unacknowledged -= events;
}
int FakeVerbs::ReqNotifyCq(ibv_cq* cq) {
  std::lock_guard lock(mutex_);
  static_cast<Queue*>(cq)->armed = true;
  return 0;
}
int FakeVerbs::PollCq(ibv_cq* cq, int most, ibv_wc* completions) {
  std::lock_guard lock(mutex_);
  auto& queue = *static_cast<Queue*>(cq);
  int n = 0;
  for (; n < most && !queue.completions.empty(); ++n) {
    completions[n] = queue.completions.front();
    queue.completions.pop_front();
    if (completions[n].status != IBV_WC_SUCCESS && polled_failures_.size() < kKeptPosts) {
      polled_failures_.push_back(completions[n].status);
    }
  }
  return n;
}

ibv_qp* FakeVerbs::CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  std::lock_guard lock(mutex_);
  if (Fails("CreateQp")) return nullptr;
  if (attributes->cap.max_send_wr > static_cast<uint32_t>(device_attributes.max_qp_wr) ||
      attributes->cap.max_recv_wr > static_cast<uint32_t>(device_attributes.max_qp_wr)) {
    errno = EINVAL;
    return nullptr;
  }
  auto pair = std::make_unique<Pair>();
  pair->context = pd->context;
  pair->pd = pd;
  pair->cap = attributes->cap;
  pair->queue = static_cast<Queue*>(attributes->send_cq);
  pair->qp_num = next_number_++;
  pair->state = IBV_QPS_RESET;
  ++live_;
  return (pairs_[pair->qp_num] = std::move(pair)).get();
}
int FakeVerbs::ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  std::unique_lock lock(mutex_);
  auto& pair = *static_cast<Pair*>(qp);
  if (attributes->qp_state == IBV_QPS_ERR) {
    // What the wire carries is completed before what comes after it.
    pair.state = IBV_QPS_ERR;
    idle_.wait(lock, [&] { return busy_pair_ != pair.qp_num; });
    Flush(pair);
    return 0;
  }
  if (Fails("ModifyQp")) return errno;
  if ((mask & IBV_QP_DEST_QPN) != 0) pair.peer = attributes->dest_qp_num;
  const auto keep = [&](ibv_qp_state state, std::vector<ibv_qp_attr>* kept) {
    if (attributes->qp_state == state && kept->size() < kKeptAttributes) {
      kept->push_back(*attributes);
    }
  };
  keep(IBV_QPS_RTR, &receive_attributes_);
  keep(IBV_QPS_RTS, &send_attributes_);
  pair.state = attributes->qp_state;
  work_.notify_all();
  return 0;
}
int FakeVerbs::DestroyQp(ibv_qp* qp) {
  std::unique_lock lock(mutex_);
  auto& pair = *static_cast<Pair*>(qp);
  idle_.wait(lock, [&] {
    return busy_pair_ == 0 || (busy_pair_ != pair.qp_num && busy_pair_ != pair.peer);
  });
  unaccounted_ += pair.sends.size() + pair.receives.size();
  const auto of_pair = [&](const ibv_wc& one) { return one.qp_num == pair.qp_num; };
  auto& left = pair.queue->completions;
  unaccounted_ += static_cast<size_t>(std::count_if(left.begin(), left.end(), of_pair));
  left.erase(std::remove_if(left.begin(), left.end(), of_pair), left.end());
  pairs_.erase(pair.qp_num);
  --live_;
  return 0;
}
// As libibverbs words them.
const char* FakeVerbs::WcStatusText(ibv_wc_status status) {
  if (status == IBV_WC_RETRY_EXC_ERR) return "transport retry counter exceeded";
  if (status == IBV_WC_RNR_RETRY_EXC_ERR) return "RNR retry counter exceeded";
  if (status == IBV_WC_REM_ACCESS_ERR) return "remote access error";
  if (status == IBV_WC_LOC_PROT_ERR) return "local protection error";
  return status == IBV_WC_WR_FLUSH_ERR ? "Work Request Flushed Error" : "some other error";
}
const char* FakeVerbs::EventText(ibv_event_type type) {
  return type == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error" : "some other event";
}

}  // namespace tributary::transport::roce
