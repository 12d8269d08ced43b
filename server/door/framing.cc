// Protobuf's wire format, as far as UploadRequest and DownloadResponse need it (protobuf.dev,
// "Encoding").
#include "server/door/framing.h"

#include <utility>

#include "base/hand_over.h"
#include "base/status.h"

namespace tributary::server::door {
namespace {

constexpr uint8_t kHeaderTag = (1 << 3) | 2;    // field 1, length-delimited
constexpr uint8_t kSegmentsTag = (2 << 3) | 2;  // DownloadResponse.data has the same number
constexpr uint8_t kTrailerTag = (3 << 3) | 2;
constexpr uint64_t kMaxControlBytes = 256 * 1024;  // header or trailer

bool ReadVarint(ByteCursor* cursor, uint64_t* out) {
  *out = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = 0;
    if (!cursor->Read(&byte, 1)) return false;
    *out |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

template <typename M>
absl::Status ReadControl(ByteCursor* cursor, uint64_t length, const char* what,
                         std::optional<M>* out) {
  if (length > kMaxControlBytes || length > cursor->Remaining()) {
    return absl::InvalidArgumentError(absl::StrCat("the upload's ", what, " claims ", length,
                                                   " bytes; at most ", kMaxControlBytes,
                                                   " and what the message holds are allowed"));
  }
  std::string text(length, '\0');
  cursor->Read(text.data(), length);
  out->emplace();
  if (!(*out)->ParseFromString(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the upload's ", what, " is not a valid protobuf message"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MessageSlices>> MessageSlices::From(grpc::ByteBuffer* buffer) {
  auto out = std::make_shared<MessageSlices>();
  const grpc::Status status = buffer->Dump(&out->slices_);
  if (!status.ok()) return absl::InternalError(status.error_message());
  for (const grpc::Slice& slice : out->slices_) out->bytes_.Append({slice.begin(), slice.size()});
  return std::shared_ptr<const MessageSlices>(std::move(out));
}

absl::StatusOr<UploadMessage> ParseUploadMessage(const PiecedBytes& message) {
  UploadMessage out;
  ByteCursor cursor(message);
  uint8_t tag = 0;
  uint8_t last_tag = 0;
  while (cursor.Read(&tag, 1)) {
    uint64_t length = 0;
    // Each once: of thousands, each would cost more memory here than it has bytes.
    if (tag <= last_tag || (tag != kHeaderTag && tag != kSegmentsTag && tag != kTrailerTag) ||
        !ReadVarint(&cursor, &length)) {
      return absl::InvalidArgumentError(
          absl::StrCat("not an UploadRequest: unexpected tag byte ", static_cast<int>(tag),
                       "; send header, segments and trailer in this order, each once"));
    }
    last_tag = tag;
    if (tag == kHeaderTag) {
      RETURN_IF_ERROR(ReadControl(&cursor, length, "header", &out.header));
    } else if (tag == kTrailerTag) {
      RETURN_IF_ERROR(ReadControl(&cursor, length, "trailer", &out.trailer));
    } else if (!cursor.Take(length, &out.segments)) {
      return absl::InvalidArgumentError(
          "not an UploadRequest: its segments are shorter than they claim");
    }
  }
  return out;
}

grpc::ByteBuffer ToByteBuffer(const google::protobuf::Message& message) {
  const std::string text = message.SerializeAsString();
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer DataMessage(const PiecedBytes& data, const std::shared_ptr<const void>& owner) {
  std::string prefix(1, static_cast<char>(kSegmentsTag));
  uint64_t length = data.size();
  while (length >= 0x80) {
    prefix.push_back(static_cast<char>((length & 0x7f) | 0x80));
    length >>= 7;
  }
  prefix.push_back(static_cast<char>(length));
  std::vector<grpc::Slice> slices = {grpc::Slice(prefix)};
  for (const ByteSpan piece : data.pieces()) {
    auto* holder = new std::shared_ptr<const void>(owner);
    HandOver(holder);
    slices.emplace_back(
        // gRPC only reads the memory; its C type is not const.
        const_cast<uint8_t*>(piece.data()), piece.size(),
        [](void* p) {
          TakeOver(p);
          delete static_cast<std::shared_ptr<const void>*>(p);
        },
        holder);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace tributary::server::door
