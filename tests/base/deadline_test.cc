// A deadline's arithmetic: what is past, what never ends, what poll(2) is given.
#include "base/deadline.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace tributary {
namespace {

// The type is what keeps the calendar out: a calendar time is no deadline.
static_assert(!std::is_convertible_v<absl::Time, Deadline>);
static_assert(!std::is_constructible_v<Deadline, absl::Time>);

TEST(DeadlineTest, NowAndBeforeAreOver) {
  for (const Deadline& over : {Deadline::Now(), Deadline::After(-absl::Hours(1)),
                               Deadline::After(-absl::InfiniteDuration())}) {
    EXPECT_TRUE(over.Expired());
    EXPECT_EQ(over.PollMillis(), 0);
    EXPECT_EQ(over.Left(), absl::ZeroDuration());
  }
}

TEST(DeadlineTest, ACenturyNeverEnds) {
  for (const Deadline& never :
       {Deadline(), Deadline::Infinite(), Deadline::After(absl::InfiniteDuration()),
        Deadline::After(absl::Hours(24 * 365 * 100))}) {
    EXPECT_TRUE(never.infinite());
    EXPECT_FALSE(never.Expired());
    EXPECT_EQ(never.PollMillis(), -1);
    EXPECT_EQ(never.Left(), absl::InfiniteDuration());
  }
}

// Rounded down, the last millisecond of a wait would be spun through.
TEST(DeadlineTest, PollIsGivenWholeMillisecondsRoundedUp) {
  while (true) {
    const Deadline soon = Deadline::After(absl::Microseconds(500));
    const int millis = soon.PollMillis();
    if (soon.Expired()) continue;  // this thread was held up
    EXPECT_EQ(millis, 1);
    break;
  }
  const Deadline far = Deadline::After(absl::Hours(24 * 365));
  EXPECT_EQ(far.PollMillis(), 1 << 30) << "what an int can say";
  EXPECT_LE(far.Left(), absl::Hours(24 * 365));
}

TEST(DeadlineTest, TheSoonerOfTwo) {
  const Deadline soon = Deadline::After(absl::Seconds(1));
  const Deadline late = Deadline::After(absl::Seconds(2));
  EXPECT_EQ(Deadline::Sooner(soon, late).at(), soon.at());
  EXPECT_EQ(Deadline::Sooner(late, soon).at(), soon.at());
  EXPECT_EQ(Deadline::Sooner(Deadline::Infinite(), late).at(), late.at());
  EXPECT_EQ(Deadline::Sooner(late, Deadline::Infinite()).at(), late.at());
}

}  // namespace
}  // namespace tributary
