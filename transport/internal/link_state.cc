// The rules of a link, without I/O.
#include "transport/internal/link_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::internal {

absl::Status CheckSendable(bool ours, const Chunk& chunk, bool for_sending) {
  if (!ours) {
    return absl::InvalidArgumentError(
        "Send was given an empty chunk or one of another link; send what this link's Borrow lent");
  }
  if (!for_sending) {
    return absl::InvalidArgumentError(
        "Send was given a received chunk; borrow one and copy into it");
  }
  if (chunk.size() > chunk.capacity()) {
    return absl::InvalidArgumentError(absl::StrCat("Send was given a chunk of ", chunk.size(),
                                                   " bytes; a slot has ", chunk.capacity()));
  }
  return absl::OkStatus();
}

LinkState::LinkState(const Config& config)
    : config_(config),
      send_pool_(0, config.send_slots),
      receive_pool_(config.send_slots, config.receive_slots),
      credit_(config.peer_epoch, config.peer_slots),
      grants_(config.receive_slots),
      ready_(config.receive_slots) {}

absl::Status LinkState::SendStatus() const {
  if (failed()) return error_;
  if (closing_) {
    return absl::FailedPreconditionError(absl::StrCat(
        config_.peer, ": this side of the link was closed; open another to send more"));
  }
  return absl::OkStatus();
}

uint32_t LinkState::Borrow() {
  credit_.Take();
  return send_pool_.Take();
}

absl::Status LinkState::BorrowTimeout() const {
  if (credit_.available() == 0) {
    return absl::DeadlineExceededError(absl::StrCat(
        config_.peer, " granted no credit in time: it holds all of the ", credit_.granted(),
        " chunks granted so far or has not yet received them; its application is slow to receive"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(config_.peer, ": none of this side's ", config_.send_slots,
                   " send slots came free in time; the connection is slow, or chunks were borrowed "
                   "and neither sent nor dropped"));
}

void LinkState::ReturnUnsent(uint32_t slot) {
  send_pool_.Return(slot);
  credit_.GiveBack();
}

SlotChunk LinkState::Queue(uint32_t slot, size_t bytes, const ChunkTag& tag) {
  return {.slot = slot, .bytes = bytes, .sequence = queued_++, .tag = tag};
}

void LinkState::OnSent(const SlotChunk& chunk) {
  send_pool_.Return(chunk.slot);
  OnHandedOver(chunk);
}

void LinkState::OnHandedOver(const SlotChunk& chunk) {
  ++sent_;
  ++stats.chunks_sent;
  stats.bytes_sent += chunk.bytes;
}

absl::Status LinkState::CloseTimeout() const {
  return absl::DeadlineExceededError(
      absl::StrCat(config_.peer, " has not confirmed in time that all of the ", queued_,
                   " chunks sent have arrived; Close may be called again"));
}

bool LinkState::OnGrant(uint64_t epoch, uint64_t granted) {
  return credit_.OnGrant(epoch, granted) == CreditLedger::Grant::kRaised;
}

absl::Status LinkState::CheckAdmissible(uint64_t sequence, uint64_t bytes) const {
  if (bytes > config_.chunk_bytes) {
    return absl::DataLossError(absl::StrCat(config_.peer, " announced a chunk of ", bytes,
                                            " bytes; slots have ", config_.chunk_bytes));
  }
  if (!grants_.Admits(sequence)) {
    return absl::FailedPreconditionError(absl::StrCat(config_.peer, " sent chunk ", sequence,
                                                      " with credit for ", grants_.announced(),
                                                      " only; it breaks the link protocol"));
  }
  if (sequence < next_ || ready_[sequence % ready_.size()].has_value() || receive_pool_.empty()) {
    return absl::DataLossError(absl::StrCat(config_.peer, " sent chunk ", sequence,
                                            " twice; it breaks the link protocol"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> LinkState::Admit(uint64_t sequence, uint64_t bytes) {
  RETURN_IF_ERROR(CheckAdmissible(sequence, bytes));
  return receive_pool_.Take();
}

absl::Status LinkState::AdmitInto(uint32_t slot, uint64_t sequence, uint64_t bytes) {
  RETURN_IF_ERROR(CheckAdmissible(sequence, bytes));
  if (receive_pool_.TakeThis(slot)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(config_.peer, " sent chunk ", sequence,
                                                    " into slot ", slot,
                                                    ", which is not free; it breaks the link "
                                                    "protocol"));
}

void LinkState::OnArrived(const SlotChunk& chunk) {
  ready_[chunk.sequence % ready_.size()] = chunk;
  ++arrived_;
  grants_.OnArrival();
  ++stats.chunks_received;
  stats.bytes_received += chunk.bytes;
}

std::optional<absl::StatusOr<SlotChunk>> LinkState::Receive() {
  if (cancelled_here_) return error_;
  std::optional<SlotChunk>& head = ready_[next_ % ready_.size()];
  if (head.has_value()) {
    ++next_;
    SlotChunk chunk = *head;
    head.reset();
    return chunk;
  }
  if (peer_done()) {
    return absl::OutOfRangeError(absl::StrCat("end of stream: ", config_.peer,
                                              " closed its side after ", *total_, " chunks"));
  }
  if (failed()) return error_;
  return std::nullopt;
}

void LinkState::ReturnReceived(uint32_t slot) {
  receive_pool_.Return(slot);
  grants_.OnReturn();
}

std::optional<uint64_t> LinkState::GrantDue() {
  if (!grants_.Due()) return std::nullopt;
  return grants_.Announce();
}

absl::Status LinkState::OnGoodbye(uint64_t total) {
  if (arrived_ > total || (total_.has_value() && *total_ != total)) {
    return absl::DataLossError(absl::StrCat(config_.peer, " says that it sent ", total,
                                            " chunks in all, but ", arrived_, " have arrived"));
  }
  total_ = total;
  return absl::OkStatus();
}

bool LinkState::Fail(absl::Status error, bool local) {
  cancelled_here_ |= local;
  if (failed()) return false;
  error_ = std::move(error);
  return true;
}

}  // namespace tributary::transport::internal
