// A simulated network as a queue of events: virtual time, no threads, the same run for the same
// seed.
//
// Model: every node hangs on one switch by a link of a given rate and latency. A message is cut
// into segments; a segment leaves by its node's uplink (a queue without limit: the sender's own
// memory), reaches the switch a latency later, waits there for the receiver's downlink in a buffer
// of finite size, and arrives a latency after it was served. Two ways to control a flow:
// - kTcp: a window that starts at ten segments, doubles every round trip, then grows by one; a
// segment
//   that finds the buffer full (incast) or is lost by chance is sent again after the retransmission
//   time-out, doubled each time, and the window falls to one. No fast retransmit, no SACK, no
//   pacing: a coarse upper bound on the harm that incast does to TCP.
// - kCredit: a receiver grants segments, in turn to all flows that asked, so that what is on its
// way
//   to it always fits into the switch's buffer: nothing is ever dropped for want of room.
// An event costs some tens of nanoseconds and 40 bytes, a flow about 150 bytes: meant for 100,000
// nodes. Not thread-safe; transport/sim.h puts threads and the Link interface on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "base/philox.h"

namespace tributary::transport {

// Called back by events. Outlives what it scheduled.
class SimHandler {
 public:
  virtual ~SimHandler() = default;
  virtual void OnSimEvent(uint64_t a, uint64_t b) = 0;
};

enum class SimFlowControl { kTcp, kCredit };

struct SimOptions {
  uint64_t seed = 1;
  SimFlowControl flow_control = SimFlowControl::kCredit;
  size_t segment_bytes = size_t{64} << 10;       // 1 .. 2^23
  absl::Duration rto = absl::Milliseconds(200);  // the first; doubled up to 64-fold
  uint32_t initial_window = 10;                  // kTcp, segments
  uint32_t max_window = 64;                      // kTcp, segments
};

struct SimNodeOptions {
  double up_bytes_per_s = 1.25e9;  // 10 Gbit/s
  double down_bytes_per_s = 1.25e9;
  absl::Duration latency = absl::Microseconds(10);  // between node and switch, each way
  size_t switch_buffer_bytes = size_t{512} << 10;   // of the switch's port to this node
  double loss = 0;  // chance that a segment to this node is lost, [0, 1)
};

using SimNode = uint32_t;
using SimFlow = uint32_t;

struct SimStats {
  uint64_t events = 0;
  uint64_t segments = 0;    // sent for the first time
  uint64_t overflowed = 0;  // segments dropped since a switch buffer was full
  uint64_t lost = 0;        // dropped by chance
  uint64_t retransmits = 0;
};

class SimCore {
 public:
  explicit SimCore(const SimOptions& options);

  absl::Duration now() const { return absl::Nanoseconds(now_); }
  // Calls `handler` with (a, b) after `delay` (at least 0); events at one instant fire in the order
  // of their making.
  void After(absl::Duration delay, SimHandler* handler, uint64_t a, uint64_t b);
  // Fires the earliest event; false where there is none.
  bool Step();
  void Run() {
    while (Step()) {
    }
  }

  SimNode AddNode(const SimNodeOptions& options);
  absl::Duration latency(SimNode from, SimNode to) const {
    return absl::Nanoseconds(nodes_[from].latency + nodes_[to].latency);
  }
  SimFlow OpenFlow(SimNode from, SimNode to);
  // Forgets the flow and what is on its way in it: no handler of it is called any more.
  void CloseFlow(SimFlow flow);
  // Calls `handler` with (a, b) when all of the message has arrived, and all sent before it.
  void Send(SimFlow flow, uint64_t bytes, SimHandler* handler, uint64_t a, uint64_t b);

  const SimStats& stats() const { return stats_; }
  // A digest of every event fired so far, its time and what it was: equal for equal runs.
  uint64_t trace() const { return trace_; }

 private:
  enum class Kind : uint8_t { kAtSwitch = 1, kArrived, kAcknowledged, kRetry, kRequest, kGranted };
  struct Event {
    int64_t at;
    uint64_t order;
    SimHandler* handler;  // null: one of ours, `a` says which
    uint64_t a;
    uint64_t b;
  };
  struct Later {
    bool operator()(const Event& x, const Event& y) const {
      return x.at != y.at ? x.at > y.at : x.order > y.order;
    }
  };
  struct Message {
    uint64_t left;  // bytes not yet arrived
    SimHandler* handler;
    uint64_t a;
    uint64_t b;
  };
  struct Flow {
    SimNode from = 0;
    SimNode to = 0;
    uint16_t generation = 0;  // a reopened id ignores events of its former life
    bool open = false;
    bool asking = false;     // kCredit: stands in the receiver's line
    uint64_t first = 0;      // number of messages[head]
    size_t head = 0;         // messages before it have arrived
    size_t cursor = 0;       // the message being cut into segments
    uint64_t cut = 0;        // bytes of it already cut
    uint32_t in_flight = 0;  // kTcp, segments
    double window = 0;
    double threshold = 0;
    std::vector<Message> messages;
  };
  struct Node {
    double up_ns_per_byte;
    double down_ns_per_byte;
    int64_t latency;
    int64_t buffer;
    double loss;
    int64_t up_free = 0;  // when the uplink has served all that is queued
    int64_t down_free = 0;
    int64_t granted = 0;  // kCredit: bytes granted and not yet arrived
    size_t line_head = 0;
    std::vector<uint64_t> line;  // kCredit: flows (with generation) that have something to send
  };

  void Push(int64_t at, SimHandler* handler, uint64_t a, uint64_t b);
  void PushOwn(int64_t at, Kind kind, uint32_t attempt, SimFlow flow, uint64_t b);
  void Fire(Kind kind, uint32_t attempt, SimFlow id, uint64_t b);
  void AtSwitch(Flow& flow, SimFlow id, uint32_t attempt, uint64_t b);
  void Arrived(SimFlow id, uint64_t b);
  void Pump(SimFlow id);   // kTcp: fills the window
  void Ask(SimFlow id);    // kCredit: joins the receiver's line
  void Grant(SimNode id);  // kCredit: serves the line
  void Retry(Flow& flow, SimFlow id, uint32_t attempt, uint64_t b);
  bool HasMore(const Flow& flow) const { return flow.cursor < flow.messages.size(); }
  uint64_t CutSegment(Flow& flow);  // packed: message number and bytes
  void Transmit(SimFlow id, uint32_t attempt, uint64_t segment);
  static uint64_t Bytes(uint64_t segment) { return segment & 0xffffff; }

  const SimOptions options_;
  int64_t now_ = 0;
  uint64_t order_ = 0;
  std::vector<Event> queue_;  // a heap
  std::vector<Node> nodes_;
  std::vector<Flow> flows_;
  std::vector<SimFlow> free_flows_;
  PhiloxStream random_;
  SimStats stats_;
  uint64_t trace_ = 0xcbf29ce484222325;
};

}  // namespace tributary::transport
