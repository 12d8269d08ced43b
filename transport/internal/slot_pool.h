// One arena of equal slots, each on its own pages, lent from a stack so that warm memory is used
// first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/internal/mapping.h"

namespace tributary::transport::internal {

// An anonymous mapping; pages nobody touched cost nothing. Move-only.
class Arena {
 public:
  static absl::StatusOr<Arena> Map(size_t slot_bytes, uint32_t slots);
  Arena() = default;

  uint8_t* slot(uint32_t index) const { return memory_.data() + stride_ * index; }
  size_t slot_bytes() const { return slot_bytes_; }

 private:
  Mapping memory_;
  size_t stride_ = 0;
  size_t slot_bytes_ = 0;
};

// Which of the slots first .. first + count - 1 are free. Not thread-safe.
class SlotPool {
 public:
  SlotPool(uint32_t first, uint32_t count) : first_(first), taken_(count, false) {
    free_.reserve(count);
    for (uint32_t i = count; i-- > 0;) free_.push_back(first + i);
  }
  bool empty() const { return free_.empty(); }
  size_t free() const { return free_.size(); }
  bool Holds(uint32_t slot) const { return slot >= first_ && slot - first_ < taken_.size(); }
  uint32_t Take() {  // not when empty()
    const uint32_t slot = free_.back();
    free_.pop_back();
    taken_[slot - first_] = true;
    return slot;
  }
  // Takes a certain slot; false where there is no such slot or it is taken. Linear in the free
  // ones.
  bool TakeThis(uint32_t slot) {
    if (!Holds(slot) || taken_[slot - first_]) return false;
    free_.erase(std::find(free_.begin(), free_.end(), slot));
    taken_[slot - first_] = true;
    return true;
  }
  void Return(uint32_t slot) {
    if (!taken_[slot - first_]) return;  // twice: nothing to free
    taken_[slot - first_] = false;
    free_.push_back(slot);
  }

 private:
  uint32_t first_;
  std::vector<bool> taken_;
  std::vector<uint32_t> free_;
};

}  // namespace tributary::transport::internal
