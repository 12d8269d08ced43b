// Protobuf's wire format, as far as two messages of length-delimited fields need it.
#include "client/internal/framing.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/hand_over.h"
#include "base/status.h"

namespace tributary::client::internal {
namespace {

// Field tags: number << 3 | 2 (length-delimited).
constexpr char kHeaderTag = 0x0a;
constexpr char kBytesTag = 0x12;
constexpr char kTrailerTag = 0x1a;

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendField(char tag, const std::string& value, std::string* out) {
  out->push_back(tag);
  AppendVarint(value.size(), out);
  out->append(value);
}

// A slice of memory that lives as long as gRPC holds the slice, which may be longer than the call.
grpc::Slice Borrow(const std::vector<uint8_t>& bytes,
                   const std::shared_ptr<const Segments>& owner) {
  auto* hold = new std::shared_ptr<const Segments>(owner);
  HandOver(hold);
  return grpc::Slice(
      const_cast<uint8_t*>(bytes.data()), bytes.size(),
      [](void* user) {
        TakeOver(user);
        delete static_cast<std::shared_ptr<const Segments>*>(user);
      },
      hold);
}

absl::StatusOr<uint64_t> ReadVarint(ByteCursor* cursor) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = 0;
    if (!cursor->Read(&byte, 1)) return absl::DataLossError("a protobuf number ends early");
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return absl::DataLossError("a protobuf number has more than 10 bytes");
}

absl::Status ParsePieces(const PiecedBytes& pieces, google::protobuf::MessageLite* message) {
  std::string flat;
  flat.reserve(pieces.size());
  for (const ByteSpan piece : pieces.pieces()) {
    flat.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  if (message->ParseFromString(flat)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("a ", message->GetTypeName(), " does not parse"));
}

// Fields of a later release, which are no length-delimited ones.
absl::Status SkipNumber(uint64_t wire_type, ByteCursor* cursor) {
  if (wire_type == 0) return ReadVarint(cursor).status();
  const size_t bytes = wire_type == 1 ? 8 : wire_type == 5 ? 4 : 0;
  uint64_t ignored = 0;
  if (bytes == 0 || !cursor->Read(&ignored, bytes)) {
    return absl::DataLossError("a message is no protobuf, or ends early");
  }
  return absl::OkStatus();
}

}  // namespace

EncodedDelta MakeEncodedDelta(std::shared_ptr<const Segments> segments) {
  EncodedDelta delta;
  for (const std::vector<uint8_t>& segment : *segments) {
    delta.bytes += segment.size();
    delta.crc32c = ExtendCrc32c(delta.crc32c, segment);
  }
  delta.segments = std::move(segments);
  return delta;
}

UploadMessages::UploadMessages(const v1::UploadHeader& header, EncodedDelta delta)
    : header_(header.SerializeAsString()), delta_(std::move(delta)) {}

grpc::ByteBuffer UploadMessages::Next() {
  std::string front;
  const bool first = !header_sent_;
  if (first) {
    AppendField(kHeaderTag, header_, &front);
    header_sent_ = true;
    if (delta_.bytes >= kSmallUpdateBytes) {
      const grpc::Slice slice(front);
      return grpc::ByteBuffer(&slice, 1);
    }
  }
  const Segments& segments = *delta_.segments;
  const size_t begin = next_segment_;
  uint64_t bytes = 0;
  while (
      next_segment_ < segments.size() &&
      (next_segment_ == begin || bytes + segments[next_segment_].size() <= kMessageSegmentBytes)) {
    bytes += segments[next_segment_++].size();
  }
  if (bytes > 0) {
    front.push_back(kBytesTag);
    AppendVarint(bytes, &front);
  }
  segment_bytes_ += bytes;
  std::vector<grpc::Slice> slices;
  slices.reserve(next_segment_ - begin + 2);
  if (!front.empty()) slices.emplace_back(front);
  for (size_t i = begin; i < next_segment_; ++i) {
    if (!segments[i].empty()) slices.push_back(Borrow(segments[i], delta_.segments));
  }
  if (next_segment_ == segments.size()) {
    v1::UploadTrailer trailer;
    trailer.set_encoded_bytes(delta_.bytes);
    trailer.set_crc32c(delta_.crc32c);
    std::string back;
    AppendField(kTrailerTag, trailer.SerializeAsString(), &back);
    slices.emplace_back(back);
    done_ = true;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<DownloadMessage> ParseDownloadMessage(const grpc::ByteBuffer& buffer) {
  DownloadMessage message;
  if (!buffer.Dump(&message.slices).ok()) return absl::DataLossError("a message has no bytes");
  PiecedBytes all;
  // The shortest slices hold their bytes inside the object; a vector that is moved keeps its
  // objects where they are, so the pieces stay right when the message is moved.
  for (const grpc::Slice& slice : message.slices) all.Append({slice.begin(), slice.size()});
  ByteCursor cursor(all);
  while (!cursor.Contiguous().empty()) {
    ASSIGN_OR_RETURN(const uint64_t tag, ReadVarint(&cursor));
    if ((tag & 7) != 2) {
      RETURN_IF_ERROR(SkipNumber(tag & 7, &cursor));
      continue;
    }
    ASSIGN_OR_RETURN(const uint64_t length, ReadVarint(&cursor));
    PiecedBytes value;
    if (length > all.size() || !cursor.Take(length, &value)) {
      return absl::DataLossError("a field is longer than its message");
    }
    switch (tag) {
      case kHeaderTag:
        RETURN_IF_ERROR(ParsePieces(value, &message.header.emplace()));
        break;
      case kBytesTag:
        message.data = std::move(value);
        break;
      case kTrailerTag:
        RETURN_IF_ERROR(ParsePieces(value, &message.trailer.emplace()));
        break;
      default:
        break;
    }
  }
  return message;
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::DataLossError("a message has no bytes");
  PiecedBytes all;
  for (const grpc::Slice& slice : slices) all.Append({slice.begin(), slice.size()});
  return ParsePieces(all, message);
}

}  // namespace tributary::client::internal
