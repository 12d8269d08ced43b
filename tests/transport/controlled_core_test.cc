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

LinkOptions Options() {
  LinkOptions options;
  options.heartbeat = absl::Seconds(60);
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
  DatalessCore(Fd control, const v1::LinkHello& theirs)
      : ControlledCore(Options(), theirs, std::move(control), MakeWaker(), {.peer = "peer"}) {}

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
  EndOfData() {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    peer_ = Fd(fds[0]);
    core_ = new DatalessCore(Fd(fds[1]), v1::LinkHello());
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

// The control thread is held for longer than it would wait, as the machine's stop would hold it and
// a peer on the same machine, which then speaks only after it has run again.
TEST_F(EndOfData, AfterAStopThePeerHasItsTimeAnew) {
  std::mutex held;
  std::atomic<int> ticks{0};
  core_->at_tick = [&] {
    ++ticks;
    std::lock_guard wait(held);
  };
  std::unique_lock hold(held);
  core_->End("a flush", EndedBy::kFollowsFromOne);
  const Deadline over = Deadline::After(absl::Milliseconds(1600));
  core_->Start();
  while (ticks == 0) std::this_thread::yield();  // it is held
  while (!over.Expired()) std::this_thread::yield();
  const int before = ticks;
  hold.unlock();
  // Ticks come after the judgement; a link that has failed has none.
  const Deadline limit = Deadline::After(absl::Seconds(30));
  while (ticks == before && !limit.Expired()) std::this_thread::yield();
  ASSERT_GT(ticks, before);
  PeerSays("no space left");
  EXPECT_THAT(core_->Reason(), HasSubstr("ended the link: no space left"));
}

}  // namespace
}  // namespace tributary::transport::internal
