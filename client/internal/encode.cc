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
#include "compression/agreed.h"
#include "compression/codec.h"
#include "compression/segment.h"

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
    const compression::TensorCodec& how = CodecOf(tensor);
    const std::vector<float> basis = BasisOf(tensor);
    if (!basis.empty()) compression::PlaneTransform(how.planes).Forward(delta);
    if (how.estimate) AddKept(tensor, delta, -1, Kept::kEstimate);
    if (how.momentum > 0) AddMomentum(tensor, how.momentum, delta);
    if (how.error_feedback) AddKept(tensor, delta, how.decay, Kept::kResidual);
    if (compression::IsHq(*how.codec)) {
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
    return residuals_->Committed(tensor, Kept::kWarm);
  }
  std::vector<float>* NextWarm(uint32_t tensor) override {
    return residuals_->PendingState(tensor, Kept::kWarm);
  }
  // The largest |element| of what hq encodes; nothing where it encodes nothing.
  std::optional<float> largest() const { return largest_; }

  // What else the kept state and memories make of an encoded segment: they go by what the server
  // decodes.
  absl::Status Learn(const std::vector<uint8_t>& segment) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    ASSIGN_OR_RETURN(const compression::SegmentHeader header,
                     compression::ReadSegmentHeader(&cursor));
    if (!aggregation::IsFloat(layout_.tensors()[header.tensor].dtype)) return absl::OkStatus();
    const compression::TensorCodec& how = CodecOf(header.tensor);
    const float step = MemoryStep(header.tensor);
    if (!how.estimate && how.momentum == 0 && step == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto codec,
                     compression::CodecFromHeader(header.codec, header.parameter));
    decoded_.resize(header.count);
    codec->Decode(PiecedBytes(ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)),
                  decoded_);
    if (step != 0) {
      const std::span<float> kept = memories_[header.tensor].subspan(header.first, header.count);
      for (size_t i = 0; i < kept.size(); ++i) kept[i] += step * decoded_[i];
    }
    if (how.estimate) {
      const std::span<float> g = estimates_[header.tensor].subspan(header.first, header.count);
      for (size_t i = 0; i < g.size(); ++i) g[i] += decoded_[i];
    } else if (how.momentum > 0) {
      const std::span<float> u = momenta_[header.tensor].subspan(header.first, header.count);
      for (size_t i = 0; i < u.size(); ++i) u[i] = decoded_[i] != 0 ? 0 : u[i];
    }
    return absl::OkStatus();
  }
  // Room for what Learn keeps, before anything is encoded.
  void Begin() {
    estimates_.resize(layout_.tensors().size());
    momenta_.resize(layout_.tensors().size());
    memories_.resize(layout_.tensors().size());
    for (uint32_t t = 0; t < layout_.tensors().size(); ++t) {
      const aggregation::TensorSpec& tensor = layout_.tensors()[t];
      if (tensor.policy == aggregation::Policy::kSkip || !aggregation::IsFloat(tensor.dtype)) {
        continue;
      }
      const uint64_t elements = layout_.TensorElements(t);
      if (MemoryStep(t) != 0 || !residuals_->Committed(t, Kept::kMemory).empty()) {
        memories_[t] = residuals_->Pending(t, elements, Kept::kMemory);
        residuals_->AddTo(t, memories_[t], 1, Kept::kMemory);
      }
      if (CodecOf(t).keeps_state()) *residuals_->PendingState(t, Kept::kBasis) = BasisOf(t);
      if (CodecOf(t).estimate) {
        estimates_[t] = residuals_->Pending(t, elements, Kept::kEstimate);
        AddKept(t, estimates_[t], 1, Kept::kEstimate);
      } else if (CodecOf(t).momentum > 0) {
        momenta_[t] = residuals_->Pending(t, elements, Kept::kMomentum);
      }
    }
  }

 private:
  const compression::TensorCodec& CodecOf(uint32_t tensor) const {
    const aggregation::TensorSpec& spec = layout_.tensors()[tensor];
    return policy_.For(spec.name, layout_.TensorElements(tensor), spec.shape.size());
  }
  float MemoryStep(uint32_t tensor) const {
    return tensor < result_->memory_steps.size() ? result_->memory_steps[tensor] : 0;
  }
  // The planes that a tensor travels in; empty: as it is.
  std::vector<float> BasisOf(uint32_t tensor) const {
    const compression::PlaneShape& planes = CodecOf(tensor).planes;
    if (!planes.Divides(layout_.tensors()[tensor].shape)) return {};
    return {static_cast<float>(planes.rows), static_cast<float>(planes.columns)};
  }
  // Of another basis (the run was started again with another codec) it is as if nothing were kept.
  void AddKept(uint32_t tensor, std::span<float> to, float factor, Kept kind) const {
    if (!std::ranges::equal(residuals_->Committed(tensor, Kept::kBasis), BasisOf(tensor))) return;
    residuals_->AddTo(tensor, to, factor, kind);
  }
  // delta = momentum u + delta, which is the new u.
  void AddMomentum(uint32_t tensor, float momentum, std::vector<float>& delta) {
    AddKept(tensor, delta, momentum, Kept::kMomentum);
    std::copy(delta.begin(), delta.end(), momenta_[tensor].begin());
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
  // By tensor; empty where it has none. Pending memory of residuals_.
  std::vector<std::span<float>> estimates_, momenta_, memories_;
  std::vector<float> decoded_;
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

bool KeepsState(const compression::CodecPolicy& policy, const TrainResult& result) {
  if (result.encoded != nullptr) return false;
  return policy.error_feedback() ||
         std::any_of(result.memory_steps.begin(), result.memory_steps.end(),
                     [](float step) { return step != 0; });
}

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
  const bool feedback = KeepsState(policy, result);
  if (feedback) residuals->Begin(spec.round(), layout.tensors().size());
  ResultSource source(layout, policy, &result, residuals);
  if (feedback) source.Begin();
  const aggregation::EncodeKeys keys{SeededHash(spec.seed(), "codec", client_id),
                                     SeededHash(spec.seed(), "mask", "")};
  auto segments = std::make_shared<Segments>();
  absl::Status encoded =
      aggregation::EncodeUpdate(layout, policy, keys, static_cast<uint32_t>(spec.round()), source,
                                [&](std::vector<uint8_t> segment) {
                                  if (feedback) RETURN_IF_ERROR(source.Learn(segment));
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
