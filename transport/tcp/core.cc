// The Link calls of a TCP link, its start and its end.
#include "transport/tcp/core.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::tcp {

using internal::ControlType;
using internal::Deadline;

namespace {

internal::LinkState::Config StateConfig(const ReadySockets& sockets, const LinkOptions& options) {
  return {.peer = absl::StrCat("peer \"", absl::Utf8SafeCHexEscape(sockets.theirs.name()), "\" (",
                               PeerText(sockets.control.get()), ")"),
          .chunk_bytes = options.chunk_bytes,
          .send_slots = options.slots,
          .receive_slots = options.slots,
          .our_epoch = sockets.ours.epoch(),
          .peer_epoch = sockets.theirs.epoch(),
          .peer_slots = sockets.theirs.slots()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> TcpCore::Start(ReadySockets sockets,
                                                     const LinkOptions& options) {
  ASSIGN_OR_RETURN(internal::Arena arena,
                   internal::Arena::Map(options.chunk_bytes, 2 * options.slots));
  ASSIGN_OR_RETURN(Waker control_wake, Waker::Create());
  std::vector<Waker> lane_wakes;
  for (size_t i = 0; i < sockets.lanes.size(); ++i) {
    ASSIGN_OR_RETURN(Waker wake, Waker::Create());
    lane_wakes.push_back(std::move(wake));
  }
  std::vector<Fd> fds = std::move(sockets.lanes);
  auto* core = new TcpCore(std::move(sockets), options, std::move(arena), std::move(control_wake));
  auto link = std::make_unique<internal::CoreLink>(core);
  for (size_t i = 0; i < fds.size(); ++i) {
    auto lane = std::make_unique<Lane>(std::move(lane_wakes[i]));
    lane->index = static_cast<uint32_t>(i);
    lane->in.next_sequence = i;
    lane->fd = std::move(fds[i]);
    SetLinkOptions(lane->fd.get(), options.progress_timeout);
    core->lanes_.push_back(std::move(lane));
  }
  SetLinkOptions(core->control_.get(), options.heartbeat * options.heartbeats_missed);
  try {
    for (auto& lane : core->lanes_) {
      lane->thread = std::thread([core, at = lane.get()] { core->RunLane(*at); });
    }
    core->control_thread_ = std::thread([core] { core->RunControl(); });
  } catch (const std::system_error& error) {  // the link's end joins those that run
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a link's threads: ", error.what()));
  }
  return link;
}

TcpCore::TcpCore(ReadySockets sockets, const LinkOptions& options, internal::Arena arena,
                 Waker waker)
    : options_(options),
      theirs_(sockets.theirs),
      arena_(std::move(arena)),
      silence_limit_(absl::ToChronoNanoseconds(
          std::max(options.heartbeat, absl::Milliseconds(sockets.theirs.heartbeat_ms())) *
          options.heartbeats_missed)),
      state_(StateConfig(sockets, options)),
      heard_ns_(Clock::now().time_since_epoch().count()),
      control_(std::move(sockets.control)),
      control_wake_(std::move(waker)) {}

Chunk TcpCore::Lend(uint32_t slot) {
  Ref();
  return Chunk(this, slot, arena_.slot(slot), arena_.slot_bytes(), MemoryKind::kHost);
}

absl::StatusOr<Chunk> TcpCore::Borrow(absl::Time deadline) {
  const Deadline until = Deadline::FromWallClock(deadline);
  std::unique_lock lock(mutex_);
  const bool ready = until.Wait(can_send_, lock,
                                [this] { return !state_.SendStatus().ok() || state_.CanBorrow(); });
  RETURN_IF_ERROR(state_.SendStatus());
  if (!ready) return state_.BorrowTimeout();
  return Lend(state_.Borrow());
}

absl::Status TcpCore::Send(Chunk chunk) {
  RETURN_IF_ERROR(
      internal::CheckSendable(OwnerOf(chunk) == this, chunk, state_.IsSendSlot(SlotOf(chunk))));
  std::unique_lock lock(mutex_);
  const absl::Status status = state_.SendStatus();
  if (!status.ok()) {
    lock.unlock();
    return status;  // the chunk's end gives the slot back
  }
  const internal::SlotChunk queued = state_.Queue(SlotOf(chunk), chunk.size(), chunk.tag());
  Release(chunk);
  Lane& lane = *lanes_[queued.sequence % lanes_.size()];
  lane.queue.push_back(queued);
  if (lane.sleeping) {
    lane.sleeping = false;
    lane.wake.Wake();
  }
  Unref();  // the lease's; never the last, since the Link is alive
  return absl::OkStatus();
}

absl::StatusOr<Chunk> TcpCore::Receive(absl::Time deadline) {
  const Deadline until = Deadline::FromWallClock(deadline);
  std::unique_lock lock(mutex_);
  std::optional<absl::StatusOr<internal::SlotChunk>> got;
  until.Wait(can_receive_, lock, [&] { return (got = state_.Receive()).has_value(); });
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

bool TcpCore::OrderlyEnd() const { return state_.closed() && state_.peer_done(); }

absl::Status TcpCore::Close(absl::Time deadline) {
  const Deadline until = Deadline::FromWallClock(deadline);
  std::unique_lock lock(mutex_);
  state_.StartClosing();
  can_send_.notify_all();
  const bool flushed =
      until.Wait(can_send_, lock, [this] { return state_.failed() || state_.flushed(); });
  if (flushed && !state_.failed() && !goodbye_sent_) {
    goodbye_sent_ = true;
    SendControl(ControlType::kGoodbye, state_.queued());
  }
  until.Wait(can_send_, lock, [this] { return state_.failed() || state_.closed(); });
  if (state_.closed()) return absl::OkStatus();
  if (state_.failed()) {
    // The peer left in order and nothing of ours was on its way: there is nothing to be sorry for.
    if (peer_gone_ && state_.peer_done() && state_.queued() == 0) return absl::OkStatus();
    return state_.error();
  }
  return state_.CloseTimeout();
}

void TcpCore::Fail(absl::Status error, bool local, bool tell) {
  const std::string text(error.message());
  const bool first = state_.Fail(std::move(error), local);
  if (first && tell && !peer_gone_) SendControl(ControlType::kCancel, 0, 0, text);
  can_send_.notify_all();
  can_receive_.notify_all();
  // The control thread cuts the sockets once the farewell is out.
  control_wake_.Wake();
  for (auto& lane : lanes_) lane->wake.Wake();
}

void TcpCore::FailUnlocked(absl::Status error, bool tell) {
  std::lock_guard lock(mutex_);
  Fail(std::move(error), /*local=*/false, tell);
}

void TcpCore::Cancel(const std::string& why) {
  std::lock_guard lock(mutex_);
  Fail(absl::CancelledError(why), /*local=*/true, /*tell=*/true);
}

absl::Status TcpCore::status() const {
  std::lock_guard lock(mutex_);
  return state_.error();
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
    if (getsockopt(lane->fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0) {
      stats.retransmits += info.tcpi_total_retrans;
    }
  }
  return stats;
}

void TcpCore::Shutdown() {
  {
    std::lock_guard lock(mutex_);
    const bool orderly = OrderlyEnd();
    Fail(absl::CancelledError("the link was destroyed"), /*local=*/true, /*tell=*/!orderly);
  }
  for (auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
  if (control_thread_.joinable()) control_thread_.join();
  // Not earlier: a lease that outlives the link keeps the memory, not the connection.
  control_ = Fd();
  for (auto& lane : lanes_) lane->fd = Fd();
}

}  // namespace tributary::transport::tcp
