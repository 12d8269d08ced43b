// INIT → RTR → RTS on both queue pairs, then writes with a window.
#include "doctor/internal/self_test.h"

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"

namespace tributary::doctor::internal {
namespace {

constexpr uint32_t kWriteBytes = 64 << 10;
constexpr uint64_t kWrites = 256;
constexpr uint64_t kWindow = 16;  // writes under way; every one is signalled

// Takes objects apart in the reverse of the order they were made in.
class Undo {
 public:
  ~Undo() {
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) (*step)();
  }
  void Push(std::function<void()> step) { steps_.push_back(std::move(step)); }

 private:
  std::vector<std::function<void()>> steps_;
};

absl::Status Failed(const char* step) {
  const int error = errno;
  return absl::Status(error == 0 ? absl::StatusCode::kUnknown : absl::ErrnoToStatusCode(error),
                      absl::StrCat(step, ": ", strerror(error)));
}

class SelfTest {
 public:
  SelfTest(const VerbsTable& verbs, ibv_context* context, const RdmaPort& port,
           const transport::rdma::GidEntry& gid)
      : verbs_(verbs), context_(context), port_(port), gid_(gid) {}

  absl::Status Prepare();
  absl::StatusOr<SelfTestResult> Write(absl::Duration limit);

 private:
  absl::StatusOr<ibv_qp*> MakeQueuePair();
  absl::Status Join(ibv_qp* from, ibv_qp* to);
  absl::Status Post(uint64_t id);
  absl::StatusOr<uint64_t> Poll();

