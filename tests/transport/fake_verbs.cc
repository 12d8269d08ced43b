// Verbs over memcpy.
#include "tests/transport/fake_verbs.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tributary::transport::roce {

struct FakeVerbs::Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};
struct FakeVerbs::Queue : ibv_cq {
  std::deque<ibv_wc> completions;
  size_t capacity = 0;
  bool armed = false;
  size_t unacknowledged = 0;
};
struct FakeVerbs::Pair : ibv_qp {
  ibv_qp_cap cap{};
  uint32_t peer = 0;
  std::deque<Request> sends;
  std::deque<uint64_t> receives;
  Queue* queue = nullptr;
  size_t in_send_queue = 0;  // until accounted for by a completion that was taken
};

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
void FakeVerbs::RefuseNextWrite() {
  std::lock_guard lock(mutex_);
  refuse_next_ = true;
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
#undef TRIBUTARY_FAKE_COUNTER

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
  if (port != 1) return EINVAL;
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
  if (bytes > device_attributes.max_mr_size) {
    errno = EINVAL;
    return nullptr;
  }
  auto mr = std::make_unique<ibv_mr>();
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->handle = static_cast<uint32_t>(access);
  mr->lkey = mr->rkey = next_key_++;
  ++live_;
  ++registrations_;
  largest_registration_ = std::max(largest_registration_, bytes);
  return (regions_[mr->lkey] = std::move(mr)).get();
}
ibv_mr* FakeVerbs::RegDmabufMr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = dmabuf_errno;
  return nullptr;
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
  }
  return n;
}

void FakeVerbs::Complete(Queue& queue, const ibv_wc& completion) {
  if (queue.completions.size() >= queue.capacity) ++overflows_;
  queue.completions.push_back(completion);
  if (!queue.armed) return;
  queue.armed = false;
  static_cast<Channel*>(queue.channel)->events.push_back(&queue);
  Ring(queue.channel->fd);
}

void FakeVerbs::CompleteSend(Pair& pair, const Request& request, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && (request.wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc completion{};
  completion.wr_id = request.wr.wr_id;
  completion.status = status;
  completion.qp_num = pair.qp_num;
  completion.opcode = request.wr.opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
  Complete(*pair.queue, completion);
}

void FakeVerbs::Flush(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const Request& request : pair.sends) CompleteSend(pair, request, IBV_WC_WR_FLUSH_ERR);
  pair.sends.clear();
  for (const uint64_t id : pair.receives) {
    ibv_wc completion{};
    completion.wr_id = id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.qp_num = pair.qp_num;
    Complete(*pair.queue, completion);
  }
  pair.receives.clear();
}

void FakeVerbs::Break(Pair& pair, const Request& request, ibv_wc_status status) {
  CompleteSend(pair, request, status);
  Flush(pair);
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
int FakeVerbs::PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  std::lock_guard lock(mutex_);
  auto& pair = *static_cast<Pair*>(qp);
  *bad = request;
  if (Fails("PostSend")) return errno;
  if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) return EINVAL;
  if (pair.sends.size() >= pair.cap.max_send_wr) return ENOMEM;
  Request copy;
  copy.wr = *request;
  copy.has_piece = request->num_sge == 1;
  if (copy.has_piece) copy.piece = *request->sg_list;
  ++sent_;
  if ((request->send_flags & IBV_SEND_SIGNALED) != 0) ++signalled_;
  if (pair.state == IBV_QPS_ERR) {
    CompleteSend(pair, copy, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  pair.sends.push_back(copy);
  work_.notify_all();
  return 0;
}
int FakeVerbs::PostRecv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  std::lock_guard lock(mutex_);
  auto& pair = *static_cast<Pair*>(qp);
  *bad = request;
  if (Fails("PostRecv")) return errno;
  if (pair.state == IBV_QPS_RESET) return EINVAL;
  if (pair.receives.size() >= pair.cap.max_recv_wr) return ENOMEM;
  pair.receives.push_back(request->wr_id);
  if (pair.state == IBV_QPS_ERR) Flush(pair);
  return 0;
}

ibv_mr* FakeVerbs::FindRegion(uint32_t key, bool remote, uint64_t address, size_t bytes) {
  const auto it = regions_.find(key);
  if (it == regions_.end()) return nullptr;
  ibv_mr* region = it->second.get();
  const auto base = reinterpret_cast<uint64_t>(region->addr);
  if (address < base || address + bytes > base + region->length) return nullptr;
  if (remote && (region->handle & IBV_ACCESS_REMOTE_WRITE) == 0) return nullptr;
  return region;
}

