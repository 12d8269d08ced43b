// Writing and reading the segment header.
#include "compression/segment.h"

#include "absl/strings/str_cat.h"
#include "compression/codec.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

uint64_t ElementsPerSegment(const Codec& codec) {
  uint64_t tiles = 1;
  while ((tiles + 1) * kTileElements <= codec.MaxSegmentElements() &&
         codec.EncodedBytes((tiles + 1) * kTileElements) <= kMaxPayloadBytes) {
    ++tiles;
  }
  return tiles * kTileElements;
}

void WriteSegmentHeader(const SegmentHeader& header, uint8_t* out) {
  StoreLe(header.tensor, out);
  StoreLe(header.codec, out + 4);
  StoreLe(header.version, out + 6);
  StoreLe(header.parameter, out + 8);
  StoreLe(header.payload_bytes, out + 12);
  StoreLe(header.first, out + 16);
  StoreLe(header.count, out + 24);
}

absl::StatusOr<SegmentHeader> ReadSegmentHeader(ByteCursor* cursor) {
  uint8_t bytes[SegmentHeader::kBytes];
  const size_t left = cursor->Remaining();
  if (!cursor->Read(bytes, sizeof bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("segment header: ", left, " bytes are left of ",
                                                   sizeof bytes, "; the update is cut short"));
  }
  SegmentHeader h;
  h.tensor = LoadLe<uint32_t>(bytes);
  h.codec = LoadLe<uint16_t>(bytes + 4);
  h.version = LoadLe<uint16_t>(bytes + 6);
  h.parameter = LoadLe<uint32_t>(bytes + 8);
  h.payload_bytes = LoadLe<uint32_t>(bytes + 12);
  h.first = LoadLe<uint64_t>(bytes + 16);
  h.count = LoadLe<uint64_t>(bytes + 24);
  const std::string where = absl::StrCat("segment header of tensor ", h.tensor, ": ");
  if (h.version != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "version ", h.version,
                     " is not known, only 1 is; the sender is of another release"));
  }
  if (h.payload_bytes > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, "payload_bytes ", h.payload_bytes,
                                                   " is over the limit ", kMaxPayloadBytes,
                                                   "; cut the tensor into more segments"));
  }
  if (h.first % kTileElements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, "first ", h.first,
                                                   " is not a multiple of ", kTileElements,
                                                   "; cut tensors at tile boundaries"));
  }
  if (h.count == 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, "count is 0; leave empty segments out"));
  }
  if (h.first + h.count < h.first) {
    return absl::InvalidArgumentError(absl::StrCat(where, "first ", h.first, " + count ", h.count,
                                                   " is beyond 64 bits; no tensor is so large"));
  }
  return h;
}

}  // namespace tributary::compression