  const VerbsTable& verbs_;
  ibv_context* context_;
  const RdmaPort& port_;
  const transport::rdma::GidEntry& gid_;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(2 * kWriteBytes);
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* sender_ = nullptr;
  Undo undo_;  // last: it runs while all of the above are alive
};

absl::Status SelfTest::Prepare() {
  errno = 0;
  pd_ = verbs_.alloc_pd(context_);
  if (pd_ == nullptr) return Failed("ibv_alloc_pd");
  undo_.Push([this] { verbs_.dealloc_pd(pd_); });
  mr_ = verbs_.reg_mr(pd_, memory_.data(), memory_.size(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (mr_ == nullptr) return Failed("ibv_reg_mr of 128 KiB");
  undo_.Push([this] { verbs_.dereg_mr(mr_); });
  cq_ = verbs_.create_cq(context_, 2 * kWindow, nullptr, nullptr, 0);
  if (cq_ == nullptr) return Failed("ibv_create_cq");
  undo_.Push([this] { verbs_.destroy_cq(cq_); });
  ASSIGN_OR_RETURN(sender_, MakeQueuePair());
  ASSIGN_OR_RETURN(ibv_qp* const receiver, MakeQueuePair());
  RETURN_IF_ERROR(Join(sender_, receiver));
  return Join(receiver, sender_);
}

absl::StatusOr<ibv_qp*> SelfTest::MakeQueuePair() {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = cq_;
  attributes.recv_cq = cq_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = kWindow,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  ibv_qp* qp = verbs_.create_qp(pd_, &attributes);
  if (qp == nullptr) return Failed("ibv_create_qp");
  undo_.Push([this, qp] { verbs_.destroy_qp(qp); });
  return qp;
}

absl::Status SelfTest::Join(ibv_qp* from, ibv_qp* to) {
  const auto modify = [&](const char* step, ibv_qp_attr attributes, int mask) {
    errno = verbs_.modify_qp(from, &attributes, mask);
    return errno == 0 ? absl::OkStatus() : Failed(step);
  };
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = static_cast<uint8_t>(port_.number);
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  RETURN_IF_ERROR(modify("queue pair to INIT", init,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  ibv_qp_attr ready{};
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = IBV_MTU_1024;  // that every port can do
  ready.dest_qp_num = to->qp_num;
  ready.max_dest_rd_atomic = 1;
  ready.min_rnr_timer = 12;  // 0.64 ms
  ready.ah_attr.port_num = static_cast<uint8_t>(port_.number);
  ready.ah_attr.dlid = port_.lid;
  ready.ah_attr.is_global = port_.link_layer == transport::rdma::LinkLayer::kInfiniband ? 0 : 1;
  std::memcpy(ready.ah_attr.grh.dgid.raw, gid_.gid.data(), gid_.gid.size());
  ready.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_.index);
  ready.ah_attr.grh.hop_limit = 64;
  RETURN_IF_ERROR(modify("queue pair to RTR (ready to receive)", ready,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  // 0.54 s until a packet is sent again: rxe lets this timer fire in the midst of good traffic, and
  // what it then counts as a retry would look like loss.
  send.timeout = 17;
  send.retry_cnt = 7;
  send.rnr_retry = 6;
  send.max_rd_atomic = 1;
  return modify("queue pair to RTS (ready to send)", send,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

absl::Status SelfTest::Post(uint64_t id) {
  ibv_sge piece = {
      .addr = reinterpret_cast<uint64_t>(memory_.data()), .length = kWriteBytes, .lkey = mr_->lkey};
  ibv_send_wr request{};
  request.wr_id = id;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(memory_.data() + kWriteBytes);
  request.wr.rdma.rkey = mr_->rkey;
  ibv_send_wr* refused = nullptr;
  errno = context_->ops.post_send(sender_, &request, &refused);
  return errno == 0 ? absl::OkStatus() : Failed("ibv_post_send");
}

// How many writes have completed since the last call.
absl::StatusOr<uint64_t> SelfTest::Poll() {
  ibv_wc done[kWindow];
  const int n = context_->ops.poll_cq(cq_, kWindow, done);
  if (n < 0) return absl::InternalError("ibv_poll_cq failed");
  for (int i = 0; i < n; ++i) {
    if (done[i].status == IBV_WC_SUCCESS) continue;
    return absl::UnavailableError(absl::StrCat("a write to itself ended with completion status ",
                                               static_cast<int>(done[i].status), ", vendor error ",
                                               done[i].vendor_err));
  }
  return static_cast<uint64_t>(n);
}

absl::StatusOr<SelfTestResult> SelfTest::Write(absl::Duration limit) {
  for (uint32_t i = 0; i < kWriteBytes; ++i) memory_[i] = static_cast<uint8_t>(i * 31 + 7);
  const Deadline::Clock::time_point start = Deadline::Clock::now();
  const Deadline end = Deadline::After(limit);
  uint64_t posted = 0, finished = 0;
  while (finished < kWrites) {
    while (posted < kWrites && posted - finished < kWindow && !end.Expired()) {
      RETURN_IF_ERROR(Post(posted));
      ++posted;
    }
    ASSIGN_OR_RETURN(const uint64_t done, Poll());
    finished += done;
    if (!end.Expired()) continue;
    if (finished == 0)
      return absl::DeadlineExceededError(
          absl::StrCat("no write to itself completed within ", absl::FormatDuration(limit)));
    break;
  }
  const absl::Duration took = absl::FromChrono(Deadline::Clock::now() - start);
  // What is still under way is flushed when the queue pair is destroyed.
  if (std::memcmp(memory_.data(), memory_.data() + kWriteBytes, kWriteBytes) != 0)
    return absl::DataLossError("what arrived is not what was written");
  return SelfTestResult{finished * kWriteBytes, took};
}

}  // namespace

absl::StatusOr<SelfTestResult> RunSelfTest(const VerbsTable& verbs, ibv_context* context,
                                           const RdmaPort& port,
                                           const transport::rdma::GidEntry& gid,
                                           absl::Duration limit) {
  SelfTest test(verbs, context, port, gid);
  RETURN_IF_ERROR(test.Prepare());
  return test.Write(limit);
}

}  // namespace tributary::doctor::internal
