// The nodes of a simulated run, and what is between them.
#include "simulate/internal/network.h"

#include <algorithm>

#include "absl/time/time.h"

namespace tributary::simulate {
namespace {

// Larger than production's chunk: the model of a flow needs some thousand segments, not a million.
constexpr size_t kMostSegments = 512;

size_t SegmentBytes(const Config& config) {
  const auto bytes = static_cast<size_t>(static_cast<double>(config.parameters) *
                                         std::max(config.partial_bytes_per_parameter, 4.0));
  return std::clamp<size_t>(bytes / kMostSegments, 16 << 10,
                            std::min<size_t>(config.root.switch_buffer_bytes, 8 << 20) / 8 + 8192);
}

}  // namespace

transport::SimOptions NetworkOptions(const Config& config, const std::string& transport) {
  transport::SimOptions options;
  options.seed = config.seed;
  options.flow_control =
      transport == "tcp" ? transport::SimFlowControl::kTcp : transport::SimFlowControl::kCredit;
  options.segment_bytes = SegmentBytes(config);
  return options;
}

std::vector<RackPlace> AddNodes(const Config& config, uint64_t clients, transport::SimCore* core) {
  transport::SimNodeOptions link;
  link.up_bytes_per_s = link.down_bytes_per_s = config.root.down_bytes_per_s;  // full duplex
  link.latency = absl::Seconds(config.racks.latency_s);
  link.switch_buffer_bytes = config.root.switch_buffer_bytes;
  link.loss = config.root.loss;
  const transport::SimNode root = core->AddNode(link);
  link.up_bytes_per_s = link.down_bytes_per_s = config.racks.uplink_bytes_per_s;
  const uint64_t count = config.racks.count;
  std::vector<RackPlace> places(count);
  for (uint64_t r = 0; r < count; ++r) {
    places[r].first = static_cast<uint32_t>(clients * r / count);
    places[r].end = static_cast<uint32_t>(clients * (r + 1) / count);
    const transport::SimNode rack = core->AddNode(link);
    places[r].up = core->OpenFlow(rack, root);
    places[r].down = core->OpenFlow(root, rack);
  }
  return places;
}

}  // namespace tributary::simulate
