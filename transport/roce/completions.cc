// The thread of a RoCE link: completions, and what follows from them.
#include <poll.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "transport/roce/completion_error.h"
#include "transport/roce/core.h"
#include "transport/roce/endpoint.h"

namespace tributary::transport::roce {

using internal::ChunkHeader;

namespace {

// While completions keep coming, the clock is looked at this often for errors that time brings.
constexpr auto kCheckEvery = std::chrono::milliseconds(100);

// How often it is looked at within progress_timeout while nothing comes: a send that begins while
// the thread sleeps wakes nobody, and may be the one that never arrives.
constexpr int kLooksPerTimeout = 4;

}  // namespace

void RoceCore::Run() {
  Clock::time_point active_until = Clock::now();
  Clock::time_point check_at = Clock::now();
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (state_.failed()) break;
    }
    const bool moved = TakeCompletions();
    const Clock::time_point now = Clock::now();
    if (moved) active_until = now + spin_;
    if (now >= check_at) {
      CheckTime();
      check_at = now + kCheckEvery;
    }
    if (now < active_until) continue;
    // Armed before the last look: what comes after it raises an event.
    const absl::Status armed = wire_->Arm();
    if (!armed.ok()) {
      std::lock_guard lock(mutex_);
      Fail(armed, /*local=*/false, /*tell=*/true);
      break;
    }
    if (!TakeCompletions()) Sleep(CheckTime());
  }
  {
    std::lock_guard lock(mutex_);
    posting_ = false;
  }
  std::lock_guard taking(taking_);
  wire_->TearDown();
}

RoceCore::Clock::time_point RoceCore::CheckTime() {
  const Clock::time_point now = Clock::now();
  std::lock_guard lock(mutex_);
  if (state_.failed() || OrderlyEnd()) return now + std::chrono::hours(1);
  const auto timeout = absl::ToChronoNanoseconds(options_.progress_timeout);
  Clock::time_point next = now + timeout / kLooksPerTimeout;
  // What asked for no completion is asked after when nothing has followed it for a while.
  if (!SendsAreUnderWay() && now >= moved_at_ + timeout / kLooksPerTimeout) PostFlushes();
  if (state_.failed() || !SendsAreUnderWay()) return next;
  const Clock::time_point limit = moved_at_ + timeout;
  if (now < limit) return std::min(next, limit);
  Fail(
      absl::UnavailableError(absl::StrCat(state_.peer(), ": nothing that was sent has arrived for ",
                                          absl::FormatDuration(options_.progress_timeout),
                                          " (progress_timeout); the network or the peer is stuck")),
      /*local=*/false, /*tell=*/true);
  return now;
}

void RoceCore::Sleep(Clock::time_point until) {
  pollfd entries[2] = {{.fd = wire_->fd(), .events = POLLIN, .revents = 0},
                       {.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  poll(entries, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
  if (entries[0].revents != 0) wire_->AckEvents();
  if (entries[1].revents != 0) wake_.Clear();
}

bool RoceCore::TakeCompletions() {
  std::lock_guard taking(taking_);
  if (wire_->torn_down()) return false;
  ibv_wc completions[kTakenAtOnce];
  const absl::StatusOr<size_t> n = wire_->Poll(absl::MakeSpan(completions));
  if (!n.ok()) {
    std::lock_guard lock(mutex_);
    Fail(n.status(), /*local=*/false, /*tell=*/true);
    return true;
  }
  for (size_t i = 0; i < *n; ++i) TakeOne(completions[i]);
  return *n > 0;
}

void RoceCore::TakeOne(const ibv_wc& completion) {
  QueuePair& pair = *wire_->queue_pairs()[QueuePair::IndexOf(completion.wr_id)];
  if (completion.status != IBV_WC_SUCCESS) return TakeFailed(pair, completion);
  if (QueuePair::IsReceive(completion.wr_id)) return TakeReceived(pair, completion);
  TakeSent(pair, completion);
}

void RoceCore::TakeSent(QueuePair& pair, const ibv_wc& completion) {
  std::lock_guard lock(mutex_);
  pair.OnSent(completion.wr_id, [this](const SentRequest& request) {
    if (request.kind == SentRequest::Kind::kChunk) state_.OnSent(request.chunk);
  });
  moved_at_ = Clock::now();
  PostGrants();
  WakeSenders();
}

void RoceCore::TakeReceived(QueuePair& pair, const ibv_wc& completion) {
  HeardOfPeer();
  {
    std::lock_guard lock(mutex_);
    pair.OnReceived();
    if (state_.failed()) return;
    // Before the credit that could let the peer use it.
    const absl::Status posted = pair.PostReceive();
    if (!posted.ok()) {
      return Fail(Annotate(posted, state_.peer()), /*local=*/false, /*tell=*/true);
    }
    if (completion.opcode == IBV_WC_RECV) return TakeGrant(be32toh(completion.imm_data));
  }
  TakeChunk(completion);
}

void RoceCore::TakeGrant(uint32_t immediate) {
  const uint32_t slot = ImmediateSlot(immediate);
  if (!IsSequence(immediate, granted_to_us_) || slot >= peer_slot_.size()) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
                    state_.peer(), " granted slot ", slot, " out of turn: chunk ", granted_to_us_,
                    " was the next to be granted; it breaks the link protocol")),
                /*local=*/false, /*tell=*/true);
  }
  peer_slot_[granted_to_us_ % peer_slot_.size()] = slot;
  ++granted_to_us_;
  state_.OnGrant(theirs_.epoch(), granted_to_us_);
  WakeSenders();
}

