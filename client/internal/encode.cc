// The delta source that aggregation::EncodeUpdate reads from.
#include "client/internal/encode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/grid.h"
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
  // `grid` is what aggregators fold onto; it matters where the policy has error feedback.
  ResultSource(const aggregation::ModelLayout& layout, const compression::CodecPolicy& policy,
               const aggregation::Grid& grid, TrainResult* result, ResidualStore* residuals)
      : layout_(layout),
        policy_(policy),
        grid_(grid),
        units_(std::ldexp(1.0, grid.fraction_bits)),
        result_(result),
        residuals_(residuals) {}

  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override {
    if (tensor >= result_->floats.size()) return Missing(tensor, "float");
    std::vector<float>& delta = result_->floats[tensor];
    RETURN_IF_ERROR(CheckSize(tensor, delta.size()));
    const compression::TensorCodec& how = CodecOf(tensor);
    const std::vector<float> basis = BasisOf(tensor);
    if (!basis.empty()) compression::PlaneTransform(how.planes).Forward(delta);
    if (how.estimate) TakeEstimate(tensor, delta);
    if (how.momentum > 0) AddMomentum(tensor, how.momentum, delta);
    if (how.error_feedback) AddResidual(tensor, how.decay, delta);
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
  std::span<const float> Warm(uint32_t tensor) override {
    return residuals_->Committed(tensor, Kept::kWarm);
  }
  std::vector<float>* NextWarm(uint32_t tensor) override {
    return residuals_->PendingState(tensor, Kept::kWarm);
  }
  // The largest |element| of what hq encodes; nothing where it encodes nothing.
  std::optional<float> largest() const { return largest_; }

  // What kept state and memories become by an encoded segment.
  absl::Status Learn(const std::vector<uint8_t>& segment) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    ASSIGN_OR_RETURN(const compression::SegmentHeader header,
                     compression::ReadSegmentHeader(&cursor));
    if (!aggregation::IsFloat(layout_.tensors()[header.tensor].dtype)) return absl::OkStatus();
    const float step = MemoryStep(header.tensor);
    const bool keeps = CodecOf(header.tensor).keeps_state();
    if (!keeps && step == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto codec,
                     compression::CodecFromHeader(header.codec, header.parameter));
    const PiecedBytes payload(ByteSpan(segment).subspan(compression::SegmentHeader::kBytes));
    if (step != 0) MoveMemory(header, *codec, payload, step);
    if (keeps) LearnFolded(header, *codec, payload);
    return absl::OkStatus();
  }
  // Room for what Learn keeps, before anything is encoded.
  void Begin() {
    wide_.resize(layout_.tensors().size());
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
        wide_[t] = residuals_->PendingWide(t, elements, Kept::kEstimate);
        const Wide<const float> g = KeptWide(t, elements, Kept::kEstimate);
        for (size_t i = 0; i < g.size(); ++i) wide_[t].Set(i, g[i]);
      } else if (CodecOf(t).momentum > 0) {
        momenta_[t] = residuals_->Pending(t, elements, Kept::kMomentum);
      }
      if (CodecOf(t).error_feedback) {
        wide_[t] = residuals_->PendingWide(t, elements, Kept::kResidual);
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
  bool SameBasis(uint32_t tensor) const {
    return std::ranges::equal(residuals_->Committed(tensor, Kept::kBasis), BasisOf(tensor));
  }
  Wide<const float> KeptWide(uint32_t tensor, uint64_t elements, Kept kind) const {
    return SameBasis(tensor) ? residuals_->CommittedWide(tensor, elements, kind)
                             : Wide<const float>{};
  }
  // delta = momentum u + delta, which is the new u.
  void AddMomentum(uint32_t tensor, float momentum, std::vector<float>& delta) {
    if (SameBasis(tensor)) residuals_->AddTo(tensor, delta, momentum, Kept::kMomentum);
    std::copy(delta.begin(), delta.end(), momenta_[tensor].begin());
  }
  // delta += decay e. What is left pending is for now all that has to be sent, in whole units, as
  // an aggregator would have them of fp32: LearnFolded takes from it what is sent.
  void AddResidual(uint32_t tensor, float decay, std::vector<float>& delta) {
    const Wide<const float> e = KeptWide(tensor, delta.size(), Kept::kResidual);
    for (size_t i = 0; i < delta.size(); ++i) {
      const auto d = static_cast<double>(delta[i]);
      const double carried = e.size() > 0 ? static_cast<double>(decay) * e[i] : 0;
      wide_[tensor].Set(i, OnGrid(d) + OnGrid(carried));
      delta[i] = static_cast<float>(d + carried);
    }
  }
  // delta -= g.
  void TakeEstimate(uint32_t tensor, std::vector<float>& delta) {
    const Wide<const float> g = KeptWide(tensor, delta.size(), Kept::kEstimate);
    for (size_t i = 0; i < g.size(); ++i) {
      delta[i] = static_cast<float>(static_cast<double>(delta[i]) - g[i]);
    }
  }
  double OnGrid(double value) const { return std::nearbyint(value * units_) / units_; }

  void MoveMemory(const compression::SegmentHeader& header, const compression::Codec& codec,
                  const PiecedBytes& payload, float step) {
    decoded_.resize(header.count);
    codec.Decode(payload, decoded_);
    const std::span<float> kept = memories_[header.tensor].subspan(header.first, header.count);
    for (size_t i = 0; i < kept.size(); ++i) kept[i] += step * decoded_[i];
  }
  // What aggregators fold of the segment, in their own integers, leaves the residual or enters the
  // estimate: so that not a unit is lost between here and there, whatever the codec's numbers are.
  void LearnFolded(const compression::SegmentHeader& header, const compression::Codec& codec,
                   const PiecedBytes& payload) {
    // Aggregators refuse it, too; the round's outcome then drops what is pending.
    if (!codec.Validate(payload, header.count, grid_.bound).ok()) return;
    const bool estimate = CodecOf(header.tensor).estimate;
    const Wide<float>& wide = wide_[header.tensor];
    const std::span<float> momenta = momenta_[header.tensor];
    const double unit = (estimate ? 1 : -1) / units_;
    const uint64_t most = codec.folds_whole() ? header.count : compression::kTileElements;
    compression::FoldCursor cursor;
    for (uint64_t at = 0; at < header.count; at += most) {
      const uint64_t count = std::min(most, header.count - at);
      folded_.assign(count, 0);
      const compression::FoldPart part{&payload, at, 1, &cursor};
      codec.FoldMany({&part, 1}, count, grid_.fraction_bits, folded_.data());
      for (size_t i = 0, to = header.first + at; i < count; ++i, ++to) {
        if (folded_[i] == 0) continue;
        wide.Set(to, wide[to] + static_cast<double>(folded_[i]) * unit);
        if (!momenta.empty()) momenta[to] = 0;
      }
    }
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
  const aggregation::Grid grid_;
  const double units_;  // in one
  TrainResult* const result_;
  ResidualStore* const residuals_;
  std::optional<float> largest_;
  // By tensor; empty where it has none. Pending memory of residuals_.
  std::vector<std::span<float>> momenta_, memories_;
  std::vector<Wide<float>> wide_;  // residuals or estimates
  std::vector<float> decoded_;
  std::vector<int64_t> folded_;
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
  aggregation::Grid grid;
  if (policy.error_feedback()) {
    const absl::StatusOr<aggregation::Grid> given = aggregation::Grid::FromProto(spec.grid());
    if (!given.ok()) {
      return Annotate(given.status(), absl::StrCat("the task of round ", spec.round(),
                                                   ", which error feedback needs the grid of"));
    }
    grid = *given;
  }
  if (feedback) residuals->Begin(spec.round(), layout.tensors().size());
  ResultSource source(layout, policy, grid, &result, residuals);
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
