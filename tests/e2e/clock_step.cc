// Loaded between a process and the C library (LD_PRELOAD): moves what CLOCK_REALTIME says by as
// many seconds as the file $CLOCK_STEP_FILE holds (an int64), from one moment to the next when that
// is written, as if the machine's clock had been set. Waits until a time of that clock end by it
// too: such are abseil's, which gRPC's timers rest on.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
// How late a wait may notice that the clock was set.
constexpr int64_t kSlice = 20'000'000;

const std::atomic<int64_t>* Open() {
  static std::atomic<int64_t> none{0};
  const char* path = std::getenv("CLOCK_STEP_FILE");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return &none;
  void* at = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? &none : static_cast<const std::atomic<int64_t>*>(at);
}

int64_t Step() {
  static const std::atomic<int64_t>* const step = Open();
  return step->load();
}

template <class F>
F Next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

int64_t Nanos(const timespec& t) { return t.tv_sec * kSecond + t.tv_nsec; }

int64_t NowOf(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return Nanos(now);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  static const auto next = Next<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, out);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) out->tv_sec += Step();
  return result;
}

int gettimeofday(timeval* out, void*) noexcept {
  const int64_t now = NowOf(CLOCK_REALTIME);
  out->tv_sec = now / kSecond;
  out->tv_usec = now % kSecond / 1000;
  return 0;
}

time_t time(time_t* out) noexcept {
  const time_t now = NowOf(CLOCK_REALTIME) / kSecond;
  if (out != nullptr) *out = now;
  return now;
}

long syscall(long number, ...) noexcept {  // NOLINT: as in unistd.h
  static const auto next = Next<long (*)(long, ...)>("syscall");
  long a[6];
  va_list list;
  va_start(list, number);
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  constexpr long kRealtimeWait = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  const auto* until = reinterpret_cast<const timespec*>(a[3]);
  if (number != SYS_futex || (a[1] & ~FUTEX_PRIVATE_FLAG) != kRealtimeWait || until == nullptr) {
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  while (true) {
    const int64_t left = Nanos(*until) - NowOf(CLOCK_REALTIME);
    if (left <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    const int64_t end = NowOf(CLOCK_MONOTONIC) + std::min(left, kSlice);
    const timespec slice = {.tv_sec = end / kSecond, .tv_nsec = end % kSecond};
    const long result =
        next(SYS_futex, a[0], a[1] & ~FUTEX_CLOCK_REALTIME, a[2], &slice, a[4], a[5]);
    if (result != -1 || errno != ETIMEDOUT) return result;
  }
}

}  // extern "C"
