// The bytes of frames: a fixed header before each chunk's payload, and the short control messages.
// Integers are little-endian. transport/README.md draws both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/link.h"

namespace tributary::transport::internal {

// Before each chunk on a data socket.
struct ChunkHeader {
  static constexpr size_t kBytes = 56;
  uint32_t payload_bytes = 0;
  uint64_t sequence = 0;  // of the chunk in the link's direction, from 0
  ChunkTag tag;
  uint32_t payload_crc32c = 0;
};
using ChunkHeaderBytes = std::array<uint8_t, ChunkHeader::kBytes>;

ChunkHeaderBytes EncodeChunkHeader(const ChunkHeader& header);
// DATA_LOSS where the magic or the header's own CRC32C does not fit.
absl::StatusOr<ChunkHeader> DecodeChunkHeader(const ChunkHeaderBytes& bytes);

enum class ControlType : uint16_t {
  kHeartbeat = 1,  // a: epoch, b: granted so far (as kGrant; saying it again changes nothing)
  kGrant = 2,      // a: epoch, b: granted so far
  kGoodbye = 3,    // a: chunks sent in all
  kArrived = 4,    // the answer to kGoodbye: all of them are in the receiver's memory
  kCancel = 5,     // text: why
};

// On the control socket.
struct ControlMessage {
  static constexpr size_t kHeaderBytes = 28;
  static constexpr size_t kMaxText = 1024;
  ControlType type = ControlType::kHeartbeat;
  uint64_t a = 0;
  uint64_t b = 0;
  std::string text;  // cut to kMaxText when encoded
};

std::string EncodeControl(const ControlMessage& message);

// Cuts a byte stream into control messages. Holds at most one message. Not thread-safe.
class ControlReader {
 public:
  void Append(ByteSpan bytes) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // The next whole message, nothing where more bytes are needed, DATA_LOSS where it is none of
  // ours.
  absl::StatusOr<std::optional<ControlMessage>> Next();

 private:
  std::string buffer_;
};

}  // namespace tributary::transport::internal
