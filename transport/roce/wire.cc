// Creates, connects and tears down the verbs half of a link.
#include "transport/roce/wire.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::roce {
namespace {

std::string PeerGidText(const ibv_gid& gid) {
  rdma::Gid bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return rdma::GidText(bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Wire>> Wire::Create(std::shared_ptr<RoceDevice> device,
                                                   const WireRequest& request,
                                                   const RoceOptions& options) {
  std::unique_ptr<Wire> wire(new Wire(std::move(device), request, options));
  const absl::Status status = wire->SetUp();
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("RDMA device ", wire->device_->name()));
  }
  return wire;
}

Wire::~Wire() {
  TearDown();
  request_.share->Return(arena(), slots_, kHeaderRoom + request_.chunk_bytes);
}

absl::Status Wire::SetUp() {
  RETURN_IF_ERROR(CheckPort());
  RETURN_IF_ERROR(Plan());
  ASSIGN_OR_RETURN(
      slots_, request_.share->Take(arena(), 2 * plan_.slots, kHeaderRoom + request_.chunk_bytes));
  return CreateQueues();
}

absl::Status Wire::CheckPort() {
  ASSIGN_OR_RETURN(port_, device_->Port(static_cast<uint8_t>(request_.place.port)));
  route_.port = static_cast<uint8_t>(request_.place.port);
  route_.gid_index = request_.place.gid.index;
  route_.infiniband = port_.link_layer == IBV_LINK_LAYER_INFINIBAND;
  route_.mtu_bytes = MtuBytes(port_.active_mtu);
  if (options_.path_mtu != 0) route_.mtu_bytes = std::min(route_.mtu_bytes, options_.path_mtu);
  const size_t message = kHeaderRoom + request_.chunk_bytes;
  if (port_.max_msg_sz < message) {
    return absl::FailedPreconditionError(
        absl::StrCat("port ", route_.port, " sends at most ", port_.max_msg_sz,
                     " bytes in a message, a chunk takes ", message, "; lower chunk_bytes"));
  }
  return absl::OkStatus();
}

absl::Status Wire::Plan() {
  const ibv_device_attr& has = device_->attributes();
  const QueueLimits limits{.queue_requests = static_cast<uint32_t>(std::max(has.max_qp_wr, 0)),
                           .completions = static_cast<uint32_t>(std::max(has.max_cqe, 0))};
  ASSIGN_OR_RETURN(plan_,
                   PlanQueues(request_.slots, request_.peer_slots, request_.queue_pairs, limits));
  if (plan_.slots < request_.slots || plan_.grant_room < request_.peer_slots) {
    spdlog::warn(
        "RDMA device {} grants {} requests a queue and {} completions: links have {} slots instead "
        "of "
        "{} and room for {} of the peer's {}",
        device_->name(), limits.queue_requests, limits.completions, plan_.slots, request_.slots,
        plan_.grant_room, request_.peer_slots);
  }
  return absl::OkStatus();
}

absl::Status Wire::CreateQueues() {
  VerbsApi& api = device_->api();
  channel_ = api.CreateCompChannel(device_->context());
  if (channel_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a completion channel: ", std::strerror(errno)));
  }
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return tcp::ErrnoStatus("a completion channel's fcntl", errno);
  }
  cq_ = api.CreateCq(device_->context(), static_cast<int>(plan_.completions), channel_);
  if (cq_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a completion queue of ", plan_.completions,
                     " entries: ", std::strerror(errno), "; lower the link's slots or lanes"));
  }
  for (uint32_t i = 0; i < request_.queue_pairs; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> made,
                     QueuePair::Create(api, device_->pd(), cq_, i, plan_.depths, route_.port));
    queue_pairs_.push_back(std::move(made));
    // Not in Create: a pair that is given up half-filled is torn down like the others.
    for (uint32_t r = 0; r < plan_.depths.receive; ++r) {
      RETURN_IF_ERROR(queue_pairs_.back()->PostReceive());
    }
  }
  return absl::OkStatus();
}

v1::RoceEndpoint Wire::endpoint() const {
  v1::RoceEndpoint ours;
  ours.set_gid(request_.place.gid.gid.data(), request_.place.gid.gid.size());
  ours.set_lid(port_.lid);
  ours.set_infiniband(route_.infiniband);
  ours.set_mtu(route_.mtu_bytes);
  for (const auto& pair : queue_pairs_) {
    ours.add_queue_pair(pair->number());
    ours.add_psn(pair->first_psn());
  }
  for (uint32_t i = plan_.slots; i < 2 * plan_.slots; ++i) {
    ours.add_slot_address(slots_[i].wire);
    ours.add_slot_key(slots_[i].remote_key);
  }
  ours.set_grant_room(plan_.grant_room);
  return ours;
}

