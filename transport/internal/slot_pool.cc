// Maps the arena.
#include "transport/internal/slot_pool.h"

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tributary::transport::internal {

absl::StatusOr<Arena> Arena::Map(size_t slot_bytes, uint32_t slots) {
  constexpr size_t kPage = 4096;
  Arena arena;
  arena.slot_bytes_ = slot_bytes;
  arena.stride_ = (slot_bytes + kPage - 1) / kPage * kPage;
  arena.memory_ = Mapping::Anonymous(arena.stride_ * slots);
  if (!arena.memory_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", slots, " link slots of ",
                                                     slot_bytes, " bytes: ", std::strerror(errno),
                                                     "; lower the link's slots or chunk_bytes"));
  }
  return arena;
}

}  // namespace tributary::transport::internal
