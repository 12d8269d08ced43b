// The rules of LinkState over the simulated network's flows and events.
#include "transport/sim/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "transport/internal/frame.h"

namespace tributary::transport::sim {

absl::StatusOr<SimLinkCore::Ends> SimLinkCore::MakePair(const std::shared_ptr<World>& world,
                                                        SimNode connecting,
                                                        const LinkOptions& connecting_options,
                                                        SimNode accepting,
                                                        const LinkOptions& accepting_options) {
  ASSIGN_OR_RETURN(internal::Arena a, internal::Arena::Map(connecting_options.chunk_bytes,
                                                           2 * connecting_options.slots));
  ASSIGN_OR_RETURN(internal::Arena b, internal::Arena::Map(accepting_options.chunk_bytes,
                                                           2 * accepting_options.slots));
  const uint64_t id = world->next_token;
  world->next_token += 2;
  Ends ends;
  ends.connecting = std::make_unique<internal::CoreLink>(
      new SimLinkCore(world, connecting, connecting_options, accepting, accepting_options, id,
                      id + 1, std::move(a)));
  ends.accepting = std::make_unique<internal::CoreLink>(
      new SimLinkCore(world, accepting, accepting_options, connecting, connecting_options, id + 1,
                      id, std::move(b)));
  return ends;
}

SimLinkCore::SimLinkCore(std::shared_ptr<World> world, SimNode node, const LinkOptions& ours,
                         SimNode peer_node, const LinkOptions& theirs, uint64_t id,
                         uint64_t peer_id, internal::Arena arena)
    : world_(std::move(world)),
      options_(ours),
      node_(node),
      peer_node_(peer_node),
      id_(id),
      peer_id_(peer_id),
      peer_name_(theirs.name),
      peer_hello_(theirs.hello),
      silence_limit_(std::max(ours.heartbeat, theirs.heartbeat) * ours.heartbeats_missed),
      arena_(std::move(arena)),
      flow_(world_->core.OpenFlow(node, peer_node)),
      state_({.peer = absl::StrCat("peer \"", theirs.name, "\" (sim node ", peer_node, ")"),
              .chunk_bytes = ours.chunk_bytes,
              .send_slots = ours.slots,
              .receive_slots = ours.slots,
              .our_epoch = id,
              .peer_epoch = peer_id,
              .peer_slots = theirs.slots}) {
  world_->links[id_] = this;
}

Chunk SimLinkCore::Lend(uint32_t slot) {
  Ref();
  return Chunk(this, slot, arena_.slot(slot), arena_.slot_bytes(), MemoryKind::kHost);
}

absl::StatusOr<Chunk> SimLinkCore::Borrow(Deadline deadline) {
  World::Lock lock(world_->mutex);
  const bool ready = world_->Wait(lock, can_send_, world_->Until(deadline), [this] {
    return !state_.SendStatus().ok() || state_.CanBorrow();
  });
  RETURN_IF_ERROR(state_.SendStatus());
  if (!ready) return state_.BorrowTimeout();
  return Lend(state_.Borrow());
}

absl::Status SimLinkCore::Send(Chunk chunk) {
  RETURN_IF_ERROR(
      internal::CheckSendable(OwnerOf(chunk) == this, chunk, state_.IsSendSlot(SlotOf(chunk))));
  World::Lock lock(world_->mutex);
  absl::Status status = state_.SendStatus();
  if (!status.ok()) {
    lock.unlock();
    return status;  // the chunk's end gives the slot back
  }
  const internal::SlotChunk queued = state_.Queue(SlotOf(chunk), chunk.size(), chunk.tag());
  Release(chunk);
  uint8_t* payload = arena_.slot(queued.slot);
  on_wire_.push_back({.chunk = queued, .crc32c = Crc32c({payload, queued.bytes})});
  if (options_.damage) options_.damage(queued.sequence, payload, queued.bytes);
  world_->core.Send(flow_, queued.bytes + internal::ChunkHeader::kBytes, world_.get(),
                    uint64_t{static_cast<uint8_t>(WorldEvent::kData)} << 56 | peer_id_,
                    queued.sequence);
  world_->Dispatch();
  lock.unlock();
  Unref();
  return absl::OkStatus();
}

absl::StatusOr<Chunk> SimLinkCore::Receive(Deadline deadline) {
  World::Lock lock(world_->mutex);
  std::optional<absl::StatusOr<internal::SlotChunk>> got;
  world_->Wait(lock, can_receive_, world_->Until(deadline),
               [&] { return got.has_value() || (got = state_.Receive()).has_value(); });
  if (!got.has_value()) {
    return absl::DeadlineExceededError(absl::StrCat(state_.peer(), " sent no chunk in time"));
  }
  RETURN_IF_ERROR(got->status());
  Chunk chunk = Lend((*got)->slot);
  chunk.set_size((*got)->bytes);
  chunk.tag() = (*got)->tag;
  return chunk;
}

void SimLinkCore::Return(uint32_t slot) {
  {
    World::Lock lock(world_->mutex);
    if (state_.IsSendSlot(slot)) {
      state_.ReturnUnsent(slot);
      world_->Notify(can_send_);
    } else {
      state_.ReturnReceived(slot);
      AnnounceGrant();
    }
    world_->Dispatch();
  }
  Unref();
}

absl::Status SimLinkCore::Close(Deadline deadline) {
  World::Lock lock(world_->mutex);
  const SimDeadline until = world_->Until(deadline);
  state_.StartClosing();
  world_->Notify(can_send_);
  if (!state_.failed() && !goodbye_sent_) {
    goodbye_sent_ = true;  // chunks on the wire are counted in it
    Tell(WorldEvent::kGoodbye, state_.queued());
  }
  world_->Wait(lock, can_send_, until, [this] { return state_.failed() || state_.closed(); });
  if (state_.closed()) return absl::OkStatus();
  if (state_.failed()) {
    if (peer_left_ && state_.queued() == 0) return absl::OkStatus();
    return state_.error();
  }
  return state_.CloseTimeout();
}

void SimLinkCore::Tell(WorldEvent kind, uint64_t b) {
  if (dead_) return;
  world_->Schedule(world_->core.latency(node_, peer_node_), kind, peer_id_, b);
}

void SimLinkCore::Fail(absl::Status error, bool local, bool tell) {
  const std::string text(error.message());
  if (state_.Fail(std::move(error), local) && tell) {
    const uint64_t token = world_->next_token++;
    world_->texts[token] = text;
    Tell(WorldEvent::kCancel, token);
  }
  world_->Notify(can_send_);
  world_->Notify(can_receive_);
}

void SimLinkCore::Cancel(const std::string& why) {
  World::Lock lock(world_->mutex);
  Fail(absl::CancelledError(why), /*local=*/true, /*tell=*/true);
  world_->Dispatch();
}

absl::Status SimLinkCore::status() const {
  World::Lock lock(world_->mutex);
  return state_.error();
}

LinkStats SimLinkCore::stats() const {
  World::Lock lock(world_->mutex);
  return state_.stats;
}

void SimLinkCore::Shutdown() {
  World::Lock lock(world_->mutex);
  const bool orderly = state_.closed() && state_.peer_done();
  Fail(absl::CancelledError("the link was destroyed"), /*local=*/true, /*tell=*/!orderly);
  world_->links.erase(id_);
  world_->core.CloseFlow(flow_);
  world_->Dispatch();
}

void SimLinkCore::AnnounceGrant() {
  if (state_.failed() || state_.peer_done()) return;
  const std::optional<uint64_t> granted = state_.GrantDue();
  if (granted.has_value()) Tell(WorldEvent::kGrant, *granted);
}

void SimLinkCore::AnswerGoodbye() {
  if (goodbye_answered_ || !state_.peer_done()) return;
  goodbye_answered_ = true;
  Tell(WorldEvent::kArrived, 0);
}

void SimLinkCore::OnEvent(WorldEvent kind, uint64_t b, const std::string& text) {
  if (dead_) return;
  switch (kind) {
    case WorldEvent::kData:
      return OnData(b);
    case WorldEvent::kGrant:
      if (state_.OnGrant(peer_id_, b)) world_->Notify(can_send_);
      return;
    case WorldEvent::kGoodbye: {
      const absl::Status status = state_.OnGoodbye(b);
      if (!status.ok()) return Fail(status, /*local=*/false, /*tell=*/true);
      AnswerGoodbye();
      return world_->Notify(can_receive_);
    }
    case WorldEvent::kArrived:
      state_.OnPeerHasAll();
      return world_->Notify(can_send_);
    case WorldEvent::kCancel:
      peer_left_ = state_.peer_done();
      return Fail(absl::UnavailableError(absl::StrCat(state_.peer(), " ended the link: ", text)),
                  /*local=*/false, /*tell=*/false);
    case WorldEvent::kPeerDead:
      return Fail(absl::UnavailableError(absl::StrCat(state_.peer(), " gave no sign of life for ",
                                                      absl::FormatDuration(silence_limit_))),
                  /*local=*/false, /*tell=*/false);
    default:
      return;
  }
}

// The sender's slot is read at the moment of arrival; a sender that is gone takes its chunks along.
void SimLinkCore::OnData(uint64_t sequence) {
  const auto found = world_->links.find(peer_id_);
  if (found == world_->links.end() || state_.failed()) return;
  SimLinkCore& sender = *found->second;
  if (sender.dead_ || sender.on_wire_.empty()) return;
  const OnWire sent = sender.on_wire_.front();
  sender.on_wire_.pop_front();
  absl::StatusOr<uint32_t> slot = state_.Admit(sequence, sent.chunk.bytes);
  if (!slot.ok()) return Fail(slot.status(), /*local=*/false, /*tell=*/true);
  std::memcpy(arena_.slot(*slot), sender.arena_.slot(sent.chunk.slot), sent.chunk.bytes);
  sender.state_.OnSent(sent.chunk);
  world_->Notify(sender.can_send_);
  if (Crc32c({arena_.slot(*slot), sent.chunk.bytes}) != sent.crc32c) {
    return Fail(absl::DataLossError(
                    absl::StrCat(state_.peer(), ": chunk ", sequence, " of ", sent.chunk.bytes,
                                 " bytes arrived damaged (its CRC32C does not fit)")),
                /*local=*/false, /*tell=*/true);
  }
  internal::SlotChunk arrived = sent.chunk;
  arrived.slot = *slot;
  state_.OnArrived(arrived);
  AnnounceGrant();
  AnswerGoodbye();
  world_->Notify(can_receive_);
}

void SimLinkCore::OnNodeKilled(SimNode node) {
  if (node == node_) {
    Fail(absl::CancelledError("the simulated machine was killed"), /*local=*/true, /*tell=*/false);
    dead_ = true;
  } else if (node == peer_node_) {
    world_->Schedule(silence_limit_, WorldEvent::kPeerDead, id_, 0);
  }
}

}  // namespace tributary::transport::sim
