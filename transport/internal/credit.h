// The two halves of flow control as plain counters: what a sender may still send, what a receiver
// has granted. Grants are cumulative ("you may have sent N chunks in all") and carry the epoch of
// the link they belong to, so a repeated, reordered or late grant mints nothing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary::transport::internal {

// The sender's half. Not thread-safe.
class CreditLedger {
 public:
  // `epoch` is the receiver's, from its hello; `granted` its first grant (its slots).
  CreditLedger(uint64_t epoch, uint64_t granted) : epoch_(epoch), granted_(granted) {}

  enum class Grant { kRaised, kOld, kWrongEpoch };
  Grant OnGrant(uint64_t epoch, uint64_t granted) {
    if (epoch != epoch_) return Grant::kWrongEpoch;
    if (granted <= granted_) return Grant::kOld;
    granted_ = granted;
    return Grant::kRaised;
  }
  uint64_t available() const { return granted_ - used_; }
  uint64_t granted() const { return granted_; }
  // Takes one credit; false where none is left.
  bool Take() {
    if (used_ == granted_) return false;
    ++used_;
    return true;
  }
  // Gives back one that was taken and not used.
  void GiveBack() { --used_; }

 private:
  const uint64_t epoch_;
  uint64_t granted_;
  uint64_t used_ = 0;
};

// The receiver's half. Not thread-safe.
class GrantLedger {
 public:
  explicit GrantLedger(uint32_t slots) : slots_(slots), announced_(slots) {}

  // Whether the chunk numbered `sequence` (from 0) was granted.
  bool Admits(uint64_t sequence) const { return sequence < announced_; }
  void OnArrival() { ++arrived_; }
  void OnReturn() { ++returned_; }
  // What may be announced: every slot, plus one for each that came back.
  uint64_t grantable() const { return slots_ + returned_; }
  uint64_t announced() const { return announced_; }
  // Whether an announcement is worth its message: a quarter of the slots came back, or the sender
  // has less than half left. With one of these true whenever the sender is short, it never starves.
  bool Due() const {
    const uint64_t fresh = grantable() - announced_;
    if (fresh == 0) return false;
    return fresh >= std::max<uint64_t>(1, slots_ / 4) || announced_ - arrived_ <= slots_ / 2;
  }
  // Marks everything grantable as announced and returns it.
  uint64_t Announce() { return announced_ = grantable(); }

 private:
  const uint64_t slots_;
  uint64_t announced_;
  uint64_t arrived_ = 0;
  uint64_t returned_ = 0;
};

}  // namespace tributary::transport::internal
