// The least of io_uring that a bench needs, by system calls: one request at a time, waited for.
#pragma once

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tributary::bench {

class Uring {
 public:
  explicit Uring(unsigned int entries) {
    io_uring_params p{};
    fd_ = static_cast<int>(syscall(SYS_io_uring_setup, entries, &p));
    if (fd_ < 0) return;
    // Kernels since 5.4 have both rings in one mapping.
    size_t bytes = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
    const size_t completions = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
    if (completions > bytes) bytes = completions;
    auto* ring = static_cast<uint8_t*>(Map(bytes, IORING_OFF_SQ_RING));
    requests_ =
        static_cast<io_uring_sqe*>(Map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    submit_tail_ = reinterpret_cast<uint32_t*>(ring + p.sq_off.tail);
    submit_mask_ = *reinterpret_cast<uint32_t*>(ring + p.sq_off.ring_mask);
    submit_array_ = reinterpret_cast<uint32_t*>(ring + p.sq_off.array);
    head_ = reinterpret_cast<uint32_t*>(ring + p.cq_off.head);
    tail_ = reinterpret_cast<uint32_t*>(ring + p.cq_off.tail);
    mask_ = *reinterpret_cast<uint32_t*>(ring + p.cq_off.ring_mask);
    completions_ = reinterpret_cast<io_uring_cqe*>(ring + p.cq_off.cqes);
  }
  ~Uring() {
    if (fd_ >= 0) close(fd_);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;
  bool valid() const { return fd_ >= 0; }

  // Enters the request and waits for `wait_for` completions to be there.
  void Submit(const io_uring_sqe& request, unsigned int wait_for) {
    if (!valid()) std::abort();  // whoever made it asked
    const uint32_t tail = *submit_tail_;
    requests_[tail & submit_mask_] = request;
    submit_array_[tail & submit_mask_] = tail & submit_mask_;
    std::atomic_ref(*submit_tail_).store(tail + 1, std::memory_order_release);
    Enter(1, wait_for);
  }
  // The next completion; waits for it.
  io_uring_cqe Next() {
    while (*head_ == std::atomic_ref(*tail_).load(std::memory_order_acquire)) Enter(0, 1);
    const io_uring_cqe completion = completions_[*head_ & mask_];
    std::atomic_ref(*head_).store(*head_ + 1, std::memory_order_release);
    return completion;
  }

 private:
  void* Map(size_t bytes, uint64_t offset) const {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                static_cast<off_t>(offset));
  }
  void Enter(unsigned int submit, unsigned int wait_for) const {
    syscall(SYS_io_uring_enter, fd_, submit, wait_for, IORING_ENTER_GETEVENTS, nullptr, 0);
  }

  int fd_ = -1;
  io_uring_sqe* requests_ = nullptr;
  uint32_t* submit_tail_ = nullptr;
  uint32_t* submit_array_ = nullptr;
  uint32_t submit_mask_ = 0;
  uint32_t* head_ = nullptr;
  uint32_t* tail_ = nullptr;
  uint32_t mask_ = 0;
  io_uring_cqe* completions_ = nullptr;
};

}  // namespace tributary::bench
