// Holding SIGTERM and SIGINT back from the first moment of a program that is its own.
#pragma once

#include <csignal>

namespace tributary {

// Blocks SIGTERM and SIGINT in the calling thread, and so in those that it starts later. A bare
// system call: it may run before any library's initialisers, the C library's and the sanitizers'
// among them.
void HoldEndSignals();
// Lets them through again, for commands that end by them as any program does.
void ReleaseEndSignals();

}  // namespace tributary

// In the file of main(): HoldEndSignals before the initialisers of all libraries, some of which
// take a while and start threads. What comes before (exec, the dynamic linker) is not the program's
// own: a signal then ends the process.
#define TRIBUTARY_HOLD_END_SIGNALS_FROM_THE_START                                           \
  __attribute__((section(".preinit_array"), used)) static void (*const tributary_first)() = \
      ::tributary::HoldEndSignals
