// Maps, registers and hands out a device's arena.
#include "transport/roce/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::roce {
namespace {

size_t WholePages(size_t bytes) {
  return (bytes + RegisteredArena::kPage - 1) / RegisteredArena::kPage * RegisteredArena::kPage;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegisteredArena>> RegisteredArena::Create(VerbsApi& api, ibv_pd* pd,
                                                                         size_t bytes,
                                                                         uint64_t max_mr_size) {
  std::unique_ptr<RegisteredArena> arena(new RegisteredArena(api));
  RETURN_IF_ERROR(arena->Map(WholePages(bytes)));
  // Some devices say 0 for "no limit".
  uint64_t piece = max_mr_size == 0 ? bytes : std::min<uint64_t>(max_mr_size, arena->bytes_);
  if (piece < arena->bytes_) piece = piece / kPage * kPage;
  if (piece < kPage) {
    return absl::FailedPreconditionError(absl::StrCat("the device registers at most ", max_mr_size,
                                                      " bytes at once, less than a page"));
  }
  RETURN_IF_ERROR(arena->Register(pd, WholePages(piece)));
  return arena;
}

absl::Status RegisteredArena::Map(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map an RDMA arena of ", bytes,
                                                     " bytes: ", std::strerror(errno),
                                                     "; lower arena_bytes"));
  }
  base_ = static_cast<uint8_t*>(base);
  bytes_ = bytes;
  // A child after fork(2) must not get copies of pages that the device writes to; and fewer, larger
  // pages are registered faster. Both are only advice.
  madvise(base, bytes, MADV_DONTFORK);
  madvise(base, bytes, MADV_HUGEPAGE);
  return absl::OkStatus();
}

absl::Status RegisteredArena::Register(ibv_pd* pd, size_t piece_bytes) {
  for (size_t at = 0; at < bytes_; at += piece_bytes) {
    const size_t bytes = std::min(piece_bytes, bytes_ - at);
    ibv_mr* mr =
        api_.RegMr(pd, base_ + at, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (mr == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot register ", bytes, " bytes at ", at, " of an RDMA arena of ", bytes_,
          " bytes: ", std::strerror(errno),
          "; lower arena_bytes, free memory, or raise what this process may lock (ulimit -l)"));
    }
    regions_.push_back({.base = base_ + at, .mr = mr, .free = {{0, bytes}}});
  }
  return absl::OkStatus();
}

RegisteredArena::~RegisteredArena() {
  for (const Region& region : regions_) api_.DeregMr(region.mr);
  if (base_ != nullptr) munmap(base_, bytes_);
}

bool RegisteredArena::TakeFrom(Region& region, size_t bytes, Slot* slot) {
  for (auto it = region.free.begin(); it != region.free.end(); ++it) {
    const auto [offset, length] = *it;
    if (length < bytes) continue;
    region.free.erase(it);
    if (length > bytes) region.free.emplace(offset + bytes, length - bytes);
    *slot = {
        .data = region.base + offset, .local_key = region.mr->lkey, .remote_key = region.mr->rkey};
    return true;
  }
  return false;
}

absl::StatusOr<std::vector<Slot>> RegisteredArena::Take(uint32_t count, size_t slot_bytes) {
  const size_t bytes = WholePages(slot_bytes);
  std::vector<Slot> slots;
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    Slot slot;
    const bool taken = std::any_of(regions_.begin(), regions_.end(),
                                   [&](Region& region) { return TakeFrom(region, bytes, &slot); });
    if (taken) {
      slots.push_back(slot);
      continue;
    }
    for (const Slot& one : slots) GiveBack(one, bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("a link needs ", count, " slots of ", bytes, " bytes, and the RDMA arena of ",
                     bytes_, " bytes has room for ", i,
                     "; raise arena_bytes, or lower the link's slots or chunk_bytes"));
  }
  return slots;
}

void RegisteredArena::Return(const std::vector<Slot>& slots, size_t slot_bytes) {
  std::lock_guard lock(mutex_);
  for (const Slot& slot : slots) GiveBack(slot, WholePages(slot_bytes));
}

void RegisteredArena::GiveBack(const Slot& slot, size_t bytes) {
  for (Region& region : regions_) {
    if (slot.local_key != region.mr->lkey) continue;
    auto at = region.free.emplace(static_cast<size_t>(slot.data - region.base), bytes).first;
    const auto next = std::next(at);
    if (next != region.free.end() && at->first + at->second == next->first) {
      at->second += next->second;
      region.free.erase(next);
    }
    if (at == region.free.begin()) return;
    const auto previous = std::prev(at);
    if (previous->first + previous->second == at->first) {
      previous->second += at->second;
      region.free.erase(at);
    }
    return;
  }
}

size_t RegisteredArena::free_bytes() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const Region& region : regions_) {
    for (const auto& [offset, length] : region.free) bytes += length;
  }
  return bytes;
}

absl::Status CheckArenaMemory(MemoryKind kind, VerbsApi& api, ibv_pd* pd) {
  if (kind == MemoryKind::kHost) return absl::OkStatus();
  if (kind == MemoryKind::kShared) {
    return absl::InvalidArgumentError("an RDMA arena is in host or in CUDA memory, not in shared");
  }
  const absl::Status dmabuf = ProbeDmabuf(api, pd);
  return absl::FailedPreconditionError(absl::StrCat(
      "an RDMA arena in CUDA memory was asked for, and this build has no CUDA; use host memory. (",
      dmabuf.ok() ? "The device itself can register GPU memory by dma-buf."
                  : absl::StrCat("And ", dmabuf.message(), "."),
      ")"));
}

absl::Status ProbeDmabuf(VerbsApi& api, ibv_pd* pd) {
  errno = 0;
  ibv_mr* mr = api.RegDmabufMr(pd, 0, RegisteredArena::kPage, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (mr != nullptr) api.DeregMr(mr);  // no kernel should take descriptor -1
  if (mr != nullptr || error == EBADF) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the device does not register memory by dma-buf (", std::strerror(error), ")"));
}

}  // namespace tributary::transport::roce
