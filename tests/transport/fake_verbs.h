// RDMA without a device: verbs over memcpy in one process, with faults to order. What real devices
// refuse (a wrong key, a full queue, a missing receive request) is refused here too.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// One device "fake0" whose ports are those of `gids`: one, with the GIDs of 127.0.0.1 and ::1. A
// thread of its own is the wire: it takes requests of one queue pair in order, and of several in a
// random one.
class FakeVerbs final : public VerbsApi {
 public:
  FakeVerbs();
  ~FakeVerbs() override;

  // --- faults and limits; set before use, or at any time where it says so ---
  ibv_device_attr device_attributes{};
  ibv_port_attr port_attributes{};
  std::vector<ibv_gid_entry> gids;
  bool no_device = false;
  int dmabuf_errno = EOPNOTSUPP;  // of registering descriptor -1
  bool dmabuf_registers = false;  // other descriptors
  bool peer_memory = false;       // GPU addresses can be registered as they are
  // Where the memory of an address really is, for those that no CPU may use (a fake GPU's).
  std::function<uint8_t*(uint64_t)> translate = [](uint64_t at) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs give addresses as integers
    return reinterpret_cast<uint8_t*>(at);
  };
  // The `nth` call from now on (from 1) of a verb, by name ("CreateCq"), fails with `error`.
  void FailCall(const std::string& verb, int nth, int error);
  // Packets with more payload than this get lost (any time); 0: none.
  void DropLargerThan(uint32_t bytes);
  // Every write arrives in two parts, the second first, with other traffic between.
  void SplitWrites(bool split);
  // While held nothing moves.
  void Hold(bool held);
  // While held, what is written arrives in memory and its completions do not come.
  void HoldCompletions(bool held);
  // The peer's device refuses the remote key of the next write.
  void RefuseNextWrite();
  // The next write comes to a peer that has no receive request posted.
  void FindNoNextReceive();
  // The device does not know the local key of the next write.
  void ForgetNextLocalKey();
  // A request that fails is told after those that were flushed for it, not before.
  void FlushBeforeTheCause(bool on);
  // An event of the device, as a driver raises it.
  void Raise(ibv_event_type type);

  // --- what was seen ---
  size_t live_objects() const;   // devices, domains, regions, channels, queues, pairs
  size_t registrations() const;  // made so far
  size_t largest_registration() const;
  size_t receiver_not_ready() const;
  size_t overflows() const;  // of completion queues
  size_t unaccounted()
      const;  // requests whose completion nobody took when their pair was destroyed
  size_t unacknowledged() const;  // events when their queue was destroyed: a real one would hang
  size_t signalled() const;       // send requests that asked for a completion
  size_t sent() const;            // send requests
  size_t calls(const std::string& verb) const;
  size_t landed() const;  // writes whose payload is in memory
  // Send requests in the order in which they were posted, the first so many.
  struct Posted {
    uint32_t pair = 0;  // the queue pair's number
    ibv_wr_opcode opcode = IBV_WR_SEND;
    uint32_t immediate = 0;
  };
  static constexpr size_t kKeptPosts = 4096;
  std::vector<Posted> posted() const;
  // Completions of requests that failed, in the order in which they were polled; as many.
  std::vector<ibv_wc_status> polled_failures() const;
  // What each queue pair was made ready to receive and to send with, in the order of the calls; the
  // first so many.
  static constexpr size_t kKeptAttributes = 256;
  std::vector<ibv_qp_attr> receive_attributes() const;
  std::vector<ibv_qp_attr> send_attributes() const;

  ibv_device** GetDeviceList(int* count) override;
  void FreeDeviceList(ibv_device** list) override;
  const char* GetDeviceName(ibv_device* device) override;
  ibv_context* OpenDevice(ibv_device* device) override;
  int CloseDevice(ibv_context* context) override;
  int QueryDevice(ibv_context* context, ibv_device_attr* attributes) override;
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override;
  ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t most) override;
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override;
  void AckAsyncEvent(ibv_async_event* event) override;
  ibv_pd* AllocPd(ibv_context* context) override;
  int DeallocPd(ibv_pd* pd) override;
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override;
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override;
  int DeregMr(ibv_mr* mr) override;
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override;
  int DestroyCompChannel(ibv_comp_channel* channel) override;
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
  int DestroyCq(ibv_cq* cq) override;
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq, void** context) override;
  void AckCqEvents(ibv_cq* cq, unsigned int events) override;
  int ReqNotifyCq(ibv_cq* cq) override;
  int PollCq(ibv_cq* cq, int most, ibv_wc* completions) override;
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int DestroyQp(ibv_qp* qp) override;
  int PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) override;
  int PostRecv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) override;
  const char* WcStatusText(ibv_wc_status status) override;
  const char* EventText(ibv_event_type type) override;

 private:
  struct Request {
    ibv_send_wr wr{};
    ibv_sge piece{};
    bool has_piece = false;
  };

  struct Channel : ibv_comp_channel {
    std::deque<ibv_cq*> events;
  };
  struct Queue : ibv_cq {
    std::deque<ibv_wc> completions;
    size_t capacity = 0;
    bool armed = false;
    size_t unacknowledged = 0;
  };
  struct Pair : ibv_qp {
    ibv_qp_cap cap{};
    uint32_t peer = 0;
    std::deque<Request> sends;
    std::deque<uint64_t> receives;
    Queue* queue = nullptr;
  };

  // All of these with mutex_ held.
  ibv_mr* AddRegion(ibv_pd* pd, uint64_t address, size_t bytes, int access);
  bool Fails(const std::string& verb);  // counts the call, and sets errno where it is to fail
  void Complete(Queue& queue, const ibv_wc& completion);
  void CompleteSend(Pair& pair, const Request& request, ibv_wc_status status);
  void Flush(Pair& pair);
  void Break(Pair& pair, const Request& request, ibv_wc_status status);
  ibv_mr* FindRegion(uint32_t key, bool remote, uint64_t address, size_t bytes);
  Pair* PeerOf(const Pair& pair);
  Pair* PickPair();
  ibv_wc_status Copy(std::unique_lock<std::mutex>& lock, Pair& pair, Pair& peer,
                     const Request& request);
  void CompleteReceive(Pair& peer, const ibv_send_wr& sent, size_t bytes);
  void Carry(std::unique_lock<std::mutex>& lock, Pair& pair);
  void RunWire();

  mutable std::mutex mutex_;
  std::condition_variable work_;
  bool stopping_ = false;
  bool held_ = false;
  bool completions_held_ = false;
  bool split_ = false;
  bool refuse_next_ = false;
  bool no_next_receive_ = false;
  bool forget_next_key_ = false;
  bool flush_first_ = false;
  uint32_t drop_larger_than_ = 0;
  std::mt19937 random_{20};
  std::map<std::string, size_t> calls_;
  std::map<std::string, std::pair<size_t, int>> fail_at_;
  std::map<uint32_t, std::unique_ptr<Pair>> pairs_;      // by number
  std::map<uint32_t, std::unique_ptr<ibv_mr>> regions_;  // by key
  std::deque<ibv_async_event> events_;
  int event_fd_ = -1;
  uint32_t busy_pair_ = 0;  // whose request the wire carries with the lock given up
  std::condition_variable idle_;
  uint32_t next_number_ = 17;
  uint32_t next_key_ = 0x100;
  size_t live_ = 0;
  size_t registrations_ = 0;
  size_t largest_registration_ = 0;
  size_t receiver_not_ready_ = 0;
  size_t overflows_ = 0;
  size_t unaccounted_ = 0;
  size_t unacknowledged_ = 0;
  size_t signalled_ = 0;
  size_t sent_ = 0;
  size_t landed_ = 0;
  std::vector<Posted> posted_;
  std::vector<ibv_wc_status> polled_failures_;
  std::vector<ibv_qp_attr> receive_attributes_;
  std::vector<ibv_qp_attr> send_attributes_;
  ibv_device device_{};
  std::thread wire_;
};

}  // namespace tributary::transport::roce
