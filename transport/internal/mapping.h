// Owns a range that mmap(2) gave.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tributary::transport::internal {

// Move-only.
class Mapping {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  Mapping() = default;
  // Invalid, with errno, where the kernel does not grant it.
  Mapping(size_t bytes, int flags, int fd)
      : base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (valid()) munmap(base_, bytes_);
  }
  // Anonymous and private; pages nobody touches cost nothing.
  static Mapping Anonymous(size_t bytes) {
    Mapping mapping(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    mapping.WantHugePages();
    return mapping;
  }
  // Advice: payload is copied and read through faster where an entry of the TLB spans 2 MiB.
  void WantHugePages() const {
    if (valid() && bytes_ >= kHugePage) madvise(base_, bytes_, MADV_HUGEPAGE);
  }

  bool valid() const { return base_ != MAP_FAILED; }
  uint8_t* data() const { return static_cast<uint8_t*>(base_); }
  size_t size() const { return bytes_; }

 private:
  void* base_ = MAP_FAILED;
  size_t bytes_ = 0;
};

}  // namespace tributary::transport::internal