FakeVerbs::Pair* FakeVerbs::PeerOf(const Pair& pair) {
  const auto it = pairs_.find(pair.peer);
  if (it == pairs_.end()) return nullptr;
  Pair* peer = it->second.get();
  return peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS ? peer : nullptr;
}

FakeVerbs::Pair* FakeVerbs::PickPair() {
  if (held_) return nullptr;
  std::vector<Pair*> with_work;
  for (const auto& [number, pair] : pairs_) {
    if (pair->state == IBV_QPS_RTS && !pair->sends.empty()) with_work.push_back(pair.get());
  }
  if (with_work.empty()) return nullptr;
  return with_work[random_() % with_work.size()];
}

void FakeVerbs::RunWire() {
  std::unique_lock lock(mutex_);
  while (true) {
    Pair* pair = nullptr;
    work_.wait(lock, [&] { return stopping_ || (pair = PickPair()) != nullptr; });
    if (stopping_) return;
    Carry(lock, *pair);
  }
}

// The oldest request of a pair: checked as a device would, copied, completed on both sides.
void FakeVerbs::Carry(std::unique_lock<std::mutex>& lock, Pair& pair) {
  const Request request = pair.sends.front();
  pair.sends.pop_front();
  const ibv_send_wr& wr = request.wr;
  const size_t bytes = request.has_piece ? request.piece.length : 0;
  const bool immediate = wr.opcode != IBV_WR_RDMA_WRITE;
  Pair* peer = PeerOf(pair);
  const bool lost = drop_larger_than_ != 0 && bytes > drop_larger_than_;
  if (peer == nullptr || lost) return Break(pair, request, IBV_WC_RETRY_EXC_ERR);
  if (immediate && peer->receives.empty()) {
    ++receiver_not_ready_;
    return Break(pair, request, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  if (bytes > 0) {
    if (FindRegion(request.piece.lkey, false, request.piece.addr, bytes) == nullptr) {
      return Break(pair, request, IBV_WC_LOC_PROT_ERR);
    }
    if (std::exchange(refuse_next_, false) ||
        FindRegion(wr.wr.rdma.rkey, true, wr.wr.rdma.remote_addr, bytes) == nullptr) {
      Flush(*peer);
      return Break(pair, request, IBV_WC_REM_ACCESS_ERR);
    }
    auto* to = reinterpret_cast<uint8_t*>(wr.wr.rdma.remote_addr);
    const auto* from = reinterpret_cast<const uint8_t*>(request.piece.addr);
    // Outside the lock, as hardware has none; nobody may look before the completion.
    const size_t head = split_ ? bytes / 2 : 0;
    busy_pair_ = pair.qp_num;
    lock.unlock();
    std::memcpy(to + head, from + head, bytes - head);
    if (head > 0) {
      std::this_thread::yield();
      std::memcpy(to, from, head);
    }
    lock.lock();
    busy_pair_ = 0;
    idle_.notify_all();
    if (pair.state != IBV_QPS_RTS) return CompleteSend(pair, request, IBV_WC_WR_FLUSH_ERR);
    peer = PeerOf(pair);
    if (peer == nullptr || (immediate && peer->receives.empty())) {
      return Break(pair, request, IBV_WC_RETRY_EXC_ERR);
    }
  }
  if (immediate) {
    ibv_wc completion{};
    completion.wr_id = peer->receives.front();
    peer->receives.pop_front();
    completion.status = IBV_WC_SUCCESS;
    completion.qp_num = peer->qp_num;
    completion.opcode = wr.opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    completion.byte_len = static_cast<uint32_t>(bytes);
    completion.imm_data = wr.imm_data;
    completion.wc_flags = IBV_WC_WITH_IMM;
    Complete(*peer->queue, completion);
  }
  CompleteSend(pair, request, IBV_WC_SUCCESS);
}

const char* FakeVerbs::WcStatusText(ibv_wc_status status) {
  if (status == IBV_WC_RETRY_EXC_ERR) return "transport retry counter exceeded";
  if (status == IBV_WC_REM_ACCESS_ERR) return "remote access error";
  return status == IBV_WC_WR_FLUSH_ERR ? "Work Request Flushed Error" : "some other error";
}
const char* FakeVerbs::EventText(ibv_event_type type) {
  return type == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error" : "some other event";
}

}  // namespace tributary::transport::roce
