// Makes, seals and maps the memory of a link.
#include "transport/shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tributary::transport::shm {
namespace {

constexpr size_t kPage = 4096;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

size_t RingBytes(uint32_t slots) {
  return Pages(sizeof(DirectionHead) + slots * sizeof(Entry) +
               slots * sizeof(std::atomic<uint32_t>));
}

// Lays a direction out at `base`. The memory is all zeros when it is new, which is what every
// atomic in it starts as.
Direction At(uint8_t* base, uint32_t slots, size_t chunk_bytes) {
  Direction direction;
  direction.slots = slots;
  direction.stride = Pages(chunk_bytes);
  direction.head = reinterpret_cast<DirectionHead*>(base);
  direction.entries = reinterpret_cast<Entry*>(base + sizeof(DirectionHead));
  direction.freed = reinterpret_cast<std::atomic<uint32_t>*>(base + sizeof(DirectionHead) +
                                                             slots * sizeof(Entry));
  direction.memory = base + RingBytes(slots);
  return direction;
}

size_t DirectionBytes(uint32_t slots, size_t chunk_bytes) {
  return RingBytes(slots) + slots * Pages(chunk_bytes);
}

// Turns memory that is reserved already into huge pages, where the kernel has them to give: advice.
void CollapseIntoHugePages(int fd, size_t bytes) {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;  // of Linux 6.1; the libc's headers may be older
#endif
  const internal::Mapping mapping(bytes, MAP_SHARED, fd);
  if (!mapping.valid() || bytes < internal::Mapping::kHugePage) return;
  mapping.WantHugePages();
  madvise(mapping.data(), bytes / internal::Mapping::kHugePage * internal::Mapping::kHugePage,
          MADV_COLLAPSE);
}

absl::Status NoMemory(size_t bytes, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot reserve ", bytes >> 20, " MiB of shared memory for a link: ", std::strerror(error),
      "; lower the link's slots, or raise the memory limit of the process or its container"));
}

}  // namespace

size_t Shape::total_bytes() const {
  return DirectionBytes(acceptor_slots, chunk_bytes) + DirectionBytes(connecter_slots, chunk_bytes);
}

absl::StatusOr<internal::Fd> Region::CreateMemory(const Shape& shape) {
  internal::Fd memory(memfd_create("tributary-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return internal::ErrnoStatus("memfd_create", errno);
  const size_t bytes = shape.total_bytes();
  // Reserved now: a page that cannot be had later would kill the process with SIGBUS.
  int error = 0;
  do {
    error = posix_fallocate(memory.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) return NoMemory(bytes, error);
  CollapseIntoHugePages(memory.get(), bytes);
  if (fcntl(memory.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return internal::ErrnoStatus("sealing the memory of a link", errno);
  }
  return memory;
}

absl::StatusOr<Region> Region::Map(const internal::Fd& memory, const Shape& shape) {
  struct stat about {};
  if (fstat(memory.get(), &about) != 0) return internal::ErrnoStatus("fstat", errno);
  const size_t bytes = shape.total_bytes();
  if (static_cast<size_t>(about.st_size) != bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer's shared memory has ", about.st_size, " bytes where the hellos make it ", bytes,
        "; run the same release of tributary on both"));
  }
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::FailedPreconditionError(
        "the peer's shared memory is not sealed against resizing; it breaks the link protocol");
  }
  Region region;
  // Populated: the first lap through the slots would else fault in each page by itself.
  region.memory_ = internal::Mapping(bytes, MAP_SHARED | MAP_POPULATE, memory.get());
  if (!region.memory_.valid()) return NoMemory(bytes, errno);
  uint8_t* at = region.memory_.data();
  region.to_acceptor_ = At(at, shape.acceptor_slots, shape.chunk_bytes);
  region.to_connecter_ = At(at + DirectionBytes(shape.acceptor_slots, shape.chunk_bytes),
                            shape.connecter_slots, shape.chunk_bytes);
  return region;
}

}  // namespace tributary::transport::shm
