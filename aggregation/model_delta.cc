// Encoding and taking steps between models.
#include "aggregation/model_delta.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aggregation/internal/float_segments.h"
#include "aggregation/internal/move_model.h"
#include "aggregation/internal/text.h"
#include "base/status.h"
#include "compression/segment.h"

namespace tributary::aggregation {
namespace {

using compression::CodecId;
using compression::kTileElements;
using compression::SegmentHeader;
using internal::Bf16;
using internal::F16;
using internal::Plain;

// What decodes to a finite float32.
constexpr double kBound = std::numeric_limits<float>::max();
constexpr uint32_t kVoteFlag = 1u << 31;  // of sign's parameter (docs/wire-format.md)

// ---- Which codecs can go down

// Why this codec, the first of a chain, is for updates only; "" where it is not.
std::string WhyNotDown(const compression::Codec& codec) {
  const compression::Capabilities& what = codec.capabilities();
  if (what.id == CodecId::kHq || (what.id == CodecId::kSign && codec.parameter() >= kVoteFlag)) {
    return absl::StrCat(what.id == CodecId::kHq ? "hq" : "sign(mode=vote)",
                        " has a step that all clients share so that updates can be summed without "
                        "decoding, and on the way down nothing is summed; use ",
                        what.id == CodecId::kHq ? "int8 or int4" : "sign");
  }
  if (what.id == CodecId::kRandK && !what.needs_error_feedback) {
    return "the way down always feeds back what was lost, and with scaled values that diverges: "
           "what is sent is larger than what there was; use randk(..., scaled=no) or topk";
  }
  if (what.id == CodecId::kPowerSgd) {
    return "powersgd goes on from the basis that each client kept of its own last update, and "
           "there is one way down for all; use int4, eden or topk";
  }
  if (what.id == CodecId::kSketch) {
    return "sketch is recovered at the root from a sum of sketches, and on the way down nothing is "
           "summed; use topk";
  }
  return "";
}

// Why this stage, or these parameters, are for updates only; "" where they are not.
std::string WhyNotStage(absl::string_view text) {
  std::string packed(text);
  std::erase_if(packed, [](char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); });
  const absl::string_view stage = packed;
  if (absl::StartsWith(stage, "ef21")) {
    return "ef21 keeps an estimate of each client's own, and there is one way down for all; leave "
           "it out";
  }
  if (absl::StartsWith(stage, "dct")) {
    return "dct is of updates, whose sum the root transforms back; leave it out";
  }
  if (absl::StartsWith(stage, "ef(")) {
    return "the way down feeds back all that was lost, without decay or momentum; leave ef out";
  }
  if (absl::StrContains(stage, "gain=")) {
    return "a gain overshoots what was lost, which the way down feeds back whole; leave gain out";
  }
  return "";
}

absl::Status CheckChain(absl::string_view chain) {
  const std::vector<absl::string_view> stages = absl::StrSplit(chain, '|');
  const absl::string_view first = absl::StripAsciiWhitespace(stages[0]);
  ASSIGN_OR_RETURN(const auto codec, compression::MakeCodec({first.data(), first.size()}));
  std::string why = WhyNotDown(*codec);
  if (codec->SharedFraction(1) > 0) why = "a step is encoded tensor by tensor: leave out across";
  for (const absl::string_view stage : stages) {
    if (why.empty()) why = WhyNotStage(absl::StripAsciiWhitespace(stage));
  }
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("codec \"", chain, "\": ", why));
}

// ---- Elements

