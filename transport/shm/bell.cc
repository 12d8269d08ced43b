// Futex calls and spinning.
#include "transport/shm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tributary::transport::shm {
namespace {

// The kernel reads the word itself; an atomic of 32 bits is one.
long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, until, nullptr,
                 FUTEX_BITSET_MATCH_ANY);
}

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Bell::Ring() {
  // Sequentially consistent with Sleep: either this sees the sleeper, or the sleeper sees the
  // count.
  rung.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) Futex(&rung, FUTEX_WAKE, INT_MAX, nullptr);
}

void Bell::Sleep(uint32_t seen, const Deadline& until) {
  timespec at{};
  if (!until.infinite()) {
    // steady_clock is CLOCK_MONOTONIC, which is what FUTEX_WAIT_BITSET goes by.
    const int64_t ns = until.at().time_since_epoch().count();
    at = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (rung.load(std::memory_order_seq_cst) == seen) {
    Futex(&rung, FUTEX_WAIT_BITSET, seen, until.infinite() ? nullptr : &at);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

bool SpinFor(internal::Spinner& spinner, const Bell& bell, uint32_t seen) {
  return spinner.Wait([&] {
    for (int i = 0; i < 16; ++i) {
      if (bell.Count() != seen) return true;
      Pause();
    }
    return false;
  });
}

}  // namespace tributary::transport::shm
