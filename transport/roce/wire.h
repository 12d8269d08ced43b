// The verbs half of a link: its completion queue, its queue pairs and its slots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/roce.h"
#include "transport/roce/device.h"
#include "transport/roce/place.h"
#include "transport/roce/plan.h"
#include "transport/roce/queue_pair.h"
#include "tributary/v1/link.pb.h"

namespace tributary::transport::roce {

// What a link asks of a device.
struct WireRequest {
  GidPlace place;  // of ours
  uint32_t queue_pairs = 1;
  uint32_t slots = 8;
  uint32_t peer_slots = 8;
  size_t chunk_bytes = 0;
  std::shared_ptr<ArenaShare> share;  // of the device's arena, that the slots are taken from
};

// Bytes before the payload in each slot: the chunk header, and alignment.
inline constexpr size_t kHeaderRoom = 64;

// Slots 0 .. slots()-1 are for sending, as many after them for receiving. Not thread-safe, but for
// Poll, Arm and AckEvents, which one thread calls.
class Wire {
 public:
  // Creates all of it; the queue pairs wait to be connected. What the device does not grant is
  // clamped and logged, or is RESOURCE_EXHAUSTED, and then nothing is left behind.
  static absl::StatusOr<std::unique_ptr<Wire>> Create(std::shared_ptr<RoceDevice> device,
                                                      const WireRequest& request,
                                                      const RoceOptions& options);
  ~Wire();  // as TearDown, and gives the slots back
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  v1::RoceEndpoint endpoint() const;
  // To the peer's endpoint, which was checked.
  absl::Status Connect(const v1::RoceEndpoint& theirs);
  // Stop posting → error state → drain every flush → destroy. Idempotent. Requests that the device
  // has not given back within `patience` are logged; destroying the queue pairs ends them.
  void TearDown(absl::Duration patience = absl::Seconds(5));

  bool torn_down() const { return torn_down_; }

  // Completions. `fd` is readable after Arm when one has come; AckEvents takes the events up.
  int fd() const { return channel_->fd; }
  absl::StatusOr<size_t> Poll(absl::Span<ibv_wc> completions);
  absl::Status Arm();
  void AckEvents();
  // Counts a completion that nobody else wants.
  void Account(const ibv_wc& completion);

  RoceDevice& device() const { return *device_; }
  std::vector<std::unique_ptr<QueuePair>>& queue_pairs() { return queue_pairs_; }
  RegisteredArena& arena() const { return device_->arena(); }
  const Slot& slot(uint32_t index) const { return slots_[index]; }
  uint32_t slots() const { return plan_.slots; }             // for sending
  uint32_t receive_slots() const { return receive_slots_; }  // that the peer has room to hear of
  uint32_t peer_slots() const { return peer_slots_; }
  uint64_t peer_address(uint32_t slot) const {
    return theirs_.slot_address(static_cast<int>(slot));
  }
  uint32_t peer_key(uint32_t slot) const { return theirs_.slot_key(static_cast<int>(slot)); }
  uint32_t mtu_bytes() const { return route_.mtu_bytes; }
  size_t chunk_bytes() const { return request_.chunk_bytes; }
  uint32_t completions() const { return plan_.completions; }  // that the queue holds
  std::string description() const;  // device, port, GID, queue pairs, MTU: for the log

 private:
  Wire(std::shared_ptr<RoceDevice> device, const WireRequest& request, const RoceOptions& options)
      : device_(std::move(device)), request_(request), options_(options) {}
  absl::Status SetUp();
  absl::Status CheckPort();
  absl::Status Plan();
  absl::Status CreateQueues();
  bool Drained() const;
  void Drain(absl::Duration patience);

  const std::shared_ptr<RoceDevice> device_;
  const WireRequest request_;
  const RoceOptions options_;
  ibv_port_attr port_{};
  QueuePlan plan_;
  uint32_t receive_slots_ = 0;
  uint32_t peer_slots_ = 0;
  Route route_;
  v1::RoceEndpoint theirs_;
  std::vector<Slot> slots_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::vector<std::unique_ptr<QueuePair>> queue_pairs_;
  bool torn_down_ = false;
};

}  // namespace tributary::transport::roce
