// The delta source that aggregation::EncodeUpdate reads from.
#include "client/internal/encode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/update.h"
#include "base/philox.h"
#include "base/status.h"

namespace tributary::client::internal {
namespace {

class ResultSource final : public aggregation::DeltaSource {
 public:
  ResultSource(const aggregation::ModelLayout& layout, const compression::CodecPolicy& policy,
               TrainResult* result, ResidualStore* residuals)
      : layout_(layout), policy_(policy), result_(result), residuals_(residuals) {}

  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override {
    if (tensor >= result_->floats.size()) return Missing(tensor, "float");
    std::vector<float>& delta = result_->floats[tensor];
    RETURN_IF_ERROR(CheckSize(tensor, delta.size()));
    const compression::TensorCodec& codec = CodecOf(tensor);
    if (codec.error_feedback) residuals_->AddTo(tensor, delta);
    if (codec.codec->capabilities().id == compression::CodecId::kHq) {
      for (const float v : delta) largest_ = std::max(largest_.value_or(0), std::abs(v));
    }
    return delta;
  }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t tensor) override {
    if (tensor >= result_->ints.size()) return Missing(tensor, "int64");
    RETURN_IF_ERROR(CheckSize(tensor, result_->ints[tensor].size()));
    return result_->ints[tensor];
  }
  std::span<float> Residual(uint32_t tensor) override {
    return residuals_->Pending(tensor, layout_.TensorElements(tensor));
  }
  std::span<const float> Warm(uint32_t tensor) override {
    return residuals_->Committed(WarmSlot(tensor));
  }
  std::vector<float>* NextWarm(uint32_t tensor) override {
    return residuals_->PendingState(WarmSlot(tensor));
  }
  // The largest |element| of what hq encodes; nothing where it encodes nothing.
  std::optional<float> largest() const { return largest_; }

 private:
  // Behind the residuals.
  uint32_t WarmSlot(uint32_t tensor) const {
    return static_cast<uint32_t>(layout_.tensors().size()) + tensor;
  }
  const compression::TensorCodec& CodecOf(uint32_t tensor) const {
    const aggregation::TensorSpec& spec = layout_.tensors()[tensor];
    return policy_.For(spec.name, layout_.TensorElements(tensor), spec.shape.size());
  }
  absl::Status Missing(uint32_t tensor, const char* kind) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the training result has no ", kind, " delta for tensor \"",
                     layout_.tensors()[tensor].name, "\" (index ", tensor, ")"));
  }
  absl::Status CheckSize(uint32_t tensor, uint64_t have) const {
    const uint64_t want = layout_.TensorElements(tensor);
    if (have == want) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the delta of tensor \"",
                                                   layout_.tensors()[tensor].name, "\" has ", have,
                                                   " elements, the layout says ", want));
  }

  const aggregation::ModelLayout& layout_;
  const compression::CodecPolicy& policy_;
  TrainResult* const result_;
  ResidualStore* const residuals_;
  std::optional<float> largest_;
};

absl::Status CheckSegments(const Segments& segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].size() <= kLargestSegmentBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("segment ", i, " has ", segments[i].size(),
                                                   " bytes, a message takes ", kLargestSegmentBytes,
                                                   "; cut it at a tile"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EncodedDelta> Encode(const aggregation::ModelLayout& layout,
                                    const compression::CodecPolicy& policy,
                                    const v1::RoundSpec& spec, const std::string& client_id,
                                    TrainResult result, ResidualStore* residuals) {
  if (result.encoded != nullptr) {
    RETURN_IF_ERROR(CheckSegments(*result.encoded));
    return MakeEncodedDelta(std::move(result.encoded));
  }
  if (spec.round() > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("round ", spec.round(), " is beyond 2^32"));
  }
  const bool feedback = policy.error_feedback();
  if (feedback) residuals->Begin(spec.round(), 2 * layout.tensors().size());
  ResultSource source(layout, policy, &result, residuals);
  const aggregation::EncodeKeys keys{SeededHash(spec.seed(), "codec", client_id),
                                     SeededHash(spec.seed(), "mask", "")};
  auto segments = std::make_shared<Segments>();
  absl::Status encoded =
      aggregation::EncodeUpdate(layout, policy, keys, static_cast<uint32_t>(spec.round()), source,
                                [&](std::vector<uint8_t> segment) {
                                  segments->push_back(std::move(segment));
                                  return absl::OkStatus();
                                });
  if (encoded.ok()) encoded = CheckSegments(*segments);
  if (!encoded.ok()) {
    if (feedback) residuals->Rollback(spec.round());
    return encoded;
  }
  EncodedDelta delta = MakeEncodedDelta(std::move(segments));
  delta.largest = source.largest();
  return delta;
}

}  // namespace tributary::client::internal
