// The wire of fake verbs: requests taken from queue pairs, checked, copied, completed.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/transport/fake_verbs.h"

namespace tributary::transport::roce {

void FakeVerbs::Complete(Queue& queue, const ibv_wc& completion) {
  if (queue.completions.size() >= queue.capacity) ++overflows_;
  queue.completions.push_back(completion);
  if (!queue.armed) return;
  queue.armed = false;
  static_cast<Channel*>(queue.channel)->events.push_back(&queue);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(queue.channel->fd, &one, sizeof(one));
}

void FakeVerbs::CompleteSend(Pair& pair, const Request& request, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && (request.wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc completion{};
  completion.wr_id = request.wr.wr_id;
  completion.status = status;
  completion.qp_num = pair.qp_num;
  completion.opcode = request.wr.opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
  Complete(*pair.queue, completion);
}

void FakeVerbs::Flush(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const Request& request : pair.sends) CompleteSend(pair, request, IBV_WC_WR_FLUSH_ERR);
  pair.sends.clear();
  for (const uint64_t id : pair.receives) {
    ibv_wc completion{};
    completion.wr_id = id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.qp_num = pair.qp_num;
    Complete(*pair.queue, completion);
  }
  pair.receives.clear();
}

void FakeVerbs::Break(Pair& pair, const Request& request, ibv_wc_status status) {
  if (flush_first_) Flush(pair);
  CompleteSend(pair, request, status);
  Flush(pair);
}

ibv_mr* FakeVerbs::FindRegion(uint32_t key, bool remote, uint64_t address, size_t bytes) {
  const auto it = regions_.find(key);
  if (it == regions_.end()) return nullptr;
  ibv_mr* region = it->second.get();
  const auto base = reinterpret_cast<uint64_t>(region->addr);
  if (address < base || address + bytes > base + region->length) return nullptr;
  if (remote && (region->handle & IBV_ACCESS_REMOTE_WRITE) == 0) return nullptr;
  return region;
}

FakeVerbs::Pair* FakeVerbs::PeerOf(const Pair& pair) {
  const auto it = pairs_.find(pair.peer);
  if (it == pairs_.end()) return nullptr;
  Pair* peer = it->second.get();
  return peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS ? peer : nullptr;
}

FakeVerbs::Pair* FakeVerbs::PickPair() {
  if (held_) return nullptr;
  std::vector<Pair*> with_work;
  for (const auto& [number, pair] : pairs_) {
    if (pair->state == IBV_QPS_RTS && !pair->sends.empty()) with_work.push_back(pair.get());
  }
  if (with_work.empty()) return nullptr;
  return with_work[random_() % with_work.size()];
}

void FakeVerbs::RunWire() {
  std::unique_lock lock(mutex_);
  while (true) {
    Pair* pair = nullptr;
    work_.wait(lock, [&] { return stopping_ || (pair = PickPair()) != nullptr; });
    if (stopping_) return;
    Carry(lock, *pair);
  }
}

// The payload of a write, checked as a device would. What is not IBV_WC_SUCCESS breaks the pair.
ibv_wc_status FakeVerbs::Copy(std::unique_lock<std::mutex>& lock, Pair& pair, Pair& peer,
                              const Request& request) {
  const size_t bytes = request.piece.length;
  const auto& remote = request.wr.wr.rdma;
  if (std::exchange(forget_next_key_, false) ||
      FindRegion(request.piece.lkey, false, request.piece.addr, bytes) == nullptr) {
    return IBV_WC_LOC_PROT_ERR;
  }
  if (std::exchange(refuse_next_, false) ||
      FindRegion(remote.rkey, true, remote.remote_addr, bytes) == nullptr) {
    Flush(peer);
    return IBV_WC_REM_ACCESS_ERR;
  }
  uint8_t* to = translate(remote.remote_addr);
  const uint8_t* from = translate(request.piece.addr);
  // Outside the lock, as hardware has none; nobody may look before the completion.
  const size_t head = split_ ? bytes / 2 : 0;
  busy_pair_ = pair.qp_num;
  lock.unlock();
  std::memcpy(to + head, from + head, bytes - head);
  if (head > 0) {
    std::this_thread::yield();
    std::memcpy(to, from, head);
  }
  lock.lock();
  ++landed_;
  work_.wait(lock, [&] { return stopping_ || !completions_held_; });
  busy_pair_ = 0;
  idle_.notify_all();
  return pair.state == IBV_QPS_RTS ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR;
}

void FakeVerbs::CompleteReceive(Pair& peer, const ibv_send_wr& sent, size_t bytes) {
  ibv_wc completion{};
  completion.wr_id = peer.receives.front();
  peer.receives.pop_front();
  completion.status = IBV_WC_SUCCESS;
  completion.qp_num = peer.qp_num;
  completion.opcode = sent.opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  completion.byte_len = static_cast<uint32_t>(bytes);
  completion.imm_data = sent.imm_data;
  completion.wc_flags = IBV_WC_WITH_IMM;
  Complete(*peer.queue, completion);
}

// The oldest request of a pair: checked as a device would, copied, completed on both sides.
void FakeVerbs::Carry(std::unique_lock<std::mutex>& lock, Pair& pair) {
  const Request request = pair.sends.front();
  pair.sends.pop_front();
  const size_t bytes = request.has_piece ? request.piece.length : 0;
  const bool immediate = request.wr.opcode != IBV_WR_RDMA_WRITE;
  Pair* peer = PeerOf(pair);
  const bool lost = drop_larger_than_ != 0 && bytes > drop_larger_than_;
  if (peer == nullptr || lost) return Break(pair, request, IBV_WC_RETRY_EXC_ERR);
  const bool hidden = bytes > 0 && std::exchange(no_next_receive_, false);
  if (immediate && (peer->receives.empty() || hidden)) {
    ++receiver_not_ready_;
    return Break(pair, request, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  if (bytes > 0) {
    const ibv_wc_status status = Copy(lock, pair, *peer, request);
    if (status == IBV_WC_WR_FLUSH_ERR) return CompleteSend(pair, request, status);
    if (status != IBV_WC_SUCCESS) return Break(pair, request, status);
    peer = PeerOf(pair);  // it may have gone meanwhile
    if (peer == nullptr) return Break(pair, request, IBV_WC_RETRY_EXC_ERR);
  }
  if (immediate) CompleteReceive(*peer, request.wr, bytes);
  CompleteSend(pair, request, IBV_WC_SUCCESS);
}

int FakeVerbs::PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  std::lock_guard lock(mutex_);
  auto& pair = *static_cast<Pair*>(qp);
  *bad = request;
  if (Fails("PostSend")) return errno;
  if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) return EINVAL;
  if (pair.sends.size() >= pair.cap.max_send_wr) return ENOMEM;
  Request copy;
  copy.wr = *request;
  copy.has_piece = request->num_sge == 1;
  if (copy.has_piece) copy.piece = *request->sg_list;
  ++sent_;
  if ((request->send_flags & IBV_SEND_SIGNALED) != 0) ++signalled_;
  if (posted_.size() < kKeptPosts) {
    posted_.push_back({qp->qp_num, request->opcode, be32toh(request->imm_data)});
  }
  if (pair.state == IBV_QPS_ERR) {
    CompleteSend(pair, copy, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  pair.sends.push_back(copy);
  work_.notify_all();
  return 0;
}

int FakeVerbs::PostRecv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  std::lock_guard lock(mutex_);
  auto& pair = *static_cast<Pair*>(qp);
  *bad = request;
  if (Fails("PostRecv")) return errno;
  if (pair.state == IBV_QPS_RESET) return EINVAL;
  if (pair.receives.size() >= pair.cap.max_recv_wr) return ENOMEM;
  pair.receives.push_back(request->wr_id);
  if (pair.state == IBV_QPS_ERR) Flush(pair);
  return 0;
}

}  // namespace tributary::transport::roce
