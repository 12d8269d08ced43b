// Brings queue pairs up and down, and posts to them.
#include "transport/roce/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"

namespace tributary::transport::roce {
namespace {

constexpr uint64_t kReceive = uint64_t{1} << 63;
// 0.64 ms. A receiver is never not ready by our protocol: this is for a broken one.
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint8_t kRnrRetries = 3;  // 7 would mean for ever

uint64_t IdBase(uint32_t index) { return uint64_t{index} << 56; }

ibv_mtu MtuCode(uint32_t bytes) {
  uint32_t code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (uint32_t{128} << (code + 1)) <= bytes) ++code;
  return static_cast<ibv_mtu>(code);
}

// The exponent n, 1..31, of the least 4.096 µs × 2^n that is not below `wait`.
uint8_t TimeoutCode(absl::Duration wait) {
  uint8_t code = 1;
  while (code < 31 && absl::Nanoseconds(4096) * std::exp2(code) < wait) ++code;
  return code;
}

}  // namespace

uint32_t MtuBytes(ibv_mtu mtu) { return uint32_t{128} << mtu; }

bool IsMtu(uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

QueuePair::QueuePair(VerbsApi& api, uint32_t index)
    : api_(api),
      index_(index),
      first_psn_(static_cast<uint32_t>(internal::RandomEpoch()) & 0xffffff) {}

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(VerbsApi& api, ibv_pd* pd, ibv_cq* cq,
                                                             uint32_t index, const Depths& depths,
                                                             uint8_t port) {
  std::unique_ptr<QueuePair> made(new QueuePair(api, index));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = cq;
  attributes.recv_cq = cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = depths.send;
  attributes.cap.max_recv_wr = depths.receive;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  made->qp_ = api.CreateQp(pd, &attributes);
  if (made->qp_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot create queue pair ", index, " with queues of ", depths.send, " and ",
        depths.receive, " requests: ", std::strerror(errno), "; lower the link's slots or lanes"));
  }
  RETURN_IF_ERROR(made->ToInit(port));
  return made;
}

QueuePair::~QueuePair() {
  if (qp_ != nullptr) api_.DestroyQp(qp_);
}

absl::Status QueuePair::Modify(ibv_qp_attr& attributes, int mask, const char* state) {
  const int error = api_.ModifyQp(qp_, &attributes, mask);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("queue pair ", index_, " does not become ", state, ": ", std::strerror(error)));
}

absl::Status QueuePair::ToInit(uint8_t port) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "initialised");
}

absl::Status QueuePair::Connect(const Route& route, const RoceOptions& options,
                                uint32_t peer_number, uint32_t peer_psn) {
  peer_number_ = peer_number;
  RETURN_IF_ERROR(ToReceive(route, options, peer_number, peer_psn));
  return ToSend(options);
}

absl::Status QueuePair::ToReceive(const Route& route, const RoceOptions& options,
                                  uint32_t peer_number, uint32_t peer_psn) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = MtuCode(route.mtu_bytes);
  attributes.dest_qp_num = peer_number;
  attributes.rq_psn = peer_psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kMinRnrTimer;
  ibv_ah_attr& way = attributes.ah_attr;
  way.port_num = route.port;
  way.sl = static_cast<uint8_t>(options.service_level);
  way.dlid = route.peer_lid;
  // RoCE has nothing but global routes; InfiniBand within a subnet goes by LID.
  way.is_global = route.infiniband ? 0 : 1;
  way.grh.dgid = route.peer_gid;
  way.grh.sgid_index = static_cast<uint8_t>(route.gid_index);
  way.grh.hop_limit = static_cast<uint8_t>(options.hop_limit);
  way.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
  return Modify(attributes,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "ready to receive");
}

absl::Status QueuePair::ToSend(const RoceOptions& options) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = TimeoutCode(options.ack_timeout);
  attributes.retry_cnt = static_cast<uint8_t>(options.retries);
  attributes.rnr_retry = kRnrRetries;
  attributes.sq_psn = first_psn_;
  attributes.max_rd_atomic = 1;
  return Modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
}

void QueuePair::ToError() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  api_.ModifyQp(qp_, &attributes, IBV_QP_STATE);  // fails where it is in that state, which is well
}

absl::Status QueuePair::PostReceive() {
  // No buffer: payload goes into slots by address, and the rest is in the immediate.
  ibv_recv_wr request{};
  request.wr_id = kReceive | IdBase(index_);
  ibv_recv_wr* bad = nullptr;
  if (const int error = api_.PostRecv(qp_, &request, &bad); error != 0) {
    return absl::InternalError(
        absl::StrCat("queue pair ", index_, " takes no receive request: ", std::strerror(error)));
  }
  ++posted_receives_;
  return absl::OkStatus();
}

absl::Status QueuePair::Post(ibv_send_wr& request, bool signalled, const SentRequest& what) {
  request.wr_id = IdBase(index_) | (first_in_flight_ + in_flight_.size());
  request.send_flags = signalled ? static_cast<unsigned int>(IBV_SEND_SIGNALED) : 0;
  ibv_send_wr* bad = nullptr;
  if (const int error = api_.PostSend(qp_, &request, &bad); error != 0) {
    return absl::InternalError(absl::StrCat("queue pair ", index_, " takes no send request with ",
                                            in_flight_.size(),
                                            " under way: ", std::strerror(error)));
  }
  in_flight_.push_back(what);
  unsignalled_ = signalled ? 0 : unsignalled_ + 1;
  return absl::OkStatus();
}

absl::Status QueuePair::PostWrite(const Write& write, uint32_t immediate, bool signalled,
                                  const SentRequest& what) {
  ibv_sge piece{
      .addr = write.from, .length = static_cast<uint32_t>(write.bytes), .lkey = write.local_key};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htobe32(immediate);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = write.to;
  request.wr.rdma.rkey = write.remote_key;
  return Post(request, signalled, what);
}

absl::Status QueuePair::PostGrant(uint32_t immediate, bool signalled) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htobe32(immediate);
  return Post(request, signalled, {.kind = SentRequest::Kind::kGrant, .chunk = {}});
}

absl::Status QueuePair::PostEmpty(SentRequest::Kind kind) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  return Post(request, /*signalled=*/true, {.kind = kind, .chunk = {}});
}

}  // namespace tributary::transport::roce
