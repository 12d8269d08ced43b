// Events, messages and the trace.
#include "tests/aggregation/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace tributary::sim {
namespace {

// The largest scenario has some ten thousand: a timer that changes nothing would be due for ever.
constexpr uint64_t kMostEvents = 3'000'000;

}  // namespace

void World::Deliver(Peer& peer, uint64_t process, const std::function<void()>& run) {
  if (!peer.alive || peer.process != process) return;
  if (now_ < peer.paused_until) {
    queue_.push({peer.paused_until, order_++,
                 [this, &peer, process, run] { Deliver(peer, process, run); }});
    return;
  }
  run();
}

void World::At(Peer& peer, absl::Duration in, std::function<void()> run) {
  Later(in, [this, &peer, process = peer.process, run = std::move(run)] {
    Deliver(peer, process, run);
  });
}

void World::Send(const Peer& from, Peer& to, std::function<void()> run) {
  const uint64_t number = ++posts_[{&from, &to}].sent;
  const auto post = [this, &from, &to, number](absl::Duration in, std::function<void()> body) {
    Later(in, [this, &from, &to, number, body = std::move(body)] {
      if (!Reaches(from, to)) {
        Seen("message lost");
        return;
      }
      uint64_t& newest = posts_[{&from, &to}].newest_arrived;
      if (number < newest) Seen("message overtaken");
      newest = std::max(newest, number);
      Deliver(to, to.process, body);
    });
  };
  if (Chance(0.05)) {
    Seen("message doubled");
    post(Seconds(15), run);
  }
  const bool late = Chance(0.05);
  if (late) Seen("message late");
  post(late ? Seconds(15) : Seconds(0.05), std::move(run));
}

void World::Restart(Peer* peer) {
  Seen("restarted");
  peer->alive = true;
  ++peer->process;
  peer->island = 0;
  const absl::Duration wall = kStartOfTime + now_ + peer->clock_step;
  peer->epoch = static_cast<uint64_t>(absl::ToInt64Microseconds(wall));
}

bool World::Run(const std::function<bool()>& stop) {
  while (!queue_.empty()) {
    if (++events_ > kMostEvents) return false;
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    event.run();
    if (stop()) break;
  }
  return true;
}

void World::Trace(const std::string& who, const std::string& what) {
  const std::string line = absl::StrCat(absl::ToInt64Nanoseconds(now_), " ", who, " ", what);
  if (print_trace) std::printf("%s\n", line.c_str());
  for (const char c : line) {
    trace_ = (trace_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
}

}  // namespace tributary::sim
