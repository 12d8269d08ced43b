// Asynchronous runs: between the config, the wire and the buffer's machine.
#pragma once

#include <vector>

#include "aggregation/async.h"
#include "aggregation/grid.h"
#include "server/config.h"
#include "tributary/v1/model.pb.h"

namespace tributary::server {

using ContributionProtos = google::protobuf::RepeatedPtrField<v1::Contribution>;

ContributionProtos ToProto(const std::vector<aggregation::Contribution>& contributions);
std::vector<aggregation::Contribution> FromProto(const ContributionProtos& protos);

// What the root announces.
v1::Asynchronous AsyncProto(const Config& config);
// Of a node's buffer.
aggregation::AsyncPlan AsyncPlanOf(const v1::RoundSpec& spec, const aggregation::Grid& grid);

// FedAsync's step: alpha times s(tau) = 1 / sqrt(1 + tau), where several were summed their mean,
// weighted by examples. A weight was multiplied by s already, so that is sum(w) / sum(w / s).
double MixingOf(double alpha, const std::vector<aggregation::Contribution>& contributions);

// "full", "flush", "weight", "everyone", "told": for rounds.jsonl.
const char* BufferClosedByName(aggregation::BufferClosedBy why);

}  // namespace tributary::server
