// The Link calls of a RoCE link, its start and its end.
#include "transport/roce/core.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "transport/roce/endpoint.h"
#include "transport/tcp/socket.h"

namespace tributary::transport::roce {

namespace {

internal::LinkState::Config StateConfig(const Wire& wire, const internal::ReadySockets& sockets) {
  return {.peer = sockets.hellos.PeerName(tcp::PeerText(sockets.control.get())),
          .chunk_bytes = wire.chunk_bytes(),
          .send_slots = wire.slots(),
          .receive_slots = wire.receive_slots(),
          .our_epoch = sockets.hellos.ours.epoch(),
          .peer_epoch = sockets.hellos.theirs.epoch(),
          .peer_slots = wire.peer_slots()};
}

// Half of the send slots may wait for a signal at any time, never more.
uint32_t SignalEvery(uint32_t slots, size_t queue_pairs) {
  constexpr uint32_t kMost = 16;
  return std::clamp<uint32_t>(slots / (2 * static_cast<uint32_t>(queue_pairs)), 1, kMost);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> RoceCore::Start(ReadyWire ready,
                                                      internal::ReadySockets sockets,
                                                      const LinkOptions& options,
                                                      absl::Duration spin) {
  ASSIGN_OR_RETURN(internal::Waker control_wake, internal::Waker::Create());
  ASSIGN_OR_RETURN(internal::Waker wake, internal::Waker::Create());
  tcp::SetLinkOptions(sockets.control.get(),
                      absl::FromChrono(internal::SilenceLimit(options, sockets.hellos.theirs)));
  const std::vector<ibv_wc> early = std::move(ready.early);
  auto* core = new RoceCore(std::move(ready), std::move(sockets), options, spin,
                            std::move(control_wake), std::move(wake));
  auto link = std::make_unique<internal::CoreLink>(core);
  spdlog::info("link over RoCE with \"{}\": {}", core->peer(), core->wire_->description());
  core->WatchDevice();
  for (const ibv_wc& completion : early) core->TakeOne(completion);  // before any thread takes more
  try {
    core->thread_ = std::thread([core] { core->Run(); });
    core->StartControl();
  } catch (const std::system_error& error) {  // the link's end joins those that run
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a link's threads: ", error.what()));
  }
  return link;
}

RoceCore::RoceCore(ReadyWire ready, internal::ReadySockets sockets, const LinkOptions& options,
                   absl::Duration spin, internal::Waker control_wake, internal::Waker wake)
    : ControlledCore(options, sockets.hellos.theirs, std::move(sockets.control),
                     std::move(control_wake), StateConfig(*ready.wire, sockets)),
      spin_(absl::ToChronoNanoseconds(spin)),
      wire_(std::move(ready.wire)),
      signal_every_(SignalEvery(wire_->slots(), wire_->queue_pairs().size())),
      wake_(std::move(wake)),
      peer_slot_(wire_->peer_slots()),
      granted_to_us_(wire_->peer_slots()),
      granted_place_(wire_->receive_slots()),
      named_(wire_->receive_slots()),
      grants_due_(wire_->receive_slots()),
      place_of_(wire_->receive_slots()),
      moved_at_(Clock::now()) {
  // The first grants are the slots in their order, as the endpoints listed them.
  for (uint32_t i = 0; i < peer_slot_.size(); ++i) peer_slot_[i] = i;
  for (uint32_t i = 0; i < granted_place_.size(); ++i) granted_place_[i] = i;
}

void RoceCore::WatchDevice() {
  watch_ = wire_->device().Watch([this](const std::string& what, uint32_t number) {
    std::lock_guard lock(mutex_);
    if (!posting_) return;
    const auto& pairs = wire_->queue_pairs();
    const bool ours = std::any_of(pairs.begin(), pairs.end(),
                                  [&](const auto& pair) { return pair->number() == number; });
    if (number != 0 && !ours) return;
    DataEnded(absl::StrCat(state_.peer(), ": RDMA device ", wire_->device().name(), ": ", what),
              EndedBy::kFollowsFromOne);
  });
}

void RoceCore::WakeSenders() {
  ControlledCore::WakeSenders();
  if (!state_.SendStatus().ok()) PostFlushes();  // closing: what is unsignalled is waited for
}

// What is here already, and no more: on a link that is busy there is always some.
void RoceCore::TakeInArrived() {
  for (size_t left = wire_->completions(); TakeCompletions() && left > kTakenAtOnce;) {
    left -= kTakenAtOnce;
  }
}

Chunk RoceCore::Lend(uint32_t slot, uint32_t place) {
  Ref();
  const Slot& at = wire_->slot(place);
  return Chunk(this, slot, at.data + kHeaderRoom, wire_->chunk_bytes(),
               at.device == 0 ? MemoryKind::kHost : MemoryKind::kCuda,
               at.device == 0 ? 0 : at.device + kHeaderRoom);
}

absl::StatusOr<Chunk> RoceCore::Borrow(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!state_.CanBorrow()) PostFlushes();
  const bool ready = deadline.Wait(
      can_send_, lock, [this] { return !state_.SendStatus().ok() || state_.CanBorrow(); });
  RETURN_IF_ERROR(state_.SendStatus());
  if (!ready) return state_.BorrowTimeout();
  const uint32_t slot = state_.Borrow();
  return Lend(slot, slot);
}

absl::Status RoceCore::Send(Chunk chunk) {
  RETURN_IF_ERROR(
      internal::CheckSendable(OwnerOf(chunk) == this, chunk, state_.IsSendSlot(SlotOf(chunk))));
  std::unique_lock lock(mutex_);
  absl::Status status = state_.SendStatus();
  if (!status.ok()) {
    lock.unlock();
    return status;  // the chunk's end gives the slot back
  }
  const internal::SlotChunk queued = state_.Queue(SlotOf(chunk), chunk.size(), chunk.tag());
  const uint32_t peer_slot = peer_slot_[queued.sequence % peer_slot_.size()];
  lock.unlock();
  absl::Status prepared = Prepare(queued, chunk.filled_on_device());
  lock.lock();
  Release(chunk);
  if (prepared.ok()) {
    PostChunk(queued, peer_slot);
  } else {  // it has its number already: the link cannot go on without it
    Fail(Annotate(prepared, state_.peer()), /*local=*/false, /*tell=*/true);
  }
  lock.unlock();
  Unref();  // the lease's; never the last, since the Link is alive
  return prepared;
}

absl::Status RoceCore::Prepare(const internal::SlotChunk& chunk, bool filled_on_device) {
  const Slot& slot = wire_->slot(chunk.slot);
  if (filled_on_device) {
    RETURN_IF_ERROR(wire_->arena().FromDevice(slot, kHeaderRoom, chunk.bytes));
  }
  uint8_t* const payload = slot.data + kHeaderRoom;
  const internal::ChunkHeaderBytes header =
      internal::EncodeChunkHeader({.payload_bytes = static_cast<uint32_t>(chunk.bytes),
                                   .sequence = chunk.sequence,
                                   .tag = chunk.tag,
                                   .payload_crc32c = Crc32c({payload, chunk.bytes})});
  std::memcpy(slot.data, header.data(), header.size());
  if (options_.damage) options_.damage(chunk.sequence, payload, chunk.bytes);
  return wire_->arena().ToWire(slot, 0, kHeaderRoom + chunk.bytes);
}

void RoceCore::PostChunk(const internal::SlotChunk& chunk, uint32_t peer_slot) {
  if (!posting_ || state_.failed()) return;  // the error is sticky: nobody waits for this chunk
  auto& pairs = wire_->queue_pairs();
  QueuePair& pair = *pairs[chunk.sequence % pairs.size()];
  const Slot& from = wire_->slot(chunk.slot);
  BeforePost();
  const bool closing = !state_.SendStatus().ok();  // its flushes may be posted already
  const bool signalled = closing || pair.unsignalled() + 1 >= signal_every_;
  const absl::Status posted = pair.PostWrite({.from = from.wire,
                                              .local_key = from.local_key,
                                              .bytes = kHeaderRoom + chunk.bytes,
                                              .to = wire_->peer_address(peer_slot),
                                              .remote_key = wire_->peer_key(peer_slot)},
                                             Immediate(chunk.sequence, peer_slot), signalled,
                                             {.kind = SentRequest::Kind::kChunk, .chunk = chunk});
  if (!posted.ok()) {
    Fail(Annotate(posted, state_.peer()), /*local=*/false, /*tell=*/true);
  }
}

// A grant names a chunk and the place that it may be written to. All on queue pair 0, which keeps
// them in order.
void RoceCore::PostGrants() {
  if (!posting_ || state_.failed() || state_.peer_done()) return;
  if (const std::optional<uint64_t> due = state_.GrantDue(); due.has_value()) grants_due_ = *due;
  QueuePair& pair = *wire_->queue_pairs()[0];
  const size_t ring = granted_place_.size();
  while (named_ < grants_due_) {
    if (pair.in_flight() >= QueueRoom()) return;  // the next completion goes on
    const uint32_t place = free_places_.front();
    free_places_.pop_front();
    granted_place_[named_ % ring] = place;
    BeforePost();
    const bool signalled = pair.unsignalled() + 1 >= std::min<size_t>(signal_every_, ring);
    const absl::Status posted = pair.PostGrant(Immediate(named_, place), signalled);
    ++named_;
    if (!posted.ok()) {
      return Fail(Annotate(posted, state_.peer()), /*local=*/false, /*tell=*/true);
    }
  }
}

void RoceCore::PostFlushes() {
  if (!posting_ || state_.failed() || state_.flushed()) return;
  for (const auto& pair : wire_->queue_pairs()) {
    if (pair->unsignalled() == 0 || pair->in_flight() >= QueueRoom()) continue;
    BeforePost();
    const absl::Status posted = pair->PostEmpty(SentRequest::Kind::kFlush);
    if (!posted.ok()) {
      return Fail(Annotate(posted, state_.peer()), /*local=*/false, /*tell=*/true);
    }
  }
}

absl::StatusOr<Chunk> RoceCore::Receive(Deadline deadline) {
  std::unique_lock lock(mutex_);
  std::optional<absl::StatusOr<internal::SlotChunk>> got;
  deadline.Wait(can_receive_, lock, [&] { return (got = state_.Receive()).has_value(); });
  if (!got.has_value()) {
    return absl::DeadlineExceededError(absl::StrCat(state_.peer(), " sent no chunk in time"));
  }
  RETURN_IF_ERROR(got->status());
  const internal::SlotChunk& arrived = **got;
  Chunk chunk = Lend(arrived.slot, wire_->slots() + place_of_[arrived.slot - wire_->slots()]);
  chunk.set_size(arrived.bytes);
  chunk.tag() = arrived.tag;
  return chunk;
}

void RoceCore::Return(uint32_t slot) {
  {
    std::lock_guard lock(mutex_);
    if (state_.IsSendSlot(slot)) {
      state_.ReturnUnsent(slot);
      can_send_.notify_all();
    } else {
      free_places_.push_back(place_of_[slot - wire_->slots()]);
      state_.ReturnReceived(slot);
      PostGrants();
    }
  }
  Unref();
}

// Progress is owed from here on, where nothing was under way.
void RoceCore::BeforePost() {
  if (!SendsAreUnderWay()) moved_at_ = Clock::now();
}

bool RoceCore::SendsAreUnderWay() const {
  const auto& pairs = wire_->queue_pairs();
  return std::any_of(pairs.begin(), pairs.end(),
                     [](const auto& pair) { return pair->in_flight() > pair->unsignalled(); });
}

LinkStats RoceCore::stats() const {
  std::lock_guard lock(mutex_);
  return state_.stats;
}

void RoceCore::Shutdown() {
  if (watch_ != 0) wire_->device().Unwatch(watch_);
  BeginShutdown();
  if (thread_.joinable()) thread_.join();
  EndShutdown();
}

}  // namespace tributary::transport::roce
