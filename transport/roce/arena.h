// A device's one arena: memory registered once at the start, from which links take their slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "transport/link.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// A piece of the arena that lies within one registration.
struct Slot {
  uint8_t* data = nullptr;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
};

// Mapped as a whole, registered in pieces no longer than the device's max_mr_size. Thread-safe.
class RegisteredArena {
 public:
  static constexpr size_t kPage = 4096;

  // RESOURCE_EXHAUSTED where the kernel or the device does not grant it, with the likely mend.
  static absl::StatusOr<std::unique_ptr<RegisteredArena>> Create(VerbsApi& api, ibv_pd* pd,
                                                                 size_t bytes,
                                                                 uint64_t max_mr_size);
  ~RegisteredArena();
  RegisteredArena(const RegisteredArena&) = delete;
  RegisteredArena& operator=(const RegisteredArena&) = delete;

  // `count` slots of `slot_bytes`, each on its own pages. RESOURCE_EXHAUSTED says what is left.
  absl::StatusOr<std::vector<Slot>> Take(uint32_t count, size_t slot_bytes);
  void Return(const std::vector<Slot>& slots, size_t slot_bytes);
  size_t registrations() const { return regions_.size(); }
  size_t free_bytes() const;

 private:
  struct Region {
    uint8_t* base = nullptr;
    ibv_mr* mr = nullptr;
    std::map<size_t, size_t> free;  // offset → bytes; neighbours are merged
  };

  explicit RegisteredArena(VerbsApi& api) : api_(api) {}
  absl::Status Map(size_t bytes);
  absl::Status Register(ibv_pd* pd, size_t piece_bytes);
  static bool TakeFrom(Region& region, size_t bytes, Slot* slot);
  void GiveBack(const Slot& slot, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  VerbsApi& api_;
  uint8_t* base_ = nullptr;
  size_t bytes_ = 0;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;  // the vector is fixed after Create; `free` is guarded by mutex_
};

// Whether memory of `kind` can be an arena here. OK for host memory; for CUDA memory
// FAILED_PRECONDITION with the reason where this build or this device cannot.
absl::Status CheckArenaMemory(MemoryKind kind, VerbsApi& api, ibv_pd* pd);

// Whether the device registers memory of other devices by dma-buf; else why not. The probe is a
// registration of file descriptor -1: EBADF says that the kernel got as far as looking at it.
absl::Status ProbeDmabuf(VerbsApi& api, ibv_pd* pd);

}  // namespace tributary::transport::roce
