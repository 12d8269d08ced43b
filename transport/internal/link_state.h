// All that a link knows and that is not I/O: slots, credits, order, the orderly end, the sticky
// error. Every backend drives one of these under its own mutex and waits in its own way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/internal/credit.h"
#include "transport/internal/slot_pool.h"
#include "transport/link.h"

namespace tributary::transport::internal {

// What Send checks of a chunk before it takes it: that it is of this link (`ours`), was borrowed
// rather than received (`for_sending`), and is not longer than its slot. INVALID_ARGUMENT.
absl::Status CheckSendable(bool ours, const Chunk& chunk, bool for_sending);

// A chunk on its way out, or arrived.
struct SlotChunk {
  uint32_t slot = 0;
  size_t bytes = 0;
  uint64_t sequence = 0;
  ChunkTag tag;
};

// Slots 0 .. S-1 are for sending, S .. S+R-1 for receiving. Not thread-safe.
class LinkState {
 public:
  struct Config {
    std::string peer;  // as messages name it: peer "rack0" (10.0.0.5:7071)
    size_t chunk_bytes = 0;
    uint32_t send_slots = 0;
    uint32_t receive_slots = 0;
    uint64_t our_epoch = 0;   // on our grants
    uint64_t peer_epoch = 0;  // on theirs
    uint64_t peer_slots = 0;  // their first grant
  };
  explicit LinkState(const Config& config);

  const std::string& peer() const { return config_.peer; }
  uint64_t our_epoch() const { return config_.our_epoch; }
  bool IsSendSlot(uint32_t slot) const { return send_pool_.Holds(slot); }

  // --- sending ---
  // OK while chunks may be borrowed and sent: FAILED_PRECONDITION after our Close, else the sticky
  // error.
  absl::Status SendStatus() const;
  bool CanBorrow() const { return !send_pool_.empty() && credit_.available() > 0; }
  uint32_t Borrow();  // only when CanBorrow()
  // Why Borrow had to wait until its deadline: no credit, or no slot of ours.
  absl::Status BorrowTimeout() const;
  void ReturnUnsent(uint32_t slot);
  // Numbers a borrowed chunk; from here on it is the backend's.
  SlotChunk Queue(uint32_t slot, size_t bytes, const ChunkTag& tag);
  void OnSent(const SlotChunk& chunk);  // the slot is free again
  // For backends whose send slots are the peer's memory: the chunk is sent, its slot stays with the
  // peer until OnSlotBack.
  void OnHandedOver(const SlotChunk& chunk);
  void OnSlotBack(uint32_t slot) { send_pool_.Return(slot); }
  bool flushed() const { return sent_ == queued_; }
  uint64_t queued() const { return queued_; }
  // A grant of the peer; true where it raised the credit. Wrong epochs are ignored.
  bool OnGrant(uint64_t epoch, uint64_t granted);
  void StartClosing() { closing_ = true; }       // no Borrow or Send after this
  void OnPeerHasAll() { peer_has_all_ = true; }  // the answer to our goodbye
  bool closed() const { return peer_has_all_; }
  absl::Status CloseTimeout() const;  // Close waited until its deadline

  // --- receiving ---
  // A slot for the chunk numbered `sequence`. FAILED_PRECONDITION where the peer had no credit for
  // it, DATA_LOSS where its number was seen before or it does not fit a slot.
  absl::StatusOr<uint32_t> Admit(uint64_t sequence, uint64_t bytes);
  // The same where the peer has picked the slot; FAILED_PRECONDITION where that one is not free.
  absl::Status AdmitInto(uint32_t slot, uint64_t sequence, uint64_t bytes);
  void OnArrived(const SlotChunk& chunk);  // whole and checked
  // What Receive has to say now: a chunk, OUT_OF_RANGE or an error; nothing means wait.
  std::optional<absl::StatusOr<SlotChunk>> Receive();
  // The number of the chunk that Receive hands out next.
  uint64_t next() const { return next_; }
  void ReturnReceived(uint32_t slot);
  // A cumulative grant worth announcing now, marked as announced.
  std::optional<uint64_t> GrantDue();
  // All that may be granted, for backends to which announcing costs nothing; marked as announced.
  uint64_t GrantAll() { return grants_.Announce(); }
  uint64_t granted() const { return grants_.announced(); }
  // The peer closed its side after `total` chunks. DATA_LOSS where more than that have come.
  absl::Status OnGoodbye(uint64_t total);
  // Whether the peer closed and all it sent is here.
  bool peer_done() const { return total_.has_value() && arrived_ == *total_; }

  // --- failing ---
  // The first error sticks; false where there was one already. `local` marks our own Cancel:
  // Receive then stops at once, where after any other error it first hands out what arrived in
  // order.
  bool Fail(absl::Status error, bool local = false);
  const absl::Status& error() const { return error_; }
  bool failed() const { return !error_.ok(); }

  LinkStats stats;

 private:
  absl::Status CheckAdmissible(uint64_t sequence, uint64_t bytes) const;

  const Config config_;
  SlotPool send_pool_;
  SlotPool receive_pool_;
  CreditLedger credit_;
  GrantLedger grants_;
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  bool closing_ = false;
  bool peer_has_all_ = false;
  std::vector<std::optional<SlotChunk>> ready_;  // by sequence modulo receive_slots
  uint64_t next_ = 0;                            // the sequence that Receive hands out next
  uint64_t arrived_ = 0;
  std::optional<uint64_t> total_;
  absl::Status error_;
  bool cancelled_here_ = false;
};

}  // namespace tributary::transport::internal
