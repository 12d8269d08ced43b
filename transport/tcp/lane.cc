// One data socket of a link: sends the chunks queued for it, receives chunks straight into slots.
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "transport/tcp/core.h"

namespace tributary::transport::tcp {

using internal::ChunkHeader;
using internal::Deadline;

namespace {

// A reader that sleeps is woken when this much of a chunk has come, or the rest of it. Each wake-up
// costs the sender's core, too: with one for each segment a stream is a third slower on loopback.
constexpr size_t kLowWater = size_t{256} << 10;

}  // namespace

void TcpCore::RunLane(Lane& lane) {
  while (true) {
    if (!NextOutgoing(lane, Mover::kThread)) return;
    bool reads = true;
    bool sends = false;
    {
      std::lock_guard lock(mutex_);
      reads = !lane.caller_reads && !lane.caller_inside;
      sends = lane.sender == Mover::kThread;
    }
    const Moved sent = sends ? SendSome(lane) : Moved::kNothing;
    const Moved received = reads ? ReceiveSome(lane) : Moved::kNothing;
    if (sent == Moved::kEnded || received == Moved::kEnded) return;
    if (received == Moved::kSome && LeaveToCallers(lane)) continue;
    if (sent == Moved::kNothing && received == Moved::kNothing && !SleepLane(lane)) return;
  }
}

// After a small chunk, and nothing begun since, callers of Receive read for themselves.
bool TcpCore::LeaveToCallers(Lane& lane) {
  const Incoming& in = lane.in;
  if (in.in_payload || in.begin != in.end || in.parsed.payload_bytes > kSmallChunk) return false;
  std::lock_guard lock(mutex_);
  if (peer_leaves_ || state_.failed() || state_.peer_done()) return false;
  lane.caller_reads = true;
  lane.visits_at_tick = lane.visits;
  if (waiting_ > 0) can_receive_.notify_all();
  return true;
}

// Takes up the next queued chunk when none is under way; false when the lane is to end.
bool TcpCore::NextOutgoing(Lane& lane, Mover mover) {
  internal::SlotChunk chunk;
  {
    std::lock_guard lock(mutex_);
    if (state_.failed()) return false;
    if (lane.sender != Mover::kNobody && lane.sender != mover) return true;
    if (lane.out.has_value() || lane.queue.empty()) return true;
    chunk = lane.queue.front();
    lane.queue.pop_front();
    lane.sender = mover;
  }
  uint8_t* payload = arena_.slot(chunk.slot);
  ChunkHeader header{.payload_bytes = static_cast<uint32_t>(chunk.bytes),
                     .sequence = chunk.sequence,
                     .tag = chunk.tag,
                     .payload_crc32c = Crc32c({payload, chunk.bytes})};
  if (options_.damage) options_.damage(chunk.sequence, payload, chunk.bytes);
  lane.out = Outgoing{
      .chunk = chunk, .header = internal::EncodeChunkHeader(header), .moved_at = Clock::now()};
  return true;
}

TcpCore::Moved TcpCore::SendSome(Lane& lane) {
  if (!lane.out.has_value()) return Moved::kNothing;
  Outgoing& out = *lane.out;
  iovec pieces[2];
  int count = 0;
  if (out.done < ChunkHeader::kBytes) {
    pieces[count++] = {out.header.data() + out.done, ChunkHeader::kBytes - out.done};
  }
  const size_t payload_done = out.done - std::min(out.done, ChunkHeader::kBytes);
  if (payload_done < out.chunk.bytes) {
    pieces[count++] = {arena_.slot(out.chunk.slot) + payload_done, out.chunk.bytes - payload_done};
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t n = sendmsg(lane.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EINTR) return Moved::kSome;
    if (errno == EAGAIN) return Moved::kNothing;
    LaneEnded(lane, errno);
    return Moved::kEnded;
  }
  out.done += static_cast<size_t>(n);
  out.moved_at = Clock::now();
  if (out.done == ChunkHeader::kBytes + out.chunk.bytes) {
    std::lock_guard lock(mutex_);
    state_.OnSent(out.chunk);
    lane.out.reset();
    if (lane.sender == Mover::kThread) lane.sender = Mover::kNobody;
    can_send_.notify_all();
  }
  return Moved::kSome;
}

TcpCore::Moved TcpCore::ReceiveSome(Lane& lane) {
  Incoming& in = lane.in;
  uint8_t* to = in.stash.data() + in.end;
  size_t wanted = in.stash.size() - in.end;
  if (in.in_payload) {
    to = arena_.slot(in.slot) + in.payload_done;
    wanted = in.parsed.payload_bytes - in.payload_done;
  }
  const ssize_t n = recv(lane.fd.get(), to, wanted, MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return Moved::kSome;
  if (n < 0 && errno == EAGAIN) return Moved::kNothing;
  if (n <= 0) {
    LaneEnded(lane, n == 0 ? 0 : errno);
    return Moved::kEnded;
  }
  HeardOfPeer();
  if (in.in_payload) return TakePayload(lane, to, static_cast<size_t>(n));
  in.end += static_cast<size_t>(n);
  return DrainStash(lane);
}

// Works off what was read between chunks, as far as it makes whole headers and payload.
TcpCore::Moved TcpCore::DrainStash(Lane& lane) {
  Incoming& in = lane.in;
  while (in.begin < in.end) {
    Moved moved = Moved::kSome;
    if (!in.in_payload) {
      if (in.end - in.begin < ChunkHeader::kBytes) break;
      moved = StartChunk(lane);
    } else {
      const size_t n = std::min(in.end - in.begin, in.parsed.payload_bytes - in.payload_done);
      const uint8_t* from = in.stash.data() + in.begin;
      in.begin += n;
      std::memcpy(arena_.slot(in.slot) + in.payload_done, from, n);
      moved = TakePayload(lane, from, n);
    }
    if (moved == Moved::kEnded) return moved;
  }
  // What is left is less than a header: it goes to the front, so that there is room for the rest.
  std::memmove(in.stash.data(), in.stash.data() + in.begin, in.end - in.begin);
  in.end -= in.begin;
  in.begin = 0;
  return Moved::kSome;
}

// `n` more bytes of payload are in the slot, and still in the cache, as `bytes`: so the checksum
// costs no second pass over memory.
TcpCore::Moved TcpCore::TakePayload(Lane& lane, const uint8_t* bytes, size_t n) {
  Incoming& in = lane.in;
  in.crc32c = ExtendCrc32c(in.crc32c, {bytes, n});
  in.payload_done += n;
  return in.payload_done == in.parsed.payload_bytes ? FinishChunk(lane) : Moved::kSome;
}

// A whole header is at the front of the stash.
TcpCore::Moved TcpCore::StartChunk(Lane& lane) {
  Incoming& in = lane.in;
  internal::ChunkHeaderBytes bytes;
  std::memcpy(bytes.data(), in.stash.data() + in.begin, bytes.size());
  in.begin += bytes.size();
  absl::StatusOr<ChunkHeader> header = internal::DecodeChunkHeader(bytes);
  std::unique_lock lock(mutex_);
  absl::Status bad;
  if (!header.ok()) {
    bad = absl::Status(header.status().code(), absl::StrCat(state_.peer(), ", lane ", lane.index,
                                                            ": ", header.status().message()));
  } else if (header->sequence != in.next_sequence) {
    bad = absl::DataLossError(absl::StrCat(state_.peer(), ", lane ", lane.index, ": chunk ",
                                           header->sequence, " came where chunk ", in.next_sequence,
                                           " was due"));
  } else {
    absl::StatusOr<uint32_t> slot = state_.Admit(header->sequence, header->payload_bytes);
    if (slot.ok()) in.slot = *slot;
    bad = slot.status();
  }
  if (!bad.ok()) {
    Fail(std::move(bad), /*local=*/false, /*tell=*/true);
    return Moved::kEnded;
  }
  lock.unlock();
  in.parsed = *header;
  in.in_payload = true;
  in.payload_done = 0;
  in.crc32c = 0;
  return in.parsed.payload_bytes == 0 ? FinishChunk(lane) : Moved::kSome;
}

TcpCore::Moved TcpCore::FinishChunk(Lane& lane) {
  Incoming& in = lane.in;
  std::lock_guard lock(mutex_);
  if (in.crc32c != in.parsed.payload_crc32c) {
    Fail(absl::DataLossError(absl::StrCat(state_.peer(), ", lane ", lane.index, ": chunk ",
                                          in.parsed.sequence, " of ", in.parsed.payload_bytes,
                                          " bytes arrived damaged (its CRC32C does not fit)")),
         /*local=*/false, /*tell=*/true);
    return Moved::kEnded;
  }
  state_.OnArrived({.slot = in.slot,
                    .bytes = in.parsed.payload_bytes,
                    .sequence = in.parsed.sequence,
                    .tag = in.parsed.tag});
  in.in_payload = false;
  in.next_sequence += lanes_.size();
  AnnounceGrant();
  AnswerGoodbye();
  if (waiting_ > 0) can_receive_.notify_all();
  return Moved::kSome;
}

// What is worth waking up for. Only set by who is about to sleep: a stream that never runs dry
// costs no call.
void TcpCore::SetLowWater(Lane& lane) {
  Incoming& in = lane.in;
  const size_t wanted =
      in.in_payload ? std::min<size_t>(in.parsed.payload_bytes - in.payload_done, kLowWater) : 1;
  if (in.low_water == static_cast<int>(wanted)) return;
  in.low_water = static_cast<int>(wanted);
  // Where it cannot be set, every segment wakes.
  setsockopt(lane.fd.get(), SOL_SOCKET, SO_RCVLOWAT, &in.low_water, sizeof(in.low_water));
}

// Whether nothing of the chunk under way could be sent for too long (the link has then failed);
// else the time by which something has to be.
bool TcpCore::SenderStuck(Lane& lane, Deadline* until) {
  const auto idle = absl::FromChrono(Clock::now() - lane.out->moved_at);
  *until = Deadline::After(options_.progress_timeout - idle);
  if (idle < options_.progress_timeout) return false;
  std::lock_guard lock(mutex_);
  Fail(absl::UnavailableError(absl::StrCat(
           state_.peer(), ", lane ", lane.index, ": nothing of chunk ", lane.out->chunk.sequence,
           " could be sent for ", absl::FormatDuration(options_.progress_timeout),
           " (progress_timeout); the network or the peer is stuck")),
       /*local=*/false, /*tell=*/true);
  return true;
}

// Sleeps until there is something to do; false when the lane is to end.
bool TcpCore::SleepLane(Lane& lane) {
  short events = 0;
  bool sending = false;
  {
    std::lock_guard lock(mutex_);
    if (state_.failed()) return false;
    sending = lane.sender == Mover::kThread;
    if (lane.sender == Mover::kNobody && !lane.queue.empty()) return true;
    if (!lane.caller_reads && !lane.caller_inside) events |= POLLIN;
    lane.sleeping = true;
  }
  Deadline until = Deadline::Infinite();
  if (sending) {
    events |= POLLOUT;
    if (SenderStuck(lane, &until)) return false;
  }
  if ((events & POLLIN) != 0) SetLowWater(lane);
  // With nothing to wait for the socket is left out: a hang-up would be reported again and again.
  pollfd entries[2] = {{.fd = events == 0 ? -1 : lane.fd.get(), .events = events, .revents = 0},
                       {.fd = lane.wake.fd(), .events = POLLIN, .revents = 0}};
  poll(entries, 2, until.PollMillis());
  if (entries[1].revents != 0) lane.wake.Clear();
  std::lock_guard lock(mutex_);
  lane.sleeping = false;
  return !state_.failed();
}

// The socket ended. The reason, if there is one, comes on the control socket: it is given a moment.
void TcpCore::LaneEnded(Lane& lane, int error) {
  std::lock_guard lock(mutex_);
  DataEnded(absl::StrCat(state_.peer(), ", lane ", lane.index, ": the data connection ended",
                         error == 0 ? "" : absl::StrCat(" (", std::strerror(error), ")")));
}

}  // namespace tributary::transport::tcp
