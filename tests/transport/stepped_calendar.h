// Sets the calendar of this process, as an operator sets a machine's: whoever asks libc for
// calendar time gets it so much later or earlier. For an executable of its own, which it changes as
// a whole.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace tributary {

// By so much from the true one. Returns when absl::Now() says so too: between looks at the clock,
// two seconds apart, it reckons for itself. False where it never does.
bool SetCalendar(absl::Duration step);

// Timed waits for a condition variable or a futex by the calendar clock so far: setting the real
// calendar would end them early or late.
size_t CalendarWaits();

}  // namespace tributary
