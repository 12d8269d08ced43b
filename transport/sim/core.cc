// The event loop and the network model of SimCore.
#include <algorithm>
#include <cmath>
#include <utility>

#include "transport/sim_core.h"

namespace tributary::transport {
namespace {

// Every segment carries at least a header's worth of bytes, so that nothing is free.
constexpr uint64_t kLeastSegment = 64;
constexpr uint32_t kMostDoublings = 6;

int64_t Times(double ns_per_byte, uint64_t bytes) {
  return std::llround(ns_per_byte * static_cast<double>(bytes));
}

}  // namespace

SimCore::SimCore(const SimOptions& options) : options_(options), random_(options.seed) {}

void SimCore::Push(int64_t at, SimHandler* handler, uint64_t a, uint64_t b) {
  queue_.push_back({.at = at, .order = order_++, .handler = handler, .a = a, .b = b});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

void SimCore::PushOwn(int64_t at, Kind kind, uint32_t attempt, SimFlow flow, uint64_t b) {
  Push(at, nullptr,
       uint64_t{static_cast<uint8_t>(kind)} << 56 | uint64_t{attempt} << 48 |
           uint64_t{flows_[flow].generation} << 32 | flow,
       b);
}

void SimCore::After(absl::Duration delay, SimHandler* handler, uint64_t a, uint64_t b) {
  Push(now_ + std::max<int64_t>(absl::ToInt64Nanoseconds(delay), 0), handler, a, b);
}

bool SimCore::Step() {
  if (queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), Later());
  const Event event = queue_.back();
  queue_.pop_back();
  now_ = event.at;
  ++stats_.events;
  for (uint64_t word : {static_cast<uint64_t>(event.at), event.a, event.b}) {
    trace_ = (trace_ ^ word) * 0x100000001b3;
  }
  if (event.handler != nullptr) {
    event.handler->OnSimEvent(event.a, event.b);
    return true;
  }
  const SimFlow flow = static_cast<SimFlow>(event.a);
  const Kind kind = static_cast<Kind>(event.a >> 56);
  if (flows_[flow].open && flows_[flow].generation == ((event.a >> 32) & 0xffff)) {
    Fire(kind, (event.a >> 48) & 0xff, flow, event.b);
  } else if (options_.flow_control == SimFlowControl::kCredit && kind != Kind::kRequest) {
    // A closed flow's segment (it is in exactly one event) still gives back what it was granted.
    nodes_[flows_[flow].to].granted -= static_cast<int64_t>(Bytes(event.b));
    Grant(flows_[flow].to);
  }
  return true;
}

void SimCore::Fire(Kind kind, uint32_t attempt, SimFlow id, uint64_t b) {
  Flow& flow = flows_[id];
  switch (kind) {
    case Kind::kAtSwitch:
      return AtSwitch(flow, id, attempt, b);
    case Kind::kArrived:
      return Arrived(id, b);
    case Kind::kAcknowledged:
      --flow.in_flight;
      flow.window += flow.window < flow.threshold ? 1.0 : 1.0 / flow.window;
      flow.window = std::min<double>(flow.window, options_.max_window);
      return Pump(id);
    case Kind::kRetry:
      return Retry(flow, id, attempt, b);
    case Kind::kRequest:
      return Ask(id);
    case Kind::kGranted:
      return Transmit(id, 0, b);
  }
}

SimNode SimCore::AddNode(const SimNodeOptions& options) {
  Node node{};
  node.up_ns_per_byte = 1e9 / options.up_bytes_per_s;
  node.down_ns_per_byte = 1e9 / options.down_bytes_per_s;
  node.latency = absl::ToInt64Nanoseconds(options.latency);
  node.buffer =
      static_cast<int64_t>(std::max<uint64_t>(options.switch_buffer_bytes, kLeastSegment));
  node.loss = options.loss;
  nodes_.push_back(std::move(node));
  return static_cast<SimNode>(nodes_.size() - 1);
}

SimFlow SimCore::OpenFlow(SimNode from, SimNode to) {
  SimFlow id = static_cast<SimFlow>(flows_.size());
  if (free_flows_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_flows_.back();
    free_flows_.pop_back();
  }
  const uint16_t generation = static_cast<uint16_t>(flows_[id].generation + 1);
  flows_[id] = Flow{};
  flows_[id].from = from;
  flows_[id].to = to;
  flows_[id].generation = generation;
  flows_[id].open = true;
  flows_[id].window = options_.initial_window;
  flows_[id].threshold = options_.max_window;
  return id;
}

void SimCore::CloseFlow(SimFlow flow) {
  flows_[flow].open = false;
  flows_[flow].messages = {};
  flows_[flow].head = flows_[flow].cursor = 0;
  // Not reused in credit mode: segments on their way still have to give back their grants.
  if (options_.flow_control == SimFlowControl::kTcp) free_flows_.push_back(flow);
}

void SimCore::Send(SimFlow id, uint64_t bytes, SimHandler* handler, uint64_t a, uint64_t b) {
  Flow& flow = flows_[id];
  if (flow.head > 64 && flow.head * 2 > flow.messages.size()) {  // forget what has arrived
    flow.messages.erase(flow.messages.begin(),
                        flow.messages.begin() + static_cast<ptrdiff_t>(flow.head));
    flow.cursor -= flow.head;
    flow.first += flow.head;
    flow.head = 0;
  }
  flow.messages.push_back(
      {.left = std::max(bytes, kLeastSegment), .handler = handler, .a = a, .b = b});
  if (options_.flow_control == SimFlowControl::kTcp) return Pump(id);
  if (flow.asking) return;
  flow.asking = true;
  PushOwn(now_ + nodes_[flow.from].latency + nodes_[flow.to].latency, Kind::kRequest, 0, id, 0);
}

uint64_t SimCore::CutSegment(Flow& flow) {
  const Message& message = flow.messages[flow.cursor];
  const uint64_t number = flow.first + flow.cursor;
  // Segments of the cursor's message that have arrived already make `left` smaller; what is not cut
  // yet cannot have arrived, so the rest is counted from the message's full size, kept as left +
  // cut.
  const uint64_t most = std::min<uint64_t>(
      {options_.segment_bytes, static_cast<uint64_t>(nodes_[flow.to].buffer), 0x7fffff});
  const uint64_t bytes = std::min(most, message.left - flow.cut);
  flow.cut += bytes;
  if (flow.cut == message.left) {
    ++flow.cursor;
    flow.cut = 0;
  }
  return number << 24 | bytes;
}

void SimCore::Transmit(SimFlow id, uint32_t attempt, uint64_t segment) {
  const Flow& flow = flows_[id];
  Node& from = nodes_[flow.from];
  from.up_free = std::max(from.up_free, now_) + Times(from.up_ns_per_byte, Bytes(segment));
  ++(attempt == 0 ? stats_.segments : stats_.retransmits);
  PushOwn(from.up_free + from.latency, Kind::kAtSwitch, attempt, id, segment);
}

void SimCore::Pump(SimFlow id) {
  Flow& flow = flows_[id];
  while (HasMore(flow) && flow.in_flight < static_cast<uint32_t>(flow.window)) {
    ++flow.in_flight;
    Transmit(id, 0, CutSegment(flow));
  }
}

void SimCore::AtSwitch(Flow& flow, SimFlow id, uint32_t attempt, uint64_t b) {
  Node& to = nodes_[flow.to];
  const int64_t bytes = static_cast<int64_t>(Bytes(b));
  const double queued =
      static_cast<double>(std::max<int64_t>(to.down_free - now_, 0)) / to.down_ns_per_byte;
  // Half a byte of slack: the queue's length is derived from a rounded time.
  const bool full = queued + static_cast<double>(bytes) > static_cast<double>(to.buffer) + 0.5;
  const bool lost = !full && to.loss > 0 && random_.NextDouble() < to.loss;
  if (full || lost) {
    ++(full ? stats_.overflowed : stats_.lost);
    const int64_t rto = absl::ToInt64Nanoseconds(options_.rto) << std::min(attempt, kMostDoublings);
    PushOwn(now_ + rto, Kind::kRetry, std::min<uint32_t>(attempt + 1, 255), id, b);
    return;
  }
  to.down_free = std::max(to.down_free, now_) + Times(to.down_ns_per_byte, Bytes(b));
  PushOwn(to.down_free + to.latency, Kind::kArrived, 0, id, b);
}

void SimCore::Retry(Flow& flow, SimFlow id, uint32_t attempt, uint64_t b) {
  flow.threshold = std::max(flow.window / 2, 2.0);
  flow.window = 1;
  Transmit(id, attempt, b);
}

void SimCore::Arrived(SimFlow id, uint64_t b) {
  {
    Flow& flow = flows_[id];
    const size_t index = static_cast<size_t>((b >> 24) - flow.first);
    flow.messages[index].left -= Bytes(b);
    // What was cut of the message at the cursor counts from `left`, which has just become smaller.
    if (index == flow.cursor) flow.cut -= Bytes(b);
    if (options_.flow_control == SimFlowControl::kTcp) {
      const int64_t back = nodes_[flow.from].latency + nodes_[flow.to].latency;
      PushOwn(now_ + back, Kind::kAcknowledged, 0, id, 0);
    } else {
      nodes_[flow.to].granted -= static_cast<int64_t>(Bytes(b));
      Grant(flow.to);
    }
  }
  // Handlers may open, close and send: nothing is held across a call.
  while (flows_[id].open) {
    Flow& flow = flows_[id];
    if (flow.head == flow.cursor || flow.messages[flow.head].left != 0) return;
    const Message message = flow.messages[flow.head++];
    if (message.handler != nullptr) message.handler->OnSimEvent(message.a, message.b);
  }
}

void SimCore::Ask(SimFlow id) {
  Node& node = nodes_[flows_[id].to];
  node.line.push_back(uint64_t{flows_[id].generation} << 32 | id);
  Grant(flows_[id].to);
}

void SimCore::Grant(SimNode node_id) {
  Node& node = nodes_[node_id];
  while (node.line_head < node.line.size()) {
    const SimFlow id = static_cast<SimFlow>(node.line[node.line_head]);
    Flow& flow = flows_[id];
    const bool alive = flow.open && flow.generation == (node.line[node.line_head] >> 32);
    if (!alive || !HasMore(flow)) {
      if (alive) flow.asking = false;
      ++node.line_head;
      continue;
    }
    const int64_t most =
        std::min<int64_t>(static_cast<int64_t>(options_.segment_bytes), node.buffer);
    if (node.granted > 0 && node.granted + most > node.buffer) break;
    const uint64_t segment = CutSegment(flow);
    node.granted += static_cast<int64_t>(Bytes(segment));
    PushOwn(now_ + nodes_[flow.from].latency + node.latency, Kind::kGranted, 0, id, segment);
    ++node.line_head;
    if (HasMore(flow)) {
      node.line.push_back(uint64_t{flow.generation} << 32 | id);
    } else {
      flow.asking = false;
    }
  }
  if (node.line_head == node.line.size()) {
    node.line.clear();
    node.line_head = 0;
  } else if (node.line_head > 1024 && node.line_head * 2 > node.line.size()) {
    node.line.erase(node.line.begin(), node.line.begin() + static_cast<ptrdiff_t>(node.line_head));
    node.line_head = 0;
  }
}

}  // namespace tributary::transport
