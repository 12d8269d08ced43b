// The Link calls of a link through shared memory.
#include "transport/shm/core.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "transport/shm/unix_socket.h"

namespace tributary::transport::shm {

using internal::ChunkHeader;
using internal::SlotChunk;

namespace {

internal::LinkState::Config StateConfig(const internal::ReadySockets& sockets,
                                        const LinkOptions& options) {
  const internal::Hellos& hellos = sockets.hellos;
  return {.peer = hellos.PeerName(PeerText(sockets.control.get())),
          .chunk_bytes = options.chunk_bytes,
          .send_slots = hellos.theirs.slots(),
          .receive_slots = hellos.ours.slots(),
          .our_epoch = hellos.ours.epoch(),
          .peer_epoch = hellos.theirs.epoch(),
          .peer_slots = hellos.theirs.slots()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> ShmCore::Start(internal::ReadySockets sockets,
                                                     const LinkOptions& options, Region region,
                                                     Role role) {
  ASSIGN_OR_RETURN(internal::Waker waker, internal::Waker::Create());
  auto* core = new ShmCore(std::move(sockets), options, std::move(region), std::move(waker), role);
  auto link = std::make_unique<internal::CoreLink>(core);
  try {
    core->StartControl();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a link's thread: ", error.what()));
  }
  return link;
}

ShmCore::ShmCore(internal::ReadySockets sockets, const LinkOptions& options, Region region,
                 internal::Waker waker, Role role)
    : ControlledCore(options, sockets.hellos.theirs, std::move(sockets.control), std::move(waker),
                     StateConfig(sockets, options)),
      region_(std::move(region)),
      out_(role == Role::kAcceptor ? region_.to_connecter() : region_.to_acceptor()),
      in_(role == Role::kAcceptor ? region_.to_acceptor() : region_.to_connecter()),
      with_peer_(out_.slots, false) {}

Chunk ShmCore::Lend(uint32_t slot) {
  Ref();
  return Chunk(this, slot, Memory(slot), options_.chunk_bytes, MemoryKind::kShared);
}

void ShmCore::WakeSenders() {
  ControlledCore::WakeSenders();
  out_.head->freed.Ring();
}

void ShmCore::WakeReceivers() {
  ControlledCore::WakeReceivers();
  in_.head->arrived.Ring();
}

template <typename Ready>
bool ShmCore::WaitFor(Bell& bell, internal::Spinner& spinner, std::unique_lock<std::mutex>& lock,
                      const Deadline& until, Ready ready) {
  while (true) {
    const uint32_t seen = bell.Count();
    if (ready()) return true;
    if (until.Expired()) return false;
    lock.unlock();
    if (!SpinFor(spinner, bell, seen)) bell.Sleep(seen, until);
    lock.lock();
  }
}

absl::StatusOr<Chunk> ShmCore::Borrow(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool ready = WaitFor(out_.head->freed, send_spin_, lock, deadline, [this] {
    TakeBack();
    return !state_.SendStatus().ok() || state_.CanBorrow();
  });
  RETURN_IF_ERROR(state_.SendStatus());
  if (!ready) return state_.BorrowTimeout();
  return Lend(state_.Borrow());
}

void ShmCore::TakeBack() {
  const uint64_t returned = out_.head->returned.load(std::memory_order_acquire);
  while (taken_back_ != returned && !state_.failed()) {
    const uint32_t slot = out_.freed[taken_back_ % out_.slots].load(std::memory_order_relaxed);
    if (slot >= out_.slots || !with_peer_[slot]) {
      return Fail(absl::FailedPreconditionError(
                      absl::StrCat(state_.peer(), " gave back slot ", slot,
                                   ", which it does not hold; it breaks the link protocol")),
                  /*local=*/false, /*tell=*/true);
    }
    with_peer_[slot] = false;
    ++taken_back_;
    state_.OnSlotBack(slot);
    state_.OnGrant(theirs_.epoch(), out_.slots + taken_back_);
  }
}

absl::Status ShmCore::Send(Chunk chunk) {
  RETURN_IF_ERROR(
      internal::CheckSendable(OwnerOf(chunk) == this, chunk, state_.IsSendSlot(SlotOf(chunk))));
  const uint32_t slot = SlotOf(chunk);
  const uint32_t crc = Crc32c(chunk.bytes());
  {
    std::unique_lock lock(mutex_);
    absl::Status status = state_.SendStatus();
    if (!status.ok()) {
      lock.unlock();
      return status;  // the chunk's end gives the slot back
    }
    const SlotChunk queued = state_.Queue(slot, chunk.size(), chunk.tag());
    Release(chunk);
    if (options_.damage) options_.damage(queued.sequence, Memory(slot), queued.bytes);
    Entry& entry = out_.entries[queued.sequence % out_.slots];
    entry.slot = slot;
    entry.header =
        internal::EncodeChunkHeader({.payload_bytes = static_cast<uint32_t>(queued.bytes),
                                     .sequence = queued.sequence,
                                     .tag = queued.tag,
                                     .payload_crc32c = crc});
    with_peer_[slot] = true;
    entry.published.store(queued.sequence + 1, std::memory_order_release);
    state_.OnHandedOver(queued);
  }
  out_.head->arrived.Ring();
  Unref();  // the lease's; never the last, since the Link is alive
  return absl::OkStatus();
}

absl::StatusOr<Chunk> ShmCore::Receive(Deadline deadline) {
  std::optional<absl::StatusOr<SlotChunk>> got;
  std::unique_lock lock(mutex_);
  ++receivers_;
  WaitFor(in_.head->arrived, receive_spin_, lock, deadline, [&] {
    // First what is there: it came before any error that is known.
    TakeIn(lock, /*control=*/false);
    return (got = state_.Receive()).has_value();
  });
  --receivers_;
  if (!got.has_value()) {
    return absl::DeadlineExceededError(absl::StrCat(state_.peer(), " sent no chunk in time"));
  }
  RETURN_IF_ERROR(got->status());
  const SlotChunk& arrived = **got;
  Chunk chunk = Lend(arrived.slot);
  chunk.set_size(arrived.bytes);
  chunk.tag() = arrived.tag;
  return chunk;
}

// The next entry, copied out of the peer's reach, checked and admitted.
absl::StatusOr<SlotChunk> ShmCore::ClaimNext(uint32_t* payload_crc32c) {
  const Entry& entry = in_.entries[claimed_ % in_.slots];
  const uint32_t index = entry.slot;
  const internal::ChunkHeaderBytes bytes = entry.header;
  const absl::StatusOr<ChunkHeader> header = internal::DecodeChunkHeader(bytes);
  if (!header.ok()) return Annotate(header.status(), state_.peer());
  if (header->sequence != claimed_ || index >= in_.slots) {
    return absl::DataLossError(absl::StrCat(state_.peer(), ": chunk ", header->sequence,
                                            " in slot ", index, " came where chunk ", claimed_,
                                            " was due; it breaks the link protocol"));
  }
  const uint32_t slot = out_.slots + index;
  RETURN_IF_ERROR(state_.AdmitInto(slot, header->sequence, header->payload_bytes));
  *payload_crc32c = header->payload_crc32c;
  return SlotChunk{.slot = slot,
                   .bytes = header->payload_bytes,
                   .sequence = header->sequence,
                   .tag = header->tag};
}

bool ShmCore::TakeIn(std::unique_lock<std::mutex>& lock, bool control) {
  if (broken_) return false;
  const Entry& entry = in_.entries[claimed_ % in_.slots];
  if (entry.published.load(std::memory_order_acquire) != claimed_ + 1) return false;
  uint32_t crc = 0;
  absl::StatusOr<SlotChunk> claimed = ClaimNext(&crc);
  absl::Status bad = claimed.status();
  if (bad.ok()) {
    ++claimed_;
    lock.unlock();
    const bool whole = Crc32c({Memory(claimed->slot), claimed->bytes}) == crc;
    lock.lock();
    if (!whole) {
      bad = absl::DataLossError(absl::StrCat(state_.peer(), ": chunk ", claimed->sequence, " of ",
                                             claimed->bytes,
                                             " bytes arrived damaged (its CRC32C does not fit)"));
    }
  }
  if (!bad.ok()) {
    broken_ = true;
    Fail(std::move(bad), /*local=*/false, /*tell=*/true);
    return false;
  }
  state_.OnArrived(*claimed);
  AnswerGoodbye();
  // Whoever waits for this chunk, or for an earlier one to come before theirs.
  if (control || receivers_ > 1) in_.head->arrived.Ring();
  return true;
}

void ShmCore::TakeInArrived() {
  std::unique_lock lock(mutex_);
  while (TakeIn(lock, /*control=*/true)) {
  }
}

void ShmCore::Return(uint32_t slot) {
  if (state_.IsSendSlot(slot)) {
    {
      std::lock_guard lock(mutex_);
      state_.ReturnUnsent(slot);
    }
    out_.head->freed.Ring();  // our own threads in Borrow
  } else {
    {
      std::lock_guard lock(mutex_);
      state_.ReturnReceived(slot);
      state_.GrantAll();
      in_.freed[given_back_ % in_.slots].store(slot - out_.slots, std::memory_order_relaxed);
      in_.head->returned.store(++given_back_, std::memory_order_release);
    }
    in_.head->freed.Ring();
  }
  Unref();
}

LinkStats ShmCore::stats() const {
  std::lock_guard lock(mutex_);
  return state_.stats;
}

void ShmCore::Shutdown() {
  BeginShutdown();
  EndShutdown();
}

}  // namespace tributary::transport::shm
