// Registers and hands out a device's arena.
#include "transport/roce/arena.h"

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

absl::StatusOr<std::unique_ptr<RegisteredArena>> RegisteredArena::Create(
    VerbsApi& api, ibv_pd* pd, std::unique_ptr<ArenaMemory> memory, uint64_t max_mr_size) {
  const size_t bytes = memory->bytes();
  std::unique_ptr<RegisteredArena> arena(new RegisteredArena(api, std::move(memory)));
  // Some devices say 0 for "no limit".
  uint64_t piece = max_mr_size == 0 ? bytes : std::min<uint64_t>(max_mr_size, bytes);
  if (piece < bytes) piece = piece / kPage * kPage;
  if (piece < kPage) {
    return absl::FailedPreconditionError(absl::StrCat("the device registers at most ", max_mr_size,
                                                      " bytes at once, less than a page"));
  }
  RETURN_IF_ERROR(arena->Register(pd, WholePages(piece)));
  return arena;
}

absl::Status RegisteredArena::Register(ibv_pd* pd, size_t piece_bytes) {
  const size_t all = memory_->bytes();
  for (size_t at = 0; at < all; at += piece_bytes) {
    const size_t bytes = std::min(piece_bytes, all - at);
    ibv_mr* mr = memory_->Register(pd, at, bytes);
    if (mr == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot register ", bytes, " bytes at ", at, " of an RDMA arena of ", all, " bytes (",
          memory_->description(), "): ", std::strerror(errno),
          "; lower arena_bytes, free memory, or raise what this process may lock (ulimit -l)"));
    }
    regions_.push_back({.begin = at, .bytes = bytes, .mr = mr, .free = {{at, bytes}}});
  }
  return absl::OkStatus();
}

RegisteredArena::~RegisteredArena() {
  for (const Region& region : regions_) api_.DeregMr(region.mr);
}

bool RegisteredArena::TakeFrom(Region& region, size_t bytes, Slot* slot) {
  for (auto it = region.free.begin(); it != region.free.end(); ++it) {
    const auto [offset, length] = *it;
    if (length < bytes) continue;
    region.free.erase(it);
    if (length > bytes) region.free.emplace(offset + bytes, length - bytes);
    *slot = {.data = memory_->host() + offset,
             .wire = memory_->wire() + offset,
             .device = memory_->device() == 0 ? 0 : memory_->device() + offset,
             .local_key = region.mr->lkey,
             .remote_key = region.mr->rkey};
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
                     memory_->bytes(), " bytes has room for ", i,
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
    auto at = region.free.emplace(OffsetOf(slot), bytes).first;
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

size_t RegisteredArena::Capacity(size_t slot_bytes) const {
  const size_t slot = WholePages(slot_bytes);
  size_t slots = 0;
  for (const Region& region : regions_) slots += region.bytes / slot;
  return slots * slot;
}

ArenaShare::ArenaShare(size_t bytes, size_t kept)
    : bytes_(WholePages(bytes)), kept_(WholePages(kept)) {}

absl::StatusOr<std::vector<Slot>> ArenaShare::Take(RegisteredArena& arena, uint32_t count,
                                                   size_t slot_bytes) {
  const size_t slot = WholePages(slot_bytes);
  const size_t wanted = count * slot;
  std::lock_guard lock(mutex_);
  size_t& taken = taken_[&arena];
  const size_t capacity = arena.Capacity(slot_bytes);
  const size_t share = std::min(bytes_, capacity - std::min(capacity, kept_ / slot * slot));
  const size_t left = share - std::min(share, taken);
  if (wanted > left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a link needs ", count, " slots of ", slot, " bytes, and the RDMA arena has room for ",
        left / slot, " in the ", share, " bytes that are for such links",
        "; raise arena_bytes, or lower the link's slots or chunk_bytes"));
  }
  ASSIGN_OR_RETURN(std::vector<Slot> slots, arena.Take(count, slot_bytes));
  taken += wanted;
  return slots;
}

void ArenaShare::Return(RegisteredArena& arena, const std::vector<Slot>& slots, size_t slot_bytes) {
  std::lock_guard lock(mutex_);
  arena.Return(slots, slot_bytes);
  taken_[&arena] -= slots.size() * WholePages(slot_bytes);
}

size_t RegisteredArena::free_bytes() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const Region& region : regions_) {
    for (const auto& [offset, length] : region.free) bytes += length;
  }
  return bytes;
}

absl::Status RegisteredArena::ToWire(const Slot& slot, size_t offset, size_t bytes) const {
  if (!memory_->wire_on_device()) return absl::OkStatus();
  return memory_->ToDevice(OffsetOf(slot) + offset, bytes);
}

absl::Status RegisteredArena::FromWire(const Slot& slot, size_t offset, size_t bytes) const {
  if (!memory_->wire_on_device()) return absl::OkStatus();
  return memory_->ToHost(OffsetOf(slot) + offset, bytes);
}

absl::Status RegisteredArena::ToDevice(const Slot& slot, size_t offset, size_t bytes) const {
  if (slot.device == 0 || memory_->wire_on_device()) return absl::OkStatus();
  return memory_->ToDevice(OffsetOf(slot) + offset, bytes);
}

absl::Status RegisteredArena::FromDevice(const Slot& slot, size_t offset, size_t bytes) const {
  if (slot.device == 0) return absl::OkStatus();
  return memory_->ToHost(OffsetOf(slot) + offset, bytes);
}

}  // namespace tributary::transport::roce
