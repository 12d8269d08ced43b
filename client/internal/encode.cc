// The delta source that aggregation::EncodeUpdate reads from.
#include "client/internal/encode.h"

#include <limits>
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
    if (HasFeedback(tensor)) residuals_->AddTo(tensor, delta);
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

 private:
  bool HasFeedback(uint32_t tensor) const {
    const aggregation::TensorSpec& spec = layout_.tensors()[tensor];
    return policy_.For(spec.name, layout_.TensorElements(tensor), spec.shape.size()).error_feedback;
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
  if (feedback) residuals->Begin(spec.round(), layout.tensors().size());
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
  return MakeEncodedDelta(std::move(segments));
}

}  // namespace tributary::client::internal
