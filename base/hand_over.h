// Tells the thread sanitizer of an order that it cannot see: a library that is built without it
// (gRPC) calls back only after it was called, but passes what it was given from thread to thread by
// locks and atomics of its own. Without these words the sanitizer would report what we do before
// and after as races, and a suppression of such reports would hide our own. Nothing in other
// builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define TRIBUTARY_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TRIBUTARY_THREAD_SANITIZER
#endif
#endif

#ifdef TRIBUTARY_THREAD_SANITIZER
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace tributary {

// What this thread did until here comes before what another does after TakeOver of the same key.
// The key is an address, of which nothing is read; one for each thing that is started, so that no
// more is put in order than is so.
inline void HandOver([[maybe_unused]] const void* key) {
#ifdef TRIBUTARY_THREAD_SANITIZER
  __tsan_release(const_cast<void*>(key));
#endif
}
inline void TakeOver([[maybe_unused]] const void* key) {
#ifdef TRIBUTARY_THREAD_SANITIZER
  __tsan_acquire(const_cast<void*>(key));
#endif
}

// At the head of a reactor's reaction: it comes after what was handed over with `started`, and
// before what begins with TakeOver(end), which is the reactor's OnDone.
class Reaction {
 public:
  Reaction(const void* started, const void* end) : end_(end) { TakeOver(started); }
  Reaction(const Reaction&) = delete;
  Reaction& operator=(const Reaction&) = delete;
  ~Reaction() { HandOver(end_); }

 private:
  const void* const end_;
};

}  // namespace tributary
