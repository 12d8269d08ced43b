// A model as the step from another of the same layout: what goes down in place of a whole model
// (docs/wire-format.md, "Model delta").
//
// Whoever steps from the same model by the same bytes has the same bits after it: elements are
// added in binary64 and rounded once to their dtype, and nothing else is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aggregation/layout.h"
#include "aggregation/update.h"
#include "base/bytes.h"
#include "compression/policy.h"
#include "tributary/v1/model.pb.h"

namespace tributary::aggregation {

// The segment codec number of elements that are replaced and not added to: the payload is their
// bytes as the model has them.
inline constexpr uint16_t kPlainElements = 0;

// Reads a codec spec of the way down; the text is that of updates (compression/policy.h).
// INVALID_ARGUMENT with the reason for what only updates can use: codecs that are there to be
// summed, that keep state for each client, or that diverge under error feedback, which this way
// always has.
absl::StatusOr<std::shared_ptr<const compression::CodecPolicy>> ParseDownlinkCodec(
    std::string_view spec);

// The step from `base` to about `target`, both layout.model_bytes() long. Of float tensors under
// any codec but fp32, the difference; of the others the elements themselves, so that they are
// reached exactly. Tensors (of plain elements, segments) that do not differ are left out, SKIP
// tensors always. `round` counts the random numbers. INVALID_ARGUMENT names the tensor whose
// difference the codec cannot hold (NaN, infinite, too large): send the whole model then.
absl::StatusOr<std::vector<uint8_t>> EncodeModelDelta(const ModelLayout& layout,
                                                      const compression::CodecPolicy& policy,
                                                      const EncodeKeys& keys, uint32_t round,
                                                      std::span<const uint8_t> base,
                                                      std::span<const uint8_t> target);

// Takes the step, in place. Everything is checked before it is used, and no more memory taken than
// the layout's largest tensor has as floats. INVALID_ARGUMENT, DATA_LOSS, OUT_OF_RANGE: `model` is
// then neither the one nor the other, and to be dropped.
absl::Status ApplyModelDelta(const ModelLayout& layout, ByteSpan delta, std::span<uint8_t> model);

// Whether a chain's steps add up to `bytes`, and these are fewer than a whole model's.
bool ChainFits(const ModelLayout& layout, const v1::DeltaChain& chain, uint64_t bytes);
// Takes all steps of a chain that fits, `deltas` being their bytes back to back. As
// ApplyModelDelta.
absl::Status ApplyChain(const ModelLayout& layout, const v1::DeltaChain& chain, ByteSpan deltas,
                        std::span<uint8_t> model);

}  // namespace tributary::aggregation