template <class Type>
void SubtractAs(const uint8_t* base, const uint8_t* target, std::span<float> out) {
  using Stored = typename Type::Stored;
  for (size_t i = 0; i < out.size(); ++i) {
    Stored from, to;
    std::memcpy(&from, base + i * sizeof(Stored), sizeof(Stored));
    std::memcpy(&to, target + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<float>(Type::Load(to) - Type::Load(from));
  }
}

template <class Type>
void AddAs(std::span<const float> values, uint8_t* model) {
  using Stored = typename Type::Stored;
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, model + i * sizeof(Stored), sizeof(Stored));
    stored = Type::Store(Type::Load(stored) + static_cast<double>(values[i]));
    std::memcpy(model + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

void Subtract(DType dtype, const uint8_t* base, const uint8_t* target, std::span<float> out) {
  switch (dtype) {
    case DType::kF32:
      return SubtractAs<Plain<float>>(base, target, out);
    case DType::kF64:
      return SubtractAs<Plain<double>>(base, target, out);
    case DType::kF16:
      return SubtractAs<F16>(base, target, out);
    default:
      return SubtractAs<Bf16>(base, target, out);
  }
}

void Add(DType dtype, std::span<const float> values, uint8_t* model) {
  switch (dtype) {
    case DType::kF32:
      return AddAs<Plain<float>>(values, model);
    case DType::kF64:
      return AddAs<Plain<double>>(values, model);
    case DType::kF16:
      return AddAs<F16>(values, model);
    default:
      return AddAs<Bf16>(values, model);
  }
}

// ---- Encoding

// The elements of a tensor as they are, without the segments in which nothing changed.
void AppendPlain(uint32_t tensor, size_t element_bytes, std::span<const uint8_t> base,
                 std::span<const uint8_t> target, std::vector<uint8_t>* out) {
  const size_t most =
      compression::kMaxPayloadBytes / element_bytes / kTileElements * kTileElements * element_bytes;
  for (size_t at = 0; at < target.size(); at += most) {
    const size_t bytes = std::min(most, target.size() - at);
    if (std::memcmp(base.data() + at, target.data() + at, bytes) == 0) continue;
    SegmentHeader header;
    header.tensor = tensor;
    header.codec = kPlainElements;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    header.first = at / element_bytes;
    header.count = bytes / element_bytes;
    const size_t head = out->size();
    out->resize(head + SegmentHeader::kBytes);
    compression::WriteSegmentHeader(header, out->data() + head);
    out->insert(out->end(), target.begin() + static_cast<ptrdiff_t>(at),
                target.begin() + static_cast<ptrdiff_t>(at + bytes));
  }
}

// ---- Taking a step

std::string PlaceText(const ModelLayout& layout, const SegmentHeader& header) {
  const bool known = header.tensor < layout.tensors().size();
  return absl::StrCat(
      "model delta: the segment of tensor ",
      known ? internal::Quoted(layout.tensors()[header.tensor].name) : absl::StrCat(header.tensor),
      " at element ", header.first);
}

// That the segment lies in the layout, behind the one before.
absl::Status CheckPlace(const ModelLayout& layout, const SegmentHeader& header, uint32_t tensor,
                        uint64_t element) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(PlaceText(layout, header), " ", what));
  };
  if (header.tensor >= layout.tensors().size()) {
    return wrong(absl::StrCat("is of none of the layout's ", layout.tensors().size(), " tensors"));
  }
  if (layout.tensors()[header.tensor].policy == Policy::kSkip) return wrong("is of one that stays");
  if (header.tensor < tensor || (header.tensor == tensor && header.first < element)) {
    return wrong("goes back behind the one before");
  }
  const uint64_t all = layout.TensorElements(header.tensor);
  if (header.first > all || header.count > all - header.first) {
    return wrong(absl::StrCat("has ", header.count, " elements, the tensor ", all));
  }
  if (header.first + header.count < all && header.count % kTileElements != 0) {
    return wrong(absl::StrCat("has ", header.count, " elements and ends within a tile"));
  }
  return absl::OkStatus();
}

absl::Status SetElements(const SegmentHeader& header, const PiecedBytes& payload,
                         size_t element_bytes, uint8_t* to) {
  if (header.parameter != 0 || payload.size() != header.count * element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has plain elements in ", payload.size(), " bytes with parameter ", header.parameter,
        ", expected ", header.count * element_bytes, " bytes and 0"));
  }
  ByteCursor(payload).Read(to, payload.size());
  return absl::OkStatus();
}

