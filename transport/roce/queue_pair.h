// A reliable-connection queue pair with an account of every request posted to it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/internal/link_state.h"
#include "transport/roce.h"
#include "transport/roce/arena.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// The way to the peer's port: ours and theirs.
struct Route {
  uint8_t port = 1;
  uint32_t gid_index = 0;
  bool infiniband = false;
  ibv_gid peer_gid{};
  uint16_t peer_lid = 0;
  uint32_t mtu_bytes = 1024;
};

// What a request in the send queue was for.
struct SentRequest {
  enum class Kind { kChunk, kGrant, kFlush, kProbe, kMarker };
  Kind kind = Kind::kFlush;
  internal::SlotChunk chunk;  // kChunk
};

// States go INIT → connected → error; destroyed with the object. Not thread-safe: the link's mutex
// guards it.
class QueuePair {
 public:
  struct Depths {
    uint32_t send = 0;
    uint32_t receive = 0;
  };
  // An empty queue pair in INIT, number `index` of its link. RESOURCE_EXHAUSTED where the device
  // has none.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(VerbsApi& api, ibv_pd* pd, ibv_cq* cq,
                                                           uint32_t index, const Depths& depths,
                                                           uint8_t port);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t index() const { return index_; }
  uint32_t number() const { return qp_->qp_num; }
  uint32_t peer_number() const { return peer_number_; }
  uint32_t first_psn() const { return first_psn_; }

  absl::Status Connect(const Route& route, const RoceOptions& options, uint32_t peer_number,
                       uint32_t peer_psn);
  // No more is to be posted but markers; what is under way is flushed.
  void ToError();

  // Requests. INTERNAL where the device does not take one.
  absl::Status PostReceive();
  struct Write {
    uint64_t from = 0;  // as the network device knows it
    uint32_t local_key = 0;
    size_t bytes = 0;
    uint64_t to = 0;
    uint32_t remote_key = 0;
  };
  absl::Status PostWrite(const Write& write, uint32_t immediate, bool signalled,
                         const SentRequest& request);
  absl::Status PostGrant(uint32_t immediate, bool signalled);
  // An empty write, signalled: its completion says that all before it are complete.
  absl::Status PostEmpty(SentRequest::Kind kind);

  // Completions carry ids made here: which queue pair, which queue, which request.
  static bool IsReceive(uint64_t id) { return (id >> 63) != 0; }
  static uint32_t IndexOf(uint64_t id) { return static_cast<uint32_t>(id >> 56 & 0x7f); }
  void OnReceived() { ++received_; }
  // `done` gets each request that this completion accounts for, oldest first.
  template <typename Done>
  void OnSent(uint64_t id, Done done) {
    const uint64_t number = id & kNumberMask;
    while (!in_flight_.empty() && first_in_flight_ <= number) {
      const SentRequest request = in_flight_.front();
      in_flight_.pop_front();
      ++first_in_flight_;
      done(request);
    }
  }
  // After ToError: a last request, whose completion stands for unsignalled ones that were completed
  // before and have none. Where the device does not even take it, sends are not waited for.
  void PostMarker() { unmarked_ = !PostEmpty(SentRequest::Kind::kMarker).ok(); }
  // Nothing that was posted is still with the device.
  bool Accounted() const {
    return (in_flight_.empty() || unmarked_) && received_ == posted_receives_;
  }
  uint64_t unaccounted() const { return in_flight_.size() + posted_receives_ - received_; }
  size_t in_flight() const { return in_flight_.size(); }
  uint32_t unsignalled() const { return unsignalled_; }

 private:
  static constexpr uint64_t kNumberMask = (uint64_t{1} << 56) - 1;

  QueuePair(VerbsApi& api, uint32_t index);
  absl::Status ToInit(uint8_t port);
  absl::Status ToReceive(const Route& route, const RoceOptions& options, uint32_t peer_number,
                         uint32_t peer_psn);
  absl::Status ToSend(const RoceOptions& options);
  absl::Status Modify(ibv_qp_attr& attributes, int mask, const char* state);
  absl::Status Post(ibv_send_wr& request, bool signalled, const SentRequest& what);

  VerbsApi& api_;
  const uint32_t index_;
  const uint32_t first_psn_;
  ibv_qp* qp_ = nullptr;
  uint32_t peer_number_ = 0;
  std::deque<SentRequest> in_flight_;  // posted and not accounted for
  uint64_t first_in_flight_ = 0;       // the number of its front
  uint64_t posted_receives_ = 0;
  uint64_t received_ = 0;
  uint32_t unsignalled_ = 0;  // posted since the last signalled one
  bool unmarked_ = false;
};

// The largest path MTU of a port, and whether `bytes` is one.
uint32_t MtuBytes(ibv_mtu mtu);
bool IsMtu(uint32_t bytes);

}  // namespace tributary::transport::roce
