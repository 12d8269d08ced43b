// What a link says of its end: the cause before what follows from it, the peer's words before both.
#include "transport/internal/controlled_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tributary::transport::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

LinkOptions Options(absl::Duration heartbeat) {
  LinkOptions options;
  options.heartbeat = heartbeat;
  return options;
}

Waker MakeWaker() {
  auto waker = Waker::Create();
  EXPECT_TRUE(waker.ok()) << waker.status();
  return std::move(*waker);
}

// A core without a data path: its test says what became of one.
class DatalessCore final : public ControlledCore {
 public:
  using ControlledCore::EndedBy;
  DatalessCore(Fd control, absl::Duration heartbeat)
      : ControlledCore(Options(heartbeat), v1::LinkHello(), std::move(control), MakeWaker(),
                       {.peer = "peer"}) {}

  void Start() { StartControl(); }
  void End(const std::string& what, EndedBy by) {
    std::lock_guard lock(mutex_);
    DataEnded(what, by);
  }
  // Until the link has failed.
  std::string Reason() {
    std::unique_lock lock(mutex_);
    const Deadline limit = Deadline::After(absl::Seconds(30));
    limit.Wait(can_receive_, lock, [this] { return state_.failed(); });
    return std::string(state_.error().message());
  }
  // Called at the last look at what has arrived.
  std::function<void()> at_last_look;
  // Called by the control thread after it has judged, a hundred times a second.
  std::function<void()> at_tick;

  absl::StatusOr<Chunk> Borrow(Deadline) override { return absl::UnimplementedError(""); }
  absl::Status Send(Chunk) override { return absl::UnimplementedError(""); }
  absl::StatusOr<Chunk> Receive(Deadline) override { return absl::UnimplementedError(""); }
  std::string_view transport() const override { return "none"; }
  LinkStats stats() const override { return {}; }
  void Return(uint32_t) override {}
  void Shutdown() override {
    BeginShutdown();
    EndShutdown();
  }

 private:
  void WakeBackend() override {}
  void TakeInArrived() override {
    if (at_last_look) std::exchange(at_last_look, nullptr)();
  }
  milliseconds TickEvery() override { return milliseconds(at_tick ? 10 : 0); }
  void OnTick() override { at_tick(); }
};

class EndOfData : public ::testing::Test {
 protected:
  using EndedBy = DatalessCore::EndedBy;
  explicit EndOfData(absl::Duration heartbeat = absl::Seconds(60)) {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    peer_ = Fd(fds[0]);
    core_ = new DatalessCore(Fd(fds[1]), heartbeat);
  }
  ~EndOfData() override {
    core_->Shutdown();
    core_->Unref();
  }
  void PeerSays(const std::string& text) const {
    const std::string bytes = EncodeControl({.type = ControlType::kCancel, .text = text});
    EXPECT_EQ(send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  Fd peer_;
  DatalessCore* core_ = nullptr;
};

TEST_F(EndOfData, CauseIsSaidWhicheverComesFirst) {
  core_->Start();
  core_->End("a flush", EndedBy::kFollowsFromOne);
  core_->End("the cause", EndedBy::kCause);
  core_->End("another flush", EndedBy::kFollowsFromOne);
  core_->End("a second cause", EndedBy::kCause);
  EXPECT_EQ(core_->Reason(), "the cause");
}

// Completions that wait to be taken when the time is over, as after a stop of the process.
TEST_F(EndOfData, CauseThatIsFoundAtTheLastLookIsSaid) {
  core_->at_last_look = [this] { core_->End("the cause", EndedBy::kCause); };
  core_->Start();
  core_->End("a flush", EndedBy::kFollowsFromOne);
  EXPECT_EQ(core_->Reason(), "the cause");
}

TEST_F(EndOfData, WhatFollowsIsSaidWhereNothingBetterComes) {
  core_->Start();
  core_->End("a flush", EndedBy::kFollowsFromOne);
  EXPECT_EQ(core_->Reason(), "a flush");
}

TEST_F(EndOfData, PeersWordsAreSaidBeforeOurs) {
  core_->End("a flush", EndedBy::kFollowsFromOne);
  core_->End("the cause", EndedBy::kCause);
  PeerSays("no space left");
  core_->Start();
  EXPECT_THAT(core_->Reason(), HasSubstr("ended the link: no space left"));
}

// The control thread is held, as a stop of the machine holds it, and a peer on the same machine
// that speaks only after it has run again.
class Stop : public EndOfData {
 protected:
  explicit Stop(absl::Duration heartbeat = absl::Seconds(60)) : EndOfData(heartbeat) {
    core_->at_tick = [this] {
      // The first tick is held; before the second the control thread has judged.
      if (++ticks_ == 2 && then_) then_();
      std::lock_guard wait(held_);
    };
  }
  ~Stop() override { core_->Shutdown(); }  // before what its ticks use goes
  // `then` is called by the control thread once it has judged after the stop; a link that has
  // failed then is silent.
  void For(absl::Duration time, std::function<void()> then) {
    then_ = std::move(then);
    std::unique_lock hold(held_);
    core_->Start();
    const Deadline limit = Deadline::After(absl::Seconds(30));
    while (ticks_ == 0 && !limit.Expired()) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(ticks_, 1) << "it is held: " << core_->status();
    const Deadline over = Deadline::After(time);
    while (!over.Expired()) absl::SleepFor(over.Left());
  }

 private:
  std::function<void()> then_;
  std::mutex held_;
  std::atomic<int> ticks_{0};
};

TEST_F(Stop, LeavesThePeerItsTimeToSayTheReason) {
  core_->End("a flush", EndedBy::kFollowsFromOne);
  For(absl::Milliseconds(1600), [this] { PeerSays("no space left"); });
  EXPECT_THAT(core_->Reason(), HasSubstr("ended the link: no space left"));
}

class StopOfManyHeartbeats : public Stop {
 protected:
  StopOfManyHeartbeats() : Stop(absl::Milliseconds(50)) {}
};

TEST_F(StopOfManyHeartbeats, IsNotThePeersSilence) {
  // Of 250 that are allowed.
  For(absl::Milliseconds(1000), [this] { PeerSays("no space left"); });
  EXPECT_THAT(core_->Reason(), HasSubstr("ended the link: no space left"));
}

TEST_F(StopOfManyHeartbeats, DoesNotKeepAPeerThatIsSilentAfterIt) {
  For(absl::Milliseconds(1000), nullptr);
  EXPECT_THAT(core_->Reason(), HasSubstr("gave no sign of life"));
}

}  // namespace
}  // namespace tributary::transport::internal
