// A device's one arena: memory registered once at the start, from which links take their slots;
// and what of it is whose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "transport/roce/arena_memory.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// A piece of the arena that lies within one registration.
struct Slot {
  uint8_t* data = nullptr;  // as the CPU sees it
  uint64_t wire = 0;        // as the network device does
  uint64_t device = 0;      // on the GPU; 0 where the arena is in host memory
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
};

// Registered in pieces no longer than the device's max_mr_size. Thread-safe.
class RegisteredArena {
 public:
  static constexpr size_t kPage = kArenaPage;

  // RESOURCE_EXHAUSTED where the kernel or the device does not grant it, with the likely mend.
  static absl::StatusOr<std::unique_ptr<RegisteredArena>> Create(
      VerbsApi& api, ibv_pd* pd, std::unique_ptr<ArenaMemory> memory, uint64_t max_mr_size);
  ~RegisteredArena();
  RegisteredArena(const RegisteredArena&) = delete;
  RegisteredArena& operator=(const RegisteredArena&) = delete;

  // `count` slots of `slot_bytes`, each on its own pages. RESOURCE_EXHAUSTED says what is left.
  absl::StatusOr<std::vector<Slot>> Take(uint32_t count, size_t slot_bytes);
  void Return(const std::vector<Slot>& slots, size_t slot_bytes);

  // The first `bytes` of a slot from `offset` on, between its views; nothing to do where it has
  // one. What the CPU wrote, to where the network device reads, and back.
  absl::Status ToWire(const Slot& slot, size_t offset, size_t bytes) const;
  absl::Status FromWire(const Slot& slot, size_t offset, size_t bytes) const;
  // What the CPU sees, to the GPU where the network device did not write there, and back.
  absl::Status ToDevice(const Slot& slot, size_t offset, size_t bytes) const;
  absl::Status FromDevice(const Slot& slot, size_t offset, size_t bytes) const;

  const std::string& description() const { return memory_->description(); }
  size_t registrations() const { return regions_.size(); }
  // Bytes of all slots of this size that it holds where nothing is taken.
  size_t Capacity(size_t slot_bytes) const;
  size_t free_bytes() const;

 private:
  struct Region {
    size_t begin = 0;  // in the arena
    size_t bytes = 0;
    ibv_mr* mr = nullptr;
    std::map<size_t, size_t> free;  // offset in the arena → bytes; neighbours are merged
  };

  RegisteredArena(VerbsApi& api, std::unique_ptr<ArenaMemory> memory)
      : api_(api), memory_(std::move(memory)) {}
  absl::Status Register(ibv_pd* pd, size_t piece_bytes);
  size_t OffsetOf(const Slot& slot) const {
    return static_cast<size_t>(slot.data - memory_->host());
  }
  bool TakeFrom(Region& region, size_t bytes, Slot* slot);
  void GiveBack(const Slot& slot, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  VerbsApi& api_;
  const std::unique_ptr<ArenaMemory> memory_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;  // the vector is fixed after Create; `free` is guarded by mutex_
};

// Of each device's arena, what the links of one fabric may take together, so that those of another
// over the same devices find the rest. Thread-safe.
class ArenaShare {
 public:
  // At most `bytes`, and never so much that less than `kept` would be left for slots of their size:
  // where an arena is of several registrations, the end of each may hold no whole slot.
  ArenaShare(size_t bytes, size_t kept);

  // As RegisteredArena's, within the share.
  absl::StatusOr<std::vector<Slot>> Take(RegisteredArena& arena, uint32_t count, size_t slot_bytes);
  void Return(RegisteredArena& arena, const std::vector<Slot>& slots, size_t slot_bytes);

 private:
  const size_t bytes_, kept_;  // whole pages
  std::mutex mutex_;
  std::map<const RegisteredArena*, size_t> taken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tributary::transport::roce
