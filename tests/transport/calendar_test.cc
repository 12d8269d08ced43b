// Setting the calendar, ten minutes on or back, neither ends nor prolongs any wait of a link.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/transport/harness.h"
#include "tests/transport/peer_process.h"
#include "tests/transport/stepped_calendar.h"
#include "tests/transport/stranger.h"
#include "transport/internal/hello.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Longer than it takes absl::Now() to notice that the calendar was set.
constexpr absl::Duration kWait = absl::Seconds(4);
// How late a wait may end on a busy machine. The steps are of ten minutes.
constexpr absl::Duration kLate = absl::Seconds(60);

// Waits under way at once, each in a thread, and how long each has taken.
class Waits {
 public:
  // `call` is to take `least` from the start on, and to end with `code`.
  void Begin(std::string what, absl::Duration least, absl::StatusCode code,
             std::function<absl::Status()> call) {
    Wait& wait = waits_.emplace_back();
    wait.what = std::move(what);
    wait.least = least;
    wait.code = code;
    wait.thread = std::thread([this, &wait, call = std::move(call)] {
      wait.status = call();
      wait.took = absl::FromChrono(Clock::now() - start_);
      std::lock_guard lock(mutex_);
      ++over_;
      changed_.notify_all();
    });
  }
  // `end` ends those that would never end: the test has failed then.
  void ExpectAll(const std::function<void()>& end) {
    bool all = false;
    {
      std::unique_lock lock(mutex_);
      all = Deadline::After(kWait + kLate).Wait(changed_, lock, [this] {
        return over_ == waits_.size();
      });
    }
    if (!all) end();
    EXPECT_TRUE(all) << "some wait did not end";
    for (Wait& wait : waits_) {
      wait.thread.join();
      EXPECT_EQ(wait.status.code(), wait.code) << wait.what << ": " << wait.status;
      EXPECT_GE(wait.took, wait.least) << wait.what << ": " << wait.status;
    }
  }

 private:
  struct Wait {
    std::string what;
    absl::Duration least;
    absl::StatusCode code = absl::StatusCode::kOk;
    absl::Status status;
    absl::Duration took;
    std::thread thread;
  };
  const Clock::time_point start_ = Clock::now();
  std::deque<Wait> waits_;  // of which threads hold pointers
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t over_ = 0;
};

// A link with nothing on its way, whose client holds every slot to send from.
struct Idle {
  explicit Idle(std::string name) : kind(std::move(name)), harness(MakeHarness(kind)) {
    listener = *harness->server().Listen(harness->listen_address(), SmallOptions("server"));
    client = *harness->client().Connect(listener->address(), SmallOptions("client"));
    server = *listener->Accept(harness->In(absl::Seconds(30)));
    for (uint32_t i = 0; i < SmallOptions("").slots; ++i) {
      held.push_back(*client->Borrow(harness->In(absl::Seconds(30))));
    }
  }
  void BeginWaits(const std::string& when, Waits* waits) {
    const auto code = absl::StatusCode::kDeadlineExceeded;
    const auto until = deadline;
    waits->Begin(kind + " Accept " + when, kWait, code,
                 [this, until] { return listener->Accept(until).status(); });
    waits->Begin(kind + " Receive " + when, kWait, code,
                 [this, until] { return server->Receive(until).status(); });
    waits->Begin(kind + " Borrow " + when, kWait, code,
                 [this, until] { return client->Borrow(until).status(); });
  }
  void End() const {
    client->Cancel("the test has failed");
    server->Cancel("the test has failed");
    listener->Cancel();
  }

  const std::string kind;
  std::unique_ptr<Harness> harness;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Link> client;
  std::unique_ptr<Link> server;
  std::vector<Chunk> held;
  decltype(harness->In(kWait)) deadline{};  // set when the waits begin
};

