// The sending side: cuts tensors into segments and encodes them.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/float_segments.h"
#include "aggregation/internal/text.h"
#include "aggregation/update.h"
#include "base/status.h"
#include "compression/segment.h"

namespace tributary::aggregation {
namespace {

using compression::CodecId;
using compression::kTileElements;
using compression::SegmentHeader;

using Emit = std::function<absl::Status(std::vector<uint8_t> segment)>;

std::string TensorText(const TensorSpec& tensor) {
  return absl::StrCat("tensor ", internal::Quoted(tensor.name));
}

absl::Status CheckLength(const TensorSpec& tensor, absl::string_view what, uint64_t got,
                         uint64_t expected) {
  if (got == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(TensorText(tensor), ": its ", what, " has ", got,
                                                 " elements, the layout says ", expected));
}

constexpr uint64_t kRawElementsPerSegment = compression::kMaxPayloadBytes / sizeof(int64_t);
static_assert(kRawElementsPerSegment % kTileElements == 0);

// Fills in the header in front of a payload that was appended after room for it.
absl::Status EmitOne(uint32_t tensor, CodecId codec, uint32_t parameter, uint64_t first,
                     uint64_t count, std::vector<uint8_t> segment, const Emit& emit) {
  SegmentHeader header;
  header.tensor = tensor;
  header.codec = static_cast<uint16_t>(codec);
  header.parameter = parameter;
  header.payload_bytes = static_cast<uint32_t>(segment.size() - SegmentHeader::kBytes);
  header.first = first;
  header.count = count;
  compression::WriteSegmentHeader(header, segment.data());
  return emit(std::move(segment));
}

}  // namespace

// `context.plan` null: x is planned here.
absl::Status internal::EncodeFloats(const TensorSpec& tensor, const compression::Codec& any_shape,
                                    compression::EncodeContext context, std::span<const float> x,
                                    const internal::EmitSegment& emit) {
  const auto shaped = any_shape.ForShape(tensor.shape);
  const compression::Codec& codec = shaped == nullptr ? any_shape : *shaped;
  const uint64_t most = compression::ElementsPerSegment(codec);
  compression::TensorPlan own;
  if (context.plan == nullptr) {
    absl::StatusOr<compression::TensorPlan> plan = codec.Plan(x, context);
    if (!plan.ok()) return Annotate(plan.status(), TensorText(tensor));
    own = *std::move(plan);
    context.plan = &own;
  }
  for (uint64_t first = 0; first < x.size(); first += most) {
    const uint64_t count = std::min<uint64_t>(most, x.size() - first);
    std::vector<uint8_t> segment;
    if (codec.fixed_rate()) segment.reserve(SegmentHeader::kBytes + codec.EncodedBytes(count));
    segment.resize(SegmentHeader::kBytes);
    context.first = first;
    const absl::StatusOr<compression::SegmentForm> form =
        codec.EncodeSegment(x.subspan(first, count), context, &segment);
    if (!form.ok()) {
      return Annotate(form.status(),
                      absl::StrCat(TensorText(tensor), ", counted from element ", first));
    }
    RETURN_IF_ERROR(
        EmitOne(context.tensor, form->id, form->parameter, first, count, std::move(segment), emit));
  }
  return absl::OkStatus();
}

namespace {

absl::Status EncodeInts(uint32_t tensor, std::span<const int64_t> x, const Emit& emit) {
  for (uint64_t first = 0; first < x.size(); first += kRawElementsPerSegment) {
    const uint64_t count = std::min<uint64_t>(kRawElementsPerSegment, x.size() - first);
    std::vector<uint8_t> segment(SegmentHeader::kBytes);
    compression::EncodeRawInt64(x.subspan(first, count), &segment);
    RETURN_IF_ERROR(EmitOne(tensor, CodecId::kRawInt64, 0, first, count, std::move(segment), emit));
  }
  return absl::OkStatus();
}

// The deltas of tensors whose codecs choose among all of a model, and what they chose.
struct SharedPlans {
  struct Entry {
    std::span<const float> x;
    compression::TensorPlan plan;
  };
  std::map<uint32_t, Entry> entries;  // by tensor
  const Entry* Find(uint32_t tensor) const {
    const auto it = entries.find(tensor);
    return it == entries.end() ? nullptr : &it->second;
  }
};

absl::StatusOr<std::span<const float>> FloatsOf(const ModelLayout& layout, uint32_t t,
                                                DeltaSource& deltas) {
  ASSIGN_OR_RETURN(const std::span<const float> x, deltas.Floats(t));
  RETURN_IF_ERROR(CheckLength(layout.tensors()[t], "delta", x.size(), layout.TensorElements(t)));
  return x;
}

template <class CodecOf>
absl::StatusOr<SharedPlans> PlanShared(const ModelLayout& layout, CodecOf codec_of, uint32_t round,
                                       DeltaSource& deltas) {
  SharedPlans shared;
  // Tensors of one codec are chosen from together, as one rule names it for them.
  std::map<const compression::Codec*, std::vector<uint32_t>> groups;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    if (tensor.policy == Policy::kSkip || !IsFloat(tensor.dtype)) continue;
    const compression::Codec& codec = *codec_of(t).codec;
    if (codec.SharedFraction(round) > 0) groups[&codec].push_back(t);
  }
  for (const auto& [codec, tensors] : groups) {
    std::vector<std::span<const float>> all;
    for (const uint32_t t : tensors) {
      ASSIGN_OR_RETURN(const std::span<const float> x, FloatsOf(layout, t, deltas));
      all.push_back(x);
    }
    const std::vector<compression::TensorPlan> plans =
        compression::PlanTogether(all, codec->SharedFraction(round));
    for (size_t i = 0; i < tensors.size(); ++i) shared.entries[tensors[i]] = {all[i], plans[i]};
  }
  return shared;
}

// codec_of(tensor) is a TensorCodec.
template <class CodecOf>
absl::Status EncodeTensors(const ModelLayout& layout, CodecOf codec_of, const EncodeKeys& keys,
                           uint32_t round, DeltaSource& deltas, const Emit& emit) {
  ASSIGN_OR_RETURN(const SharedPlans shared, PlanShared(layout, codec_of, round, deltas));
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    const uint64_t elements = layout.TensorElements(t);
    if (tensor.policy == Policy::kSkip) continue;
    if (!IsFloat(tensor.dtype)) {
      ASSIGN_OR_RETURN(const std::span<const int64_t> x, deltas.Ints(t));
      RETURN_IF_ERROR(CheckLength(tensor, "delta", x.size(), elements));
      RETURN_IF_ERROR(EncodeInts(t, x, emit));
      continue;
    }
    const SharedPlans::Entry* const planned = shared.Find(t);
    std::span<const float> x = planned == nullptr ? std::span<const float>() : planned->x;
    if (planned == nullptr) {
      ASSIGN_OR_RETURN(x, FloatsOf(layout, t, deltas));
    }
    const compression::TensorCodec& chosen = codec_of(t);
    compression::EncodeContext context;
    context.key = keys.client;
    context.shared_key = keys.shared;
    context.round = round;
    context.tensor = t;
    if (chosen.error_feedback) {
      context.warm = deltas.Warm(t);
      context.next_warm = deltas.NextWarm(t);
    }
    if (planned != nullptr) context.plan = &planned->plan;
    RETURN_IF_ERROR(internal::EncodeFloats(tensor, *chosen.codec, context, x, emit));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EncodeUpdate(const ModelLayout& layout, const compression::CodecPolicy& policy,
                          const EncodeKeys& keys, uint32_t round, DeltaSource& deltas,
                          const Emit& emit) {
  const auto codec_of = [&](uint32_t t) -> const compression::TensorCodec& {
    const TensorSpec& tensor = layout.tensors()[t];
    return policy.For(tensor.name, layout.TensorElements(t), tensor.shape.size());
  };
  return EncodeTensors(layout, codec_of, keys, round, deltas, emit);
}

absl::Status EncodeUpdate(const ModelLayout& layout, const compression::Codec& codec,
                          uint64_t codec_key, uint32_t round, DeltaSource& deltas,
                          const Emit& emit) {
  // The caller's codec outlives the call.
  const compression::TensorCodec all{
      std::shared_ptr<const compression::Codec>(std::shared_ptr<void>(), &codec), true};
  const auto codec_of = [&](uint32_t) -> const compression::TensorCodec& { return all; };
  return EncodeTensors(layout, codec_of, {codec_key, 0}, round, deltas, emit);
}

}  // namespace tributary::aggregation
