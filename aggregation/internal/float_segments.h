// Private to aggregation/: one float tensor as whole segments.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "aggregation/layout.h"
#include "compression/codec.h"

namespace tributary::aggregation::internal {

using EmitSegment = std::function<absl::Status(std::vector<uint8_t> segment)>;

// Cuts x, all of a tensor, into segments as large as they may be, and emits each with its header.
// `context` names tensor and keys. Errors name the tensor.
absl::Status EncodeFloats(const TensorSpec& tensor, const compression::Codec& codec,
                          compression::EncodeContext context, std::span<const float> x,
                          const EmitSegment& emit);

}  // namespace tributary::aggregation::internal
