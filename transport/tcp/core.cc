// The Link calls of a TCP link, its start and its end.
#include "transport/tcp/core.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::tcp {

namespace {

internal::LinkState::Config StateConfig(const internal::ReadySockets& sockets,
                                        const LinkOptions& options) {
  return {.peer = sockets.hellos.PeerName(PeerText(sockets.control.get())),
          .chunk_bytes = options.chunk_bytes,
          .send_slots = options.slots,
          .receive_slots = options.slots,
          .our_epoch = sockets.hellos.ours.epoch(),
          .peer_epoch = sockets.hellos.theirs.epoch(),
          .peer_slots = sockets.hellos.theirs.slots()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> TcpCore::Start(internal::ReadySockets sockets,
                                                     const LinkOptions& options) {
  ASSIGN_OR_RETURN(internal::Arena arena,
                   internal::Arena::Map(options.chunk_bytes, 2 * options.slots));
  ASSIGN_OR_RETURN(Waker control_wake, Waker::Create());
  ASSIGN_OR_RETURN(Waker caller_wake, Waker::Create());
  std::vector<Waker> lane_wakes;
  for (size_t i = 0; i < sockets.lanes.size(); ++i) {
    ASSIGN_OR_RETURN(Waker wake, Waker::Create());
    lane_wakes.push_back(std::move(wake));
  }
  SetLinkOptions(sockets.control.get(),
                 absl::FromChrono(internal::SilenceLimit(options, sockets.hellos.theirs)));
  std::vector<Fd> fds = std::move(sockets.lanes);
  auto* core = new TcpCore(std::move(sockets), options, std::move(arena), std::move(control_wake),
                           std::move(caller_wake));
  auto link = std::make_unique<internal::CoreLink>(core);
  for (size_t i = 0; i < fds.size(); ++i) {
    auto lane = std::make_unique<Lane>(std::move(lane_wakes[i]));
    lane->index = static_cast<uint32_t>(i);
    lane->in.next_sequence = i;
    lane->fd = std::move(fds[i]);
    SetLinkOptions(lane->fd.get(), options.progress_timeout);
    BoundBufferOnOneHost(lane->fd.get());
    core->lanes_.push_back(std::move(lane));
  }
  try {
    for (auto& lane : core->lanes_) {
      lane->thread = std::thread([core, at = lane.get()] { core->RunLane(*at); });
    }
    core->StartControl();
  } catch (const std::system_error& error) {  // the link's end joins those that run
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a link's threads: ", error.what()));
  }
  return link;
}

TcpCore::TcpCore(internal::ReadySockets sockets, const LinkOptions& options, internal::Arena arena,
                 Waker control_wake, Waker caller_wake)
    : ControlledCore(options, sockets.hellos.theirs, std::move(sockets.control),
                     std::move(control_wake), StateConfig(sockets, options)),
      arena_(std::move(arena)),
      caller_wake_(std::move(caller_wake)) {}

Chunk TcpCore::Lend(uint32_t slot) {
  Ref();
  return Chunk(this, slot, arena_.slot(slot), arena_.slot_bytes(), MemoryKind::kHost);
}

absl::StatusOr<Chunk> TcpCore::Borrow(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool ready = deadline.Wait(
      can_send_, lock, [this] { return !state_.SendStatus().ok() || state_.CanBorrow(); });
  RETURN_IF_ERROR(state_.SendStatus());
  if (!ready) return state_.BorrowTimeout();
  return Lend(state_.Borrow());
}

absl::Status TcpCore::Send(Chunk chunk) {
  RETURN_IF_ERROR(
      internal::CheckSendable(OwnerOf(chunk) == this, chunk, state_.IsSendSlot(SlotOf(chunk))));
  std::unique_lock lock(mutex_);
  absl::Status status = state_.SendStatus();
  if (!status.ok()) {
    lock.unlock();
    return status;  // the chunk's end gives the slot back
  }
  const internal::SlotChunk queued = state_.Queue(SlotOf(chunk), chunk.size(), chunk.tag());
  Release(chunk);
  Lane& lane = *lanes_[queued.sequence % lanes_.size()];
  lane.queue.push_back(queued);
  if (queued.bytes <= kSmallChunk && lane.sender == Mover::kNobody) {
    SendAsCaller(lane, lock);
  } else if (lane.sleeping) {
    lane.sleeping = false;
    lane.wake.Wake();
  }
  Unref();  // the lease's; never the last, since the Link is alive
  return absl::OkStatus();
}

absl::StatusOr<Chunk> TcpCore::Receive(Deadline deadline) {
  std::unique_lock lock(mutex_);
  std::optional<absl::StatusOr<internal::SlotChunk>> got;
  // Once at least the socket is looked at, also by a caller who only asks what is there.
  for (bool looked = false; !(got = state_.Receive()).has_value();) {
    const bool expired = deadline.Expired();
    Lane& lane = *lanes_[state_.next() % lanes_.size()];
    if (MayReadAsCaller(lane) && !(expired && looked)) {
      looked = true;
      ReadAsCaller(lane, deadline, lock);
      continue;
    }
    if (expired) break;
    ++waiting_;
    deadline.WaitOnce(can_receive_, lock);
    --waiting_;
  }
  if (!got.has_value()) {
    return absl::DeadlineExceededError(absl::StrCat(state_.peer(), " sent no chunk in time"));
  }
  RETURN_IF_ERROR(got->status());
  const internal::SlotChunk& arrived = **got;
  Chunk chunk = Lend(arrived.slot);
  chunk.set_size(arrived.bytes);
  chunk.tag() = arrived.tag;
  return chunk;
}

void TcpCore::Return(uint32_t slot) {
  {
    std::lock_guard lock(mutex_);
    if (state_.IsSendSlot(slot)) {
      state_.ReturnUnsent(slot);
      can_send_.notify_all();
    } else {
      state_.ReturnReceived(slot);
      AnnounceGrant();
    }
  }
  Unref();
}

void TcpCore::WakeBackend() {
  for (auto& lane : lanes_) lane->wake.Wake();
}

void TcpCore::CutData() {
  for (auto& lane : lanes_) shutdown(lane->fd.get(), SHUT_RDWR);
}

LinkStats TcpCore::stats() const {
  LinkStats stats;
  {
    std::lock_guard lock(mutex_);
    stats = state_.stats;
  }
  for (const auto& lane : lanes_) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (getsockopt(lane->fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    stats.retransmits += info.tcpi_total_retrans;
    stats.round_trip = std::max(stats.round_trip, absl::Microseconds(info.tcpi_rtt));
    stats.congestion_window = stats.congestion_window == 0
                                  ? info.tcpi_snd_cwnd
                                  : std::min(stats.congestion_window, info.tcpi_snd_cwnd);
  }
  return stats;
}

void TcpCore::Shutdown() {
  BeginShutdown();
  for (auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
  EndShutdown();
  for (auto& lane : lanes_) lane->fd = Fd();
}

}  // namespace tributary::transport::tcp
