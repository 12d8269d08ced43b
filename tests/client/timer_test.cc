// Promises of the client's timers: once, in order, replaced and cancelled, and an end from
// anywhere.
#include "client/internal/timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tributary::client::internal {
namespace {

using ::testing::ElementsAre;

// Who was called back, in order, and on which thread.
class Calls {
 public:
  std::function<void()> Named(int name) {
    return [this, name] {
      std::lock_guard lock(mu_);
      names_.push_back(name);
      threads_.push_back(std::this_thread::get_id());
      changed_.notify_all();
    };
  }
  std::vector<int> Await(size_t n) {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return names_.size() >= n; }));
    return names_;
  }
  const std::vector<std::thread::id>& threads() const { return threads_; }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<int> names_;
  std::vector<std::thread::id> threads_;
};

TEST(TimerTest, TimersFireOnceInTheOrderOfTheirTimesOnOneThread) {
  Calls calls;
  Timer a, b, c;
  a.Set(absl::Milliseconds(60), calls.Named(1));
  b.Set(absl::Milliseconds(20), calls.Named(2));
  c.Set(absl::ZeroDuration(), calls.Named(3));
  EXPECT_THAT(calls.Await(3), ElementsAre(3, 2, 1));
  Timer last;
  last.Set(absl::Milliseconds(20), calls.Named(4));
  EXPECT_THAT(calls.Await(4), ElementsAre(3, 2, 1, 4)) << "once";
  for (const std::thread::id id : calls.threads()) EXPECT_EQ(id, calls.threads()[0]);
}

TEST(TimerTest, WhatIsSetAnewCancelledOrGoneDoesNotFire) {
  Calls calls;
  Timer replaced, cancelled;
  replaced.Set(absl::Milliseconds(5), calls.Named(1));
  cancelled.Set(absl::Milliseconds(5), calls.Named(2));
  { Timer().Set(absl::Milliseconds(5), calls.Named(3)); }
  replaced.Set(absl::Milliseconds(50), calls.Named(4));
  cancelled.Cancel();
  EXPECT_THAT(calls.Await(1), ElementsAre(4));
}

TEST(TimerTest, ATimerMaySetItselfAgainFromItsCallback) {
  Calls calls;
  Timer timer;
  std::function<void(int)> again = [&](int n) {
    calls.Named(n)();
    if (n < 3) timer.Set(absl::ZeroDuration(), [&, n] { again(n + 1); });
  };
  timer.Set(absl::ZeroDuration(), [&] { again(1); });
  EXPECT_THAT(calls.Await(3), ElementsAre(1, 2, 3));
}

TEST(TimerTest, TheLastTimerMayEndInACallback) {
  for (int i = 0; i < 20; ++i) {
    Calls calls;
    auto timer = std::make_shared<Timer>();
    Timer* const raw = timer.get();
    raw->Set(absl::ZeroDuration(), [&calls, timer]() mutable {
      timer.reset();
      calls.Named(1)();
    });
    timer.reset();
    EXPECT_THAT(calls.Await(1), ElementsAre(1));
  }
}

}  // namespace
}  // namespace tributary::client::internal
