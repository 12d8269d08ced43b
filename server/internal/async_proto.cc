// Asynchronous runs: conversions.
#include "server/internal/async_proto.h"

#include <cmath>

namespace tributary::server {

using aggregation::BufferClosedBy;
using aggregation::Contribution;

ContributionProtos ToProto(const std::vector<Contribution>& contributions) {
  ContributionProtos out;
  out.Reserve(static_cast<int>(contributions.size()));
  for (const Contribution& c : contributions) {
    v1::Contribution* proto = out.Add();
    proto->set_id(c.id);
    proto->set_base_version(c.base);
    proto->set_staleness(c.staleness);
    proto->set_weight(c.weight);
  }
  return out;
}

std::vector<Contribution> FromProto(const ContributionProtos& protos) {
  std::vector<Contribution> out;
  out.reserve(static_cast<size_t>(protos.size()));
  for (const v1::Contribution& c : protos)
    out.push_back({c.id(), c.base_version(), c.staleness(), c.weight()});
  return out;
}

v1::Asynchronous AsyncProto(const Config& config) {
  const AsyncConfig& a = config.asynchronous;
  v1::Asynchronous out;
  out.set_max_staleness(a.max_staleness);
  out.set_concurrency(a.concurrency);
  out.set_buffer(a.buffer);
  out.set_flush_ms(static_cast<uint64_t>(a.flush_s * 1000));
  out.set_collect_ms(static_cast<uint64_t>(a.collect_s * 1000));
  if (config.aggregation.mode == "fedasync") out.set_mixing(a.mixing);
  return out;
}

aggregation::AsyncPlan AsyncPlanOf(const v1::RoundSpec& spec, const aggregation::Grid& grid) {
  const v1::Asynchronous& a = spec.asynchronous();
  aggregation::AsyncPlan plan;
  plan.buffer = a.buffer();
  plan.max_staleness = a.max_staleness();
  plan.concurrency = a.concurrency();
  plan.flush_after = a.flush_ms() > 0 ? absl::Milliseconds(static_cast<int64_t>(a.flush_ms()))
                                      : absl::InfiniteDuration();
  plan.collect_within = absl::Milliseconds(static_cast<int64_t>(a.collect_ms()));
  plan.task_limit = absl::Milliseconds(static_cast<int64_t>(spec.deadline_ms()));
  plan.max_weight = spec.admit_weight() > 0 ? spec.admit_weight() : grid.max_weight;
  plan.max_client_weight = spec.max_client_weight();
  plan.attempt = a.attempt();
  return plan;
}

double MixingOf(double alpha, const std::vector<Contribution>& contributions) {
  double weighed = 0;
  double whole = 0;
  for (const Contribution& c : contributions) {
    weighed += static_cast<double>(c.weight);
    whole += static_cast<double>(c.weight) * std::sqrt(1 + static_cast<double>(c.staleness));
  }
  return whole > 0 ? alpha * weighed / whole : alpha;
}

const char* BufferClosedByName(BufferClosedBy why) {
  switch (why) {
    case BufferClosedBy::kFull:
      return "full";
    case BufferClosedBy::kFlush:
      return "flush";
    case BufferClosedBy::kWeight:
      return "weight";
    case BufferClosedBy::kEveryone:
      return "everyone";
    case BufferClosedBy::kTold:
      return "told";
    case BufferClosedBy::kNotYet:
      break;
  }
  return "";
}

}  // namespace tributary::server