// A port that takes connections and never answers.
class Mute {
 public:
  Mute() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(listen(fd_, 4), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  }
  Mute(const Mute&) = delete;
  Mute& operator=(const Mute&) = delete;
  ~Mute() { close(fd_); }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

// The parameter is the step in minutes.
class CalendarSet : public ::testing::TestWithParam<int> {
 protected:
  ~CalendarSet() override { EXPECT_TRUE(SetCalendar(absl::ZeroDuration())); }
  static void Set() {
    ASSERT_TRUE(SetCalendar(absl::Minutes(GetParam()))) << "the calendar could not be set";
  }
};

TEST_P(CalendarSet, DeadlinesOfCallsHoldWhetherTheyBeganBeforeOrAfter) {
  std::deque<Idle> links;
  for (const char* kind : {"tcp", "shm", "auto", "roce"}) links.emplace_back(kind);
  const size_t before = CalendarWaits();
  Waits waits;
  for (Idle& link : links) {
    link.deadline = link.harness->In(kWait);
    link.BeginWaits("begun before", &waits);
  }
  Set();
  for (Idle& link : links) link.BeginWaits("begun after", &waits);
  waits.ExpectAll([&] {
    for (const Idle& link : links) link.End();
  });
  // Heartbeats came all the while: nobody was declared dead for the minutes that never passed.
  for (const Idle& link : links) {
    EXPECT_EQ(link.client->status(), absl::OkStatus());
    EXPECT_EQ(link.server->status(), absl::OkStatus());
  }
  EXPECT_EQ(CalendarWaits(), before) << "something waits by the calendar clock";
}

TEST_P(CalendarSet, LimitsOfSetUpHoldOnBothSides) {
  LinkOptions options = SmallOptions("server");
  options.connect_timeout = kWait;
  const auto tcp = MakeTcpFabric();
  const auto shm = MakeShmFabric();
  const auto tcp_listener = *tcp->Listen("127.0.0.1:0", options);
  const auto shm_listener = *shm->Listen("@", options);
  const Mute mute;
  Waits waits;
  waits.Begin("Connect", kWait, absl::StatusCode::kDeadlineExceeded,
              [&] { return tcp->Connect(mute.address(), options).status(); });
  for (const Listener* listener : {tcp_listener.get(), shm_listener.get()}) {
    waits.Begin("a stranger who says nothing", kWait, absl::StatusCode::kOk, [listener] {
      Stranger(listener->address()).Hear();  // until it is dropped
      return absl::OkStatus();
    });
  }
  Set();
  waits.ExpectAll([] {});
}

TEST_P(CalendarSet, ASilentPeerAndAStuckSendAreGivenUpInTheirTimeAndNotBefore) {
  LinkOptions options = SmallOptions("server");
  options.heartbeat = absl::Milliseconds(500);
  options.heartbeats_missed = static_cast<int>(kWait / options.heartbeat);
  std::deque<PeerProcess> peers;
  std::deque<std::unique_ptr<Listener>> listeners;
  std::deque<std::unique_ptr<Link>> links;
  for (const char* kind : {"tcp", "shm"}) {
    const auto fabric = std::string(kind) == "tcp" ? MakeTcpFabric() : MakeShmFabric();
    listeners.push_back(*fabric->Listen(*kind == 't' ? "127.0.0.1:0" : "@", options));
    peers.emplace_back(kind, listeners.back()->address(), 500);
    links.push_back(*listeners.back()->Accept(Deadline::After(absl::Seconds(30))));
  }
  // A peer whose control socket is well and which takes no payload.
  options.chunk_bytes = size_t{8} << 20;
  options.lanes = 1;
  options.progress_timeout = kWait;
  options.heartbeat = absl::Seconds(100);
  listeners.push_back(*MakeTcpFabric()->Listen("127.0.0.1:0", options));
  const std::string id(16, 'p');
  const Stranger control(listeners.back()->address());
  control.Say(internal::EncodeHello(internal::ControlHello(options, id, 1)));
  const Stranger lane(listeners.back()->address());
  lane.Say(internal::EncodeHello(internal::LaneHello(id, 0)));
  Link& stuck = *links.emplace_back(*listeners.back()->Accept(Deadline::After(absl::Seconds(30))));

  Waits waits;
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i].Signal(SIGSTOP);
    // The last sign of life was up to one heartbeat ago.
    waits.Begin(std::string(links[i]->transport()) + " heartbeats", kWait - absl::Seconds(1),
                absl::StatusCode::kUnavailable, [link = links[i].get()] {
                  absl::Status status;
                  while (status.ok()) status = link->Receive(Deadline::Infinite()).status();
                  EXPECT_THAT(std::string(status.message()), HasSubstr("no sign of life"));
                  return status;
                });
  }
  waits.Begin("progress", kWait, absl::StatusCode::kUnavailable, [&stuck] {
    absl::Status status;
    while (status.ok()) {
      auto chunk = stuck.Borrow(Deadline::Infinite());
      status = chunk.status();
      if (!status.ok()) break;
      chunk->set_size(chunk->capacity());
      status = stuck.Send(std::move(*chunk));
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("(progress_timeout)"));
    return status;
  });
  Set();
  waits.ExpectAll([&] {
    for (const auto& link : links) link->Cancel("the test has failed");
  });
}

INSTANTIATE_TEST_SUITE_P(Minutes, CalendarSet, ::testing::Values(10, -10), [](const auto& info) {
  return info.param > 0 ? std::string("TenOn") : std::string("TenBack");
});

}  // namespace
}  // namespace tributary::transport
