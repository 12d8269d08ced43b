// Stands before libc: clocks and timed waits. The monotonic clock is left alone.
#include "tests/transport/stepped_calendar.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <ctime>

#include "absl/time/clock.h"
#include "base/deadline.h"

namespace tributary {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

std::atomic<int64_t> step_ns = 0;
std::atomic<size_t> calendar_waits = 0;

using SystemCall = long (*)(long, ...);
SystemCall LibcsSystemCall() {
  static const auto call = reinterpret_cast<SystemCall>(dlsym(RTLD_NEXT, "syscall"));
  return call;
}

int TrueClock(clockid_t clock, timespec* now) {
  return static_cast<int>(LibcsSystemCall()(SYS_clock_gettime, clock, now));
}

timespec Shifted(const timespec& at, int64_t ns) {
  const int64_t all = int64_t{at.tv_sec} * kNsPerSecond + at.tv_nsec + ns;
  return {.tv_sec = all / kNsPerSecond, .tv_nsec = all % kNsPerSecond};
}

}  // namespace

bool SetCalendar(absl::Duration step) {
  step_ns = absl::ToInt64Nanoseconds(step);
  const auto off = [&] {
    timespec truth{};
    TrueClock(CLOCK_REALTIME, &truth);
    return absl::AbsDuration(absl::Now() - absl::TimeFromTimespec(truth) - step);
  };
  const Deadline patience = Deadline::After(absl::Seconds(30));
  while (off() > absl::Seconds(30) && !patience.Expired()) absl::SleepFor(absl::Milliseconds(10));
  return off() <= absl::Seconds(30);
}

size_t CalendarWaits() { return calendar_waits; }

}  // namespace tributary

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = tributary::TrueClock(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *now = tributary::Shifted(*now, tributary::step_ns);
  }
  return result;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec at{};
  clock_gettime(CLOCK_REALTIME, &at);
  *now = {.tv_sec = at.tv_sec, .tv_usec = at.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* to) noexcept {
  timespec at{};
  clock_gettime(CLOCK_REALTIME, &at);
  if (to != nullptr) *to = at.tv_sec;
  return at.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* changed, pthread_mutex_t* mutex, const timespec* until) {
  ++tributary::calendar_waits;
  const timespec at = tributary::Shifted(*until, -tributary::step_ns);
  return pthread_cond_clockwait(changed, mutex, CLOCK_REALTIME, &at);
}

// Abseil's waits are futexes.
long syscall(long number, ...) noexcept {
  long a[6];
  va_list list;
  va_start(list, number);
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  timespec at{};
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && a[3] != 0) {
    ++tributary::calendar_waits;
    at = tributary::Shifted(*reinterpret_cast<const timespec*>(a[3]), -tributary::step_ns);
    a[3] = reinterpret_cast<long>(&at);
  }
  return tributary::LibcsSystemCall()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
