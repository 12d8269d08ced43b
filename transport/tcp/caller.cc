// Small chunks moved by the callers of Send and Receive themselves.
#include <poll.h>

#include "transport/tcp/core.h"

namespace tributary::transport::tcp {

// Sends what is queued on a lane that nobody is sending on. What the socket does not take is left
// to the lane's thread.
void TcpCore::SendAsCaller(Lane& lane, std::unique_lock<std::mutex>& lock) {
  lane.sender = Mover::kCaller;
  lock.unlock();
  Moved moved = Moved::kMore;
  while (moved == Moved::kMore && NextOutgoing(lane, Mover::kCaller) && lane.out.has_value()) {
    moved = SendSome(lane);
  }
  lock.lock();
  lane.sender = lane.out.has_value() ? Mover::kThread : Mover::kNobody;
  if (lane.out.has_value() || !lane.queue.empty()) lane.wake.Wake();
}

bool TcpCore::MayReadAsCaller(const Lane& lane) const {
  return lane.caller_reads && !caller_inside_ && !peer_leaves_ && !state_.failed();
}

// Waits for the lane's socket and reads from it once. Whoever calls looks again at what came of it.
void TcpCore::ReadAsCaller(Lane& lane, const Deadline& until, std::unique_lock<std::mutex>& lock) {
  lane.caller_inside = caller_inside_ = true;
  ++lane.visits;
  lock.unlock();
  pollfd entries[2] = {{.fd = lane.fd.get(), .events = POLLIN, .revents = 0},
                       {.fd = caller_wake_.fd(), .events = POLLIN, .revents = 0}};
  poll(entries, 2, until.PollMillis());
  if (entries[1].revents != 0) caller_wake_.Clear();
  const Moved moved = entries[0].revents != 0 ? ReceiveSome(lane) : Moved::kNothing;
  const bool large = lane.in.parsed.payload_bytes > kSmallChunk;
  lock.lock();
  lane.caller_inside = caller_inside_ = false;
  // After the end of a socket its thread finds the same, and ends.
  if (large || moved == Moved::kEnded) lane.caller_reads = false;
  if (!lane.caller_reads) lane.wake.Wake();
  if (waiting_ > 0) can_receive_.notify_all();
}

// The lane's thread reads again; where a caller is inside, as soon as it has left.
void TcpCore::TakeReadingBack(Lane& lane) {
  if (!lane.caller_reads) return;
  lane.caller_reads = false;
  if (lane.caller_inside) {
    caller_wake_.Wake();
  } else {
    lane.wake.Wake();
  }
}

void TcpCore::WakeReceivers() {
  ControlledCore::WakeReceivers();
  if (caller_inside_) caller_wake_.Wake();
}

// The peer waits for us to have all that it sent, whether anybody receives here or not.
void TcpCore::TakeInArrived() {
  std::lock_guard lock(mutex_);
  peer_leaves_ = true;
  for (auto& lane : lanes_) TakeReadingBack(*lane);
}

std::chrono::milliseconds TcpCore::TickEvery() {
  for (const auto& lane : lanes_) {
    if (lane->caller_reads) return std::chrono::seconds(1);
  }
  return {};
}

// A lane left to callers to which none has come since the last tick would hold its sender up.
void TcpCore::OnTick() {
  for (auto& lane : lanes_) {
    if (!caller_inside_ && lane->visits == lane->visits_at_tick) TakeReadingBack(*lane);
    lane->visits_at_tick = lane->visits;
  }
}

}  // namespace tributary::transport::tcp
