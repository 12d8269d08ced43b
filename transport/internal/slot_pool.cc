// Maps and unmaps the arena.
#include "transport/internal/slot_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tributary::transport::internal {

absl::StatusOr<Arena> Arena::Map(size_t slot_bytes, uint32_t slots) {
  constexpr size_t kPage = 4096;
  Arena arena;
  arena.slot_bytes_ = slot_bytes;
  arena.stride_ = (slot_bytes + kPage - 1) / kPage * kPage;
  arena.mapped_ = arena.stride_ * slots;
  void* base = mmap(nullptr, arena.mapped_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    arena.mapped_ = 0;
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", slots, " link slots of ",
                                                     slot_bytes, " bytes: ", std::strerror(error),
                                                     "; lower the link's slots or chunk_bytes"));
  }
  arena.base_ = static_cast<uint8_t*>(base);
  return arena;
}

Arena::~Arena() {
  if (mapped_ != 0) munmap(base_, mapped_);
}

void Arena::Swap(Arena& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(stride_, other.stride_);
  std::swap(slot_bytes_, other.slot_bytes_);
  std::swap(mapped_, other.mapped_);
}

}  // namespace tributary::transport::internal
