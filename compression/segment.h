// The segment: a self-describing header before each codec payload in an update
// (docs/wire-format.md).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace tributary::compression {

class Codec;

// 32 bytes on the wire, little-endian, in this order; the payload follows without padding.
struct SegmentHeader {
  static constexpr size_t kBytes = 32;
  uint32_t tensor = 0;         // index in the layout
  uint16_t codec = 0;          // CodecId
  uint16_t version = 1;        // of the segment format; others are refused
  uint32_t parameter = 0;      // the codec's
  uint32_t payload_bytes = 0;  // <= kMaxPayloadBytes
  uint64_t first = 0;          // first element, a multiple of kTileElements
  uint64_t count = 0;          // elements, > 0
};
inline constexpr uint32_t kMaxPayloadBytes = 1u << 20;

// The elements of an encoder's segments but for a tensor's last: the most whole tiles whose payload
// is within the limit. Large segments, few headers.
uint64_t ElementsPerSegment(const Codec& codec);

void WriteSegmentHeader(const SegmentHeader& header, uint8_t* out);  // kBytes at out
// Reads the header at the cursor and advances; INVALID_ARGUMENT where the bytes are short, the
// version is unknown, the payload is over the limit, first is unaligned, count is 0, or first +
// count overflows.
absl::StatusOr<SegmentHeader> ReadSegmentHeader(ByteCursor* cursor);

}  // namespace tributary::compression
