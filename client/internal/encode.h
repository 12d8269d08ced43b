// From what training yields to the segments that are sent.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/internal/framing.h"
#include "client/internal/residuals.h"
#include "compression/policy.h"

namespace tributary::client::internal {

// Encodes `result`, whose deltas are consumed. Where the policy has error feedback (ef or ef21),
// what is committed in `residuals` enters the deltas and what follows is left pending there, and so
// are the memories that `result` moves. With e the residual, d the delta and q what aggregators
// fold of what is sent, all in whole units of the round's grid, e = d + decay e - q (ef21: g = g +
// q): over any rounds the sum of what is sent and the residual are, to the bit, what fp32 would
// have sent. INVALID_ARGUMENT names the tensor whose delta has the wrong size or a value that the
// codec refuses, a segment too large, or a grid that is none.
absl::StatusOr<EncodedDelta> Encode(const aggregation::ModelLayout& layout,
                                    const compression::CodecPolicy& policy,
                                    const v1::RoundSpec& spec, const std::string& client_id,
                                    TrainResult result, ResidualStore* residuals);

// Whether Encode leaves something pending.
bool KeepsState(const compression::CodecPolicy& policy, const TrainResult& result);

}  // namespace tributary::client::internal
