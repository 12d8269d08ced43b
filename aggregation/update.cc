// Checks an upload segment by segment; whatever passes can be folded without a further check.
#include "aggregation/update.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/text.h"
#include "aggregation/sketches.h"
#include "base/checksum.h"
#include "compression/segment.h"

namespace tributary::aggregation {
namespace {

using compression::kTileElements;
using compression::SegmentHeader;

// No codec is wider than this for a float, but for a head of a few bytes: scales, keys, places.
constexpr uint64_t kWidestFloatBytes = 4;
constexpr uint64_t kHeadBytes = 24;
constexpr uint64_t kRawIntBytes = 8;
constexpr absl::string_view kDamaged = "; the update was cut or damaged on its way, send it again";
constexpr absl::string_view kForeign = "; encode the update from the layout that Joined carries";

// Validate's verdict in UploadResponse.reason's words.
absl::string_view ReasonOf(const absl::Status& status) {
  if (absl::IsOutOfRange(status)) return "bound";
  if (absl::IsDataLoss(status)) return "non_finite";
  return "malformed";
}

absl::string_view MendOf(absl::string_view reason) {
  if (reason == "bound")
    return "; clip the update, lower the learning rate, or raise the grid's bound";
  if (reason == "non_finite")
    return "; training has diverged at this client, lower its learning rate";
  return kDamaged;
}

}  // namespace

std::shared_ptr<const EncodedUpdate> EncodedUpdate::WithWeight(int64_t weight) const {
  auto copy = std::make_shared<EncodedUpdate>(*this);
  copy->weight_ = weight;
  return copy;
}

uint64_t EncodedUpdate::Release(ElementRange folded) const {
  uint64_t bytes = 0;
  for (Piece& piece : pieces_) {
    // By the range first: of a piece in another's range nothing is read that the other writes.
    if (piece.elements.begin < folded.begin || piece.elements.end > folded.end) continue;
    if (piece.owner == nullptr) continue;
    piece.owner.reset();
    bytes += piece.bytes;
  }
  return bytes;
}

UpdateAssembler::UpdateAssembler(std::shared_ptr<const ModelLayout> layout, const Grid& grid,
                                 std::string id, int64_t weight, uint64_t declared_bytes)
    : layout_(std::move(layout)),
      grid_(grid),
      declared_bytes_(declared_bytes),
      update_(std::make_shared<EncodedUpdate>()) {
  update_->id_ = std::move(id);
  update_->weight_ = weight;
  const uint64_t most = MaxEncodedBytes(*layout_);
  if (declared_bytes > most) {
    Refuse("size", absl::StrCat("declares ", declared_bytes, " bytes, more than the ", most,
                                " that this layout can need", kForeign));
  } else if (weight < 1 || static_cast<uint64_t>(weight) > grid_.max_weight) {
    Refuse("weight", absl::StrCat("has weight ", weight, ", outside 1 to ", grid_.max_weight,
                                  "; send the number of examples trained on"));
  }
}

bool UpdateAssembler::Refuse(std::string reason, const std::string& message) {
  refused_ = true;
  refusal_ = {std::move(reason),
              absl::StrCat("update of client ", internal::Quoted(update_->id_), " ", message)};
  // Frees what it holds: a refused update waits for its reply only. The id stays for the log.
  auto empty = std::make_shared<EncodedUpdate>();
  empty->id_ = update_->id_;
  update_ = std::move(empty);
  return false;
}

bool UpdateAssembler::Add(const PiecedBytes& bytes, std::shared_ptr<const void> owner) {
  if (refused_) return false;
  // Not as a sum, which a peer could make wrap.
  if (bytes.size() > declared_bytes_ - update_->encoded_bytes_) {
    return Refuse("size",
                  absl::StrCat("is longer than the ", declared_bytes_,
                               " bytes it declared: ", update_->encoded_bytes_, " came and ",
                               bytes.size(), " more; declare the length of all segments"));
  }
  update_->encoded_bytes_ += bytes.size();
  for (const ByteSpan piece : bytes.pieces()) crc_ = ExtendCrc32c(crc_, piece);
  EncodedUpdate::Piece piece{{UINT64_MAX, 0}, bytes.size(), std::move(owner)};
  ByteCursor cursor(bytes);
  while (!cursor.Contiguous().empty()) {
    if (!AddSegment(&cursor)) return false;
    const EncodedUpdate::Segment& segment = update_->segments_.back();
    const uint64_t first = layout_->TensorElementOffset(segment.tensor) + segment.first;
    piece.elements.begin = std::min(piece.elements.begin, first);
    piece.elements.end = first + segment.count;
  }
  if (piece.elements.end > 0) update_->pieces_.push_back(std::move(piece));
  return true;
}

bool UpdateAssembler::AddSegment(ByteCursor* cursor) {
  const absl::StatusOr<SegmentHeader> header = compression::ReadSegmentHeader(cursor);
  if (!header.ok()) {
    return Refuse("malformed",
                  absl::StrCat("has a bad segment after element ", next_element_, " of tensor ",
                               next_tensor_, ": ", header.status().message(), kDamaged));
  }
  EncodedUpdate::Segment segment{header->tensor, header->first, header->count, nullptr, {}};
  if (!cursor->Take(header->payload_bytes, &segment.payload)) {
    return Refuse("malformed", absl::StrCat("ends within the segment of tensor ", header->tensor,
                                            ", element ", header->first, ": its payload of ",
                                            header->payload_bytes, " bytes is cut", kDamaged));
  }
  if (!CheckPlace(*header) || !CheckPayload(*header, &segment)) return false;
  const uint64_t tiles = (header->count + kTileElements - 1) / kTileElements;
  update_->segment_of_tile_.insert(update_->segment_of_tile_.end(), tiles,
                                   static_cast<uint32_t>(update_->segments_.size()));
  update_->segments_.push_back(std::move(segment));
  next_element_ += header->count;
  return true;
}

// Steps over finished, empty and SKIP tensors to the next element expected.
void UpdateAssembler::SkipFinishedTensors() {
  const std::vector<TensorSpec>& tensors = layout_->tensors();
  while (next_tensor_ < tensors.size() &&
         (tensors[next_tensor_].policy == Policy::kSkip ||
          next_element_ == layout_->TensorElements(next_tensor_))) {
    ++next_tensor_;
    next_element_ = 0;
  }
}

std::string UpdateAssembler::TensorText(uint32_t tensor) const {
  if (tensor >= layout_->tensors().size()) return absl::StrCat("tensor ", tensor);
  return absl::StrCat("tensor ", internal::Quoted(layout_->tensors()[tensor].name));
}

// That the segment is the next one of the layout, and well cut.
bool UpdateAssembler::CheckPlace(const SegmentHeader& header) {
  SkipFinishedTensors();
  const std::vector<TensorSpec>& tensors = layout_->tensors();
  const std::string subject =
      absl::StrCat("has a segment of ", TensorText(header.tensor), " at element ", header.first);
  if (header.tensor >= tensors.size()) {
    return Refuse("layout", absl::StrCat(subject, ", but the layout has ", tensors.size(),
                                         " tensors", kForeign));
  }
  if (tensors[header.tensor].policy == Policy::kSkip) {
    return Refuse("layout",
                  absl::StrCat(subject, ", which the layout says is never sent (skip)", kForeign));
  }
  if (header.tensor != next_tensor_ || header.first != next_element_) {
    const std::string expected =
        next_tensor_ < tensors.size()
            ? absl::StrCat(TensorText(next_tensor_), " at element ", next_element_)
            : std::string("the end");
    return Refuse("layout", absl::StrCat(subject, ", expected ", expected, kForeign));
  }
  const uint64_t left = layout_->TensorElements(header.tensor) - header.first;
  if (header.count > left) {
    return Refuse("layout", absl::StrCat(subject, " with ", header.count, " elements, but ", left,
                                         " are left of the tensor", kForeign));
  }
  if (header.count < left && header.count % kTileElements != 0) {
    return Refuse("layout",
                  absl::StrCat(subject, " with ", header.count,
                               " elements; it must end at the tensor's end or a multiple of ",
                               kTileElements));
  }
  const bool raw = header.codec == static_cast<uint16_t>(compression::CodecId::kRawInt64);
  const DType dtype = tensors[header.tensor].dtype;
  if (raw == IsFloat(dtype)) {
    return Refuse("layout",
                  absl::StrCat(subject, " with codec ", header.codec, ", but its dtype is ",
                               internal::Text(DTypeName(dtype)),
                               raw ? "; use a float codec" : "; use raw int64 (codec 1)"));
  }
  return true;
}

// That the codec is known and the payload can be folded. Sets the segment's codec.
bool UpdateAssembler::CheckPayload(const SegmentHeader& header, EncodedUpdate::Segment* segment) {
  const std::string subject = absl::StrCat("has in ", TensorText(header.tensor),
                                           ", in the segment at element ", header.first, ": ");
  absl::Status status;
  if (header.codec == static_cast<uint16_t>(compression::CodecId::kRawInt64)) {
    if (header.parameter != 0) {
      return Refuse("codec", absl::StrCat(subject, "raw int64 with parameter ", header.parameter,
                                          "; it has none, send 0"));
    }
    status = compression::ValidateRawInt64(segment->payload, header.count, grid_.IntegerBound());
  } else {
    // Segments of one codec follow one another: most need no new object.
    if (!update_->segments_.empty() && update_->segments_.back().codec != nullptr &&
        header.codec == last_codec_ && header.parameter == last_parameter_) {
      segment->codec = update_->segments_.back().codec;
    } else {
      auto codec = compression::CodecFromHeader(header.codec, header.parameter);
      if (!codec.ok()) return Refuse("codec", absl::StrCat(subject, codec.status().message()));
      segment->codec = *std::move(codec);
      last_codec_ = header.codec;
      last_parameter_ = header.parameter;
    }
    status = segment->codec->Validate(segment->payload, header.count, grid_.bound);
    if (status.ok()) {
      const absl::Status sketch = CheckSketch(sketched_.get(), header, segment->payload);
      if (!sketch.ok()) return Refuse("codec", absl::StrCat(subject, sketch.message()));
    }
  }
  if (status.ok()) return true;
  const absl::string_view reason = ReasonOf(status);
  return Refuse(std::string(reason), absl::StrCat(subject, status.message(), MendOf(reason)));
}

std::shared_ptr<const EncodedUpdate> UpdateAssembler::Finish(uint64_t encoded_bytes,
                                                             uint32_t crc32c) {
  if (refused_) return nullptr;
  const uint64_t came = update_->encoded_bytes_;
  if (came != encoded_bytes || came != declared_bytes_) {
    Refuse("size", absl::StrCat("came with ", came, " bytes, its header declared ", declared_bytes_,
                                " and its trailer ", encoded_bytes, kDamaged));
    return nullptr;
  }
  // Before the cover: of damaged bytes, what they cover says nothing.
  if (crc_ != crc32c) {
    Refuse("checksum",
           absl::StrCat("has CRC32C ", absl::Hex(crc_, absl::kZeroPad8), ", its trailer says ",
                        absl::Hex(crc32c, absl::kZeroPad8), kDamaged));
    return nullptr;
  }
  SkipFinishedTensors();
  if (next_tensor_ < layout_->tensors().size()) {
    Refuse("layout",
           absl::StrCat("ends before ", TensorText(next_tensor_), ", element ", next_element_,
                        " of ", layout_->TensorElements(next_tensor_), kForeign));
    return nullptr;
  }
  return std::exchange(update_, std::make_shared<EncodedUpdate>());
}

uint64_t MaxEncodedBytes(const ModelLayout& layout) {
  // A segment may be as short as a tile.
  uint64_t bytes = layout.tiles().size() * (SegmentHeader::kBytes + kHeadBytes);
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    if (tensor.policy == Policy::kSkip) continue;
    bytes += layout.TensorElements(t) * (IsFloat(tensor.dtype) ? kWidestFloatBytes : kRawIntBytes);
  }
  return bytes;
}

}  // namespace tributary::aggregation