absl::Status AddElements(const SegmentHeader& header, const PiecedBytes& payload, DType dtype,
                         std::vector<float>* values, uint8_t* to) {
  if (!IsFloat(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("has codec ", header.codec, ", but dtype ",
                                                   internal::Text(DTypeName(dtype)),
                                                   " takes plain elements (codec 0) alone"));
  }
  ASSIGN_OR_RETURN(const auto codec, compression::CodecFromHeader(header.codec, header.parameter));
  const CodecId id = codec->capabilities().id;
  if (id == CodecId::kPowerSgd || id == CodecId::kSketch) {
    return absl::InvalidArgumentError(
        absl::StrCat("has codec ", header.codec, ", which is for updates"));
  }
  RETURN_IF_ERROR(codec->Validate(payload, header.count, kBound));
  values->resize(header.count);
  codec->Decode(payload, *values);
  Add(dtype, *values, to);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const compression::CodecPolicy>> ParseDownlinkCodec(
    std::string_view spec) {
  ASSIGN_OR_RETURN(auto policy, compression::CodecPolicy::Parse(spec));
  const absl::string_view text(spec.data(), spec.size());
  bool front = true;
  for (const absl::string_view part : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const size_t equals = front ? absl::string_view::npos : part.find('=');
    RETURN_IF_ERROR(CheckChain(equals == absl::string_view::npos ? part : part.substr(equals + 1)));
    front = false;
  }
  return policy;
}

absl::StatusOr<std::vector<uint8_t>> EncodeModelDelta(const ModelLayout& layout,
                                                      const compression::CodecPolicy& policy,
                                                      const EncodeKeys& keys, uint32_t round,
                                                      std::span<const uint8_t> base,
                                                      std::span<const uint8_t> target) {
  std::vector<uint8_t> out;
  std::vector<float> difference;
  const auto append = [&out](const std::vector<uint8_t>& segment) {
    out.insert(out.end(), segment.begin(), segment.end());
    return absl::OkStatus();
  };
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    const uint64_t elements = layout.TensorElements(t);
    const size_t element_bytes = DTypeBytes(tensor.dtype);
    const uint64_t offset = layout.TensorByteOffset(t);
    const auto from = base.subspan(offset, elements * element_bytes);
    const auto to = target.subspan(offset, elements * element_bytes);
    if (tensor.policy == Policy::kSkip || std::ranges::equal(from, to)) continue;
    const compression::Codec* codec = nullptr;
    if (IsFloat(tensor.dtype)) {
      codec = policy.For(tensor.name, elements, tensor.shape.size()).codec.get();
    }
    if (codec == nullptr || codec->capabilities().id == CodecId::kFp32) {
      AppendPlain(t, element_bytes, from, to, &out);
      continue;
    }
    difference.resize(elements);
    Subtract(tensor.dtype, from.data(), to.data(), difference);
    // Another zero's sign, or less than a float32 holds.
    if (std::ranges::all_of(difference, [](float x) { return x == 0; })) continue;
    compression::EncodeContext context;
    context.key = keys.client;
    context.shared_key = keys.shared;
    context.round = round;
    context.tensor = t;
    RETURN_IF_ERROR(internal::EncodeFloats(tensor, *codec, context, difference, append));
  }
  return out;
}

absl::Status ApplyModelDelta(const ModelLayout& layout, ByteSpan delta, std::span<uint8_t> model) {
  if (model.size() != layout.model_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("model delta: the model has ", model.size(),
                                                   " bytes, by the layout ", layout.model_bytes()));
  }
  const PiecedBytes bytes(delta);
  ByteCursor cursor(bytes);
  std::vector<float> values;
  uint32_t tensor = 0;
  uint64_t element = 0;
  while (!cursor.Contiguous().empty()) {
    const absl::StatusOr<SegmentHeader> header = compression::ReadSegmentHeader(&cursor);
    if (!header.ok()) return Annotate(header.status(), "model delta");
    PiecedBytes payload;
    if (!cursor.Take(header->payload_bytes, &payload)) {
      return absl::InvalidArgumentError(absl::StrCat(PlaceText(layout, *header), " is cut short"));
    }
    RETURN_IF_ERROR(CheckPlace(layout, *header, tensor, element));
    const DType dtype = layout.tensors()[header->tensor].dtype;
    const size_t element_bytes = DTypeBytes(dtype);
    uint8_t* to =
        model.data() + layout.TensorByteOffset(header->tensor) + header->first * element_bytes;
    const absl::Status status = header->codec == kPlainElements
                                    ? SetElements(*header, payload, element_bytes, to)
                                    : AddElements(*header, payload, dtype, &values, to);
    if (!status.ok()) return Annotate(status, PlaceText(layout, *header));
    tensor = header->tensor;
    element = header->first + header->count;
  }
  return absl::OkStatus();
}

bool ChainFits(const ModelLayout& layout, const v1::DeltaChain& chain, uint64_t bytes) {
  if (bytes >= layout.model_bytes()) return false;
  // Not as a sum, which a peer could make wrap.
  for (const v1::ModelStep& step : chain.steps()) {
    if (step.bytes() > bytes) return false;
    bytes -= step.bytes();
  }
  return bytes == 0;
}

absl::Status ApplyChain(const ModelLayout& layout, const v1::DeltaChain& chain, ByteSpan deltas,
                        std::span<uint8_t> model) {
  for (const v1::ModelStep& step : chain.steps()) {
    RETURN_IF_ERROR(ApplyModelDelta(layout, deltas.first(step.bytes()), model));
    deltas = deltas.subspan(step.bytes());
  }
  return absl::OkStatus();
}

}  // namespace tributary::aggregation