absl::Status Wire::Connect(const v1::RoceEndpoint& theirs) {
  theirs_ = theirs;
  std::memcpy(route_.peer_gid.raw, theirs.gid().data(), sizeof(route_.peer_gid.raw));
  route_.peer_lid = static_cast<uint16_t>(theirs.lid());
  route_.mtu_bytes = std::min(route_.mtu_bytes, theirs.mtu());
  // Both sides conclude the same: what one has room to hear of, the other uses.
  receive_slots_ = std::min(plan_.slots, theirs.grant_room());
  peer_slots_ = std::min(static_cast<uint32_t>(theirs.slot_address_size()), plan_.grant_room);
  for (const auto& pair : queue_pairs_) {
    const int i = static_cast<int>(pair->index());
    RETURN_IF_ERROR(pair->Connect(route_, options_, theirs.queue_pair(i), theirs.psn(i)));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Wire::Poll(absl::Span<ibv_wc> completions) {
  const int n =
      device_->api().PollCq(cq_, static_cast<int>(completions.size()), completions.data());
  if (n < 0) {
    return absl::InternalError(
        absl::StrCat("RDMA device ", device_->name(), ": the completion queue cannot be polled"));
  }
  return static_cast<size_t>(n);
}

absl::Status Wire::Arm() {
  if (const int error = device_->api().ReqNotifyCq(cq_); error != 0) {
    return absl::InternalError(absl::StrCat("RDMA device ", device_->name(),
                                            ": no completion events: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

void Wire::AckEvents() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  // The descriptor does not block: the loop ends when no event is left.
  while (device_->api().GetCqEvent(channel_, &cq, &context) == 0) {
    device_->api().AckCqEvents(cq, 1);
  }
}

void Wire::Account(const ibv_wc& completion) {
  QueuePair& pair = *queue_pairs_[QueuePair::IndexOf(completion.wr_id)];
  if (QueuePair::IsReceive(completion.wr_id)) return pair.OnReceived();
  pair.OnSent(completion.wr_id, [](const SentRequest&) {});
}

bool Wire::Drained() const {
  return std::all_of(queue_pairs_.begin(), queue_pairs_.end(),
                     [](const auto& pair) { return pair->Accounted(); });
}

void Wire::Drain(absl::Duration patience) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(patience);
  ibv_wc completions[16];
  while (!Drained()) {
    if (!Arm().ok()) return;
    const absl::StatusOr<size_t> n = Poll(absl::MakeSpan(completions));
    if (!n.ok()) return;
    for (size_t i = 0; i < *n; ++i) Account(completions[i]);
    if (*n > 0) continue;
    if (std::chrono::steady_clock::now() >= until) break;
    pollfd entry{.fd = channel_->fd, .events = POLLIN, .revents = 0};
    poll(&entry, 1, 100);
    AckEvents();
  }
  uint64_t left = 0;
  for (const auto& pair : queue_pairs_) left += pair->unaccounted();
  if (left > 0) {
    spdlog::error("RDMA device {}: {} requests of a link were not given back within {}",
                  device_->name(), left, absl::FormatDuration(patience));
  }
}

void Wire::TearDown(absl::Duration patience) {
  if (torn_down_) return;
  torn_down_ = true;
  for (const auto& pair : queue_pairs_) {
    pair->ToError();
    pair->PostMarker();
  }
  Drain(patience);
  queue_pairs_.clear();
  if (channel_ != nullptr) AckEvents();
  if (cq_ != nullptr) device_->api().DestroyCq(cq_);
  if (channel_ != nullptr) device_->api().DestroyCompChannel(channel_);
  cq_ = nullptr;
  channel_ = nullptr;
}

std::string Wire::description() const {
  return absl::StrCat("RDMA device ", device_->name(), " port ", route_.port, " GID ",
                      rdma::GidText(request_.place.gid.gid), " (index ", route_.gid_index, "; ",
                      request_.place.why, ") to ", PeerGidText(route_.peer_gid), ", ",
                      queue_pairs_.size(), " queue pair(s), MTU ", route_.mtu_bytes, ", ",
                      plan_.slots, "/", peer_slots_, " slots");
}

}  // namespace tributary::transport::roce