// Header, length and checksum of the chunk that was written to `place`.
absl::Status RoceCore::CheckChunk(const ibv_wc& completion, uint32_t place,
                                  ChunkHeader* header) const {
  const Slot& slot = wire_->slot(wire_->slots() + place);
  const RegisteredArena& arena = wire_->arena();
  const uint8_t* at = slot.data;
  const size_t written = std::min<size_t>(completion.byte_len, kHeaderRoom + wire_->chunk_bytes());
  RETURN_IF_ERROR(arena.FromWire(slot, 0, written));
  internal::ChunkHeaderBytes bytes;
  std::copy_n(at, bytes.size(), bytes.data());
  ASSIGN_OR_RETURN(*header, internal::DecodeChunkHeader(bytes));
  if (!IsSequence(be32toh(completion.imm_data), header->sequence) ||
      completion.byte_len != kHeaderRoom + header->payload_bytes ||
      header->payload_bytes > wire_->chunk_bytes()) {
    return absl::DataLossError(
        absl::StrCat("chunk ", header->sequence, " of ", header->payload_bytes, " bytes came as ",
                     completion.byte_len, " bytes, or under another number"));
  }
  if (Crc32c({at + kHeaderRoom, header->payload_bytes}) != header->payload_crc32c) {
    return absl::DataLossError(absl::StrCat("chunk ", header->sequence, " of ",
                                            header->payload_bytes,
                                            " bytes arrived damaged (its CRC32C does not fit)"));
  }
  return arena.ToDevice(slot, kHeaderRoom, header->payload_bytes);
}

void RoceCore::TakeChunk(const ibv_wc& completion) {
  const uint32_t place = ImmediateSlot(be32toh(completion.imm_data));
  ChunkHeader header;
  absl::Status bad = place < wire_->receive_slots()
                         ? CheckChunk(completion, place, &header)
                         : absl::DataLossError(absl::StrCat("a chunk came for slot ", place));
  std::lock_guard lock(mutex_);
  if (bad.ok() && granted_place_[header.sequence % granted_place_.size()] != place) {
    bad = absl::FailedPreconditionError(absl::StrCat("chunk ", header.sequence, " came to slot ",
                                                     place, ", which was not granted for it"));
  }
  if (!bad.ok()) return Fail(Annotate(bad, state_.peer()), /*local=*/false, /*tell=*/true);
  const absl::StatusOr<uint32_t> slot = state_.Admit(header.sequence, header.payload_bytes);
  if (!slot.ok()) return Fail(slot.status(), /*local=*/false, /*tell=*/true);
  place_of_[*slot - wire_->slots()] = place;
  state_.OnArrived({.slot = *slot,
                    .bytes = header.payload_bytes,
                    .sequence = header.sequence,
                    .tag = header.tag});
  PostGrants();
  AnswerGoodbye();
  WakeReceivers();
}

void RoceCore::TakeFailed(QueuePair& pair, const ibv_wc& completion) {
  std::lock_guard lock(mutex_);
  if (QueuePair::IsReceive(completion.wr_id)) {
    pair.OnReceived();
  } else {
    pair.OnSent(completion.wr_id, [](const SentRequest&) {});
  }
  // A peer that has all, and gave us all, may go; a grant may still be on its way to it.
  if (OrderlyEnd() || state_.failed()) return;
  const std::string what =
      Text(CompletionError(wire_->device().api(), state_.peer(), pair, completion));
  // Flushes follow from something that has, or will have, its own completion, here or there.
  DataEnded(what,
            completion.status == IBV_WC_WR_FLUSH_ERR ? EndedBy::kFollowsFromOne : EndedBy::kCause);
}

}  // namespace tributary::transport::roce
