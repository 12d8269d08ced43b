// One data socket of a link: sends the chunks queued for it, receives chunks straight into slots.
#include <poll.h>
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

void TcpCore::RunLane(Lane& lane) {
  while (true) {
    if (!NextOutgoing(lane)) return;
    const Moved sent = SendSome(lane);
    const Moved received = ReceiveSome(lane);
    if (sent == Moved::kEnded || received == Moved::kEnded) return;
    if (sent == Moved::kNothing && received == Moved::kNothing && !SleepLane(lane)) return;
  }
}

// Takes up the next queued chunk when none is under way; false when the lane is to end.
bool TcpCore::NextOutgoing(Lane& lane) {
  internal::SlotChunk chunk;
  {
    std::lock_guard lock(mutex_);
    if (state_.failed()) return false;
    if (lane.out.has_value() || lane.queue.empty()) return true;
    chunk = lane.queue.front();
    lane.queue.pop_front();
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
    can_send_.notify_all();
  }
  return Moved::kSome;
}

TcpCore::Moved TcpCore::ReceiveSome(Lane& lane) {
  Incoming& in = lane.in;
  const bool in_header = in.header_done < ChunkHeader::kBytes;
  uint8_t* to =
      in_header ? in.header.data() + in.header_done : arena_.slot(in.slot) + in.payload_done;
  const size_t wanted =
      in_header ? ChunkHeader::kBytes - in.header_done : in.parsed.payload_bytes - in.payload_done;
  const ssize_t n = recv(lane.fd.get(), to, wanted, MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return Moved::kSome;
  if (n < 0 && errno == EAGAIN) return Moved::kNothing;
  if (n <= 0) {
    LaneEnded(lane, n == 0 ? 0 : errno);
    return Moved::kEnded;
  }
  HeardOfPeer();
  if (in_header) {
    in.header_done += static_cast<size_t>(n);
    return in.header_done == ChunkHeader::kBytes ? ReceiveHeader(lane) : Moved::kSome;
  }
  // The bytes are still in the cache: the checksum costs no second pass over memory.
  in.crc32c = ExtendCrc32c(in.crc32c, {to, static_cast<size_t>(n)});
  in.payload_done += static_cast<size_t>(n);
  return in.payload_done == in.parsed.payload_bytes ? FinishChunk(lane) : Moved::kSome;
}

TcpCore::Moved TcpCore::ReceiveHeader(Lane& lane) {
  Incoming& in = lane.in;
  absl::StatusOr<ChunkHeader> header = internal::DecodeChunkHeader(in.header);
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
  in.header_done = 0;
  in.next_sequence += lanes_.size();
  AnnounceGrant();
  AnswerGoodbye();
  can_receive_.notify_all();
  return Moved::kSome;
}

// Sleeps until there is something to do; false when the lane is to end.
bool TcpCore::SleepLane(Lane& lane) {
  {
    std::lock_guard lock(mutex_);
    if (state_.failed()) return false;
    if (!lane.out.has_value()) {
      if (!lane.queue.empty()) return true;
      lane.sleeping = true;
    }
  }
  short events = POLLIN;
  Deadline until = Deadline::Infinite();
  if (lane.out.has_value()) {
    events |= POLLOUT;
    const auto idle = absl::FromChrono(Clock::now() - lane.out->moved_at);
    if (idle >= options_.progress_timeout) {
      std::lock_guard lock(mutex_);
      Fail(
          absl::UnavailableError(absl::StrCat(
              state_.peer(), ", lane ", lane.index, ": nothing of chunk ", lane.out->chunk.sequence,
              " could be sent for ", absl::FormatDuration(options_.progress_timeout),
              " (progress_timeout); the network or the peer is stuck")),
          /*local=*/false, /*tell=*/true);
      return false;
    }
    until = Deadline::After(options_.progress_timeout - idle);
  }
  pollfd entries[2] = {{.fd = lane.fd.get(), .events = events, .revents = 0},
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
