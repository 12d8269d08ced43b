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

void TcpCore::RunLane(Lane& lane) {
  // What the socket would do at once, as far as is known: a call that only says EAGAIN is saved.
  Ready ready{.read = true, .write = true};
  while (true) {
    if (!NextOutgoing(lane, Mover::kThread)) return;
    bool reads = true;
    bool sends = false;
    {
      std::lock_guard lock(mutex_);
      reads = !lane.caller_reads && !lane.caller_inside;
      sends = lane.sender == Mover::kThread;
    }
    const Moved sent = sends && ready.write ? SendSome(lane) : Moved::kNothing;
    const Moved received = reads && ready.read ? ReceiveSome(lane) : Moved::kNothing;
    if (sent == Moved::kEnded || received == Moved::kEnded) return;
    if (received != Moved::kNothing && LeaveToCallers(lane)) continue;
    if (sent == Moved::kMore || received == Moved::kMore) {
      ready = {.read = received == Moved::kMore, .write = sent == Moved::kMore};
      continue;
    }
    if (!SleepLane(lane, &ready)) return;
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
    if (errno == EINTR) return Moved::kMore;
    if (errno == EAGAIN) return Moved::kNothing;
    LaneEnded(lane, errno);
    return Moved::kEnded;
  }
  out.done += static_cast<size_t>(n);
  out.moved_at = Clock::now();
  // A short count: the socket is full.
  if (out.done < ChunkHeader::kBytes + out.chunk.bytes) return Moved::kAll;
  std::lock_guard lock(mutex_);
  state_.OnSent(out.chunk);
  lane.out.reset();
  if (lane.sender == Mover::kThread) lane.sender = Mover::kNobody;
  // Who waits for credit is woken when that comes.
  if (state_.CanBorrow() || state_.flushed()) can_send_.notify_all();
  return Moved::kMore;
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
  if (n < 0 && errno == EINTR) return Moved::kMore;
  if (n < 0 && errno == EAGAIN) return Moved::kNothing;
  if (n <= 0) {
    LaneEnded(lane, n == 0 ? 0 : errno);
    return Moved::kEnded;
  }
  HeardOfPeer();
  bool good = true;
  if (in.in_payload) {
    good = TakePayload(lane, to, static_cast<size_t>(n));
  } else {
    in.end += static_cast<size_t>(n);
    good = DrainStash(lane);
  }
  if (!good) return Moved::kEnded;
  // A short count: the socket is empty.
  return static_cast<size_t>(n) < wanted ? Moved::kAll : Moved::kMore;
}

// Works off what was read between chunks, as far as it makes whole headers and payload.
bool TcpCore::DrainStash(Lane& lane) {
  Incoming& in = lane.in;
  while (in.begin < in.end) {
    bool good = true;
    if (!in.in_payload) {
      if (in.end - in.begin < ChunkHeader::kBytes) break;
      good = StartChunk(lane);
    } else {
      const size_t n = std::min(in.end - in.begin, in.parsed.payload_bytes - in.payload_done);
      const uint8_t* from = in.stash.data() + in.begin;
      in.begin += n;
      std::memcpy(arena_.slot(in.slot) + in.payload_done, from, n);
      good = TakePayload(lane, from, n);
    }
    if (!good) return false;
  }
  // What is left is less than a header: it goes to the front, so that there is room for the rest.
  std::memmove(in.stash.data(), in.stash.data() + in.begin, in.end - in.begin);
  in.end -= in.begin;
  in.begin = 0;
  return true;
}

// `n` more bytes of payload are in the slot, and still in the cache, as `bytes`: so the checksum
// costs no second pass over memory.
bool TcpCore::TakePayload(Lane& lane, const uint8_t* bytes, size_t n) {
  Incoming& in = lane.in;
  in.crc32c = ExtendCrc32c(in.crc32c, {bytes, n});
  in.payload_done += n;
  return in.payload_done == in.parsed.payload_bytes ? FinishChunk(lane) : true;
}

// A whole header is at the front of the stash.
bool TcpCore::StartChunk(Lane& lane) {
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
    return false;
  }
  lock.unlock();
  in.parsed = *header;
  in.in_payload = true;
  in.payload_done = 0;
  in.crc32c = 0;
  return in.parsed.payload_bytes == 0 ? FinishChunk(lane) : true;
}

bool TcpCore::FinishChunk(Lane& lane) {
  Incoming& in = lane.in;
  std::lock_guard lock(mutex_);
  if (in.crc32c != in.parsed.payload_crc32c) {
    Fail(absl::DataLossError(absl::StrCat(state_.peer(), ", lane ", lane.index, ": chunk ",
                                          in.parsed.sequence, " of ", in.parsed.payload_bytes,
                                          " bytes arrived damaged (its CRC32C does not fit)")),
         /*local=*/false, /*tell=*/true);
    return false;
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
  return true;
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
bool TcpCore::SleepLane(Lane& lane, Ready* ready) {
  short events = 0;
  bool sending = false;
  {
    std::lock_guard lock(mutex_);
    if (state_.failed()) return false;
    sending = lane.sender == Mover::kThread;
    if (lane.sender == Mover::kNobody && !lane.queue.empty()) {
      ready->write = true;
      return true;
    }
    if (!lane.caller_reads && !lane.caller_inside) events |= POLLIN;
    lane.sleeping = !sending;
  }
  Deadline until = Deadline::Infinite();
  if (sending) {
    events |= POLLOUT;
    if (SenderStuck(lane, &until)) return false;
  }
  // With nothing to wait for the socket is left out: a hang-up would be reported again and again.
  pollfd entries[2] = {{.fd = events == 0 ? -1 : lane.fd.get(), .events = events, .revents = 0},
                       {.fd = lane.wake.fd(), .events = POLLIN, .revents = 0}};
  poll(entries, 2, until.PollMillis());
  if (entries[1].revents != 0) lane.wake.Clear();
  constexpr short kEnd = POLLERR | POLLHUP | POLLNVAL;
  ready->read = (entries[0].revents & (POLLIN | kEnd)) != 0;
  // Woken for a new chunk: whether the socket takes it is not known.
  ready->write = entries[1].revents != 0 || (entries[0].revents & (POLLOUT | kEnd)) != 0;
  std::lock_guard lock(mutex_);
  lane.sleeping = false;
  return !state_.failed();
}

// The socket ended. The reason, if there is one, comes on the control socket: it is given a moment.
void TcpCore::LaneEnded(Lane& lane, int error) {
  std::lock_guard lock(mutex_);
  const std::string which = absl::StrCat(state_.peer(), ", lane ", lane.index);
  // The kernel's own timer, of SetLinkOptions. It and SenderStuck run at the same time.
  if (error == ETIMEDOUT) {
    return DataEnded(absl::StrCat(which, ": nothing that was sent was acknowledged for ",
                                  absl::FormatDuration(options_.progress_timeout),
                                  " (progress_timeout); the network or the peer is stuck"));
  }
  DataEnded(absl::StrCat(which, ": the data connection ended",
                         error == 0 ? "" : absl::StrCat(" (", std::strerror(error), ")")));
}

}  // namespace tributary::transport::tcp
