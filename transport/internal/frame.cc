// Encodes and decodes frames. The layouts are in transport/README.md.
#include "transport/internal/frame.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"

namespace tributary::transport::internal {
namespace {

constexpr uint32_t kChunkMagic = 0x43425254;    // "TRBC"
constexpr uint32_t kControlMagic = 0x4d425254;  // "TRBM"

template <typename T>
void Store(uint8_t* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<uint8_t>(value >> (8 * i));
}
template <typename T>
T Load(const uint8_t* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(from[i]) << (8 * i);
  return value;
}

}  // namespace

ChunkHeaderBytes EncodeChunkHeader(const ChunkHeader& header) {
  ChunkHeaderBytes out;
  uint8_t* to = out.data();
  Store<uint32_t>(to, kChunkMagic);
  Store<uint32_t>(to + 4, header.payload_bytes);
  Store<uint64_t>(to + 8, header.sequence);
  Store<uint64_t>(to + 16, header.tag.stream);
  Store<uint64_t>(to + 24, header.tag.index);
  Store<uint64_t>(to + 32, header.tag.a);
  Store<uint64_t>(to + 40, header.tag.b);
  Store<uint32_t>(to + 48, header.payload_crc32c);
  Store<uint32_t>(to + 52, Crc32c({to, 52}));
  return out;
}

absl::StatusOr<ChunkHeader> DecodeChunkHeader(const ChunkHeaderBytes& bytes) {
  const uint8_t* from = bytes.data();
  if (Load<uint32_t>(from) != kChunkMagic) {
    return absl::DataLossError(absl::StrFormat("a chunk header starts with %08x instead of %08x",
                                               Load<uint32_t>(from), kChunkMagic));
  }
  if (Load<uint32_t>(from + 52) != Crc32c({from, 52})) {
    return absl::DataLossError("a chunk header's CRC32C does not fit: it was damaged on its way");
  }
  ChunkHeader header;
  header.payload_bytes = Load<uint32_t>(from + 4);
  header.sequence = Load<uint64_t>(from + 8);
  header.tag = {.stream = Load<uint64_t>(from + 16),
                .index = Load<uint64_t>(from + 24),
                .a = Load<uint64_t>(from + 32),
                .b = Load<uint64_t>(from + 40)};
  header.payload_crc32c = Load<uint32_t>(from + 48);
  return header;
}

std::string EncodeControl(const ControlMessage& message) {
  const size_t text = std::min(message.text.size(), ControlMessage::kMaxText);
  std::string out(ControlMessage::kHeaderBytes + text, '\0');
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  Store<uint32_t>(to, kControlMagic);
  Store<uint16_t>(to + 4, static_cast<uint16_t>(message.type));
  Store<uint16_t>(to + 6, static_cast<uint16_t>(text));
  Store<uint64_t>(to + 8, message.a);
  Store<uint64_t>(to + 16, message.b);
  message.text.copy(out.data() + ControlMessage::kHeaderBytes, text);
  uint32_t crc = Crc32c({to, 24});
  crc = ExtendCrc32c(crc, {to + ControlMessage::kHeaderBytes, text});
  Store<uint32_t>(to + 24, crc);
  return out;
}

absl::StatusOr<std::optional<ControlMessage>> ControlReader::Next() {
  constexpr size_t kHeader = ControlMessage::kHeaderBytes;
  if (buffer_.size() < kHeader) return std::nullopt;
  const auto* from = reinterpret_cast<const uint8_t*>(buffer_.data());
  const size_t text = Load<uint16_t>(from + 6);
  if (Load<uint32_t>(from) != kControlMagic || text > ControlMessage::kMaxText) {
    return absl::DataLossError("the control socket carries bytes that are no control message");
  }
  if (buffer_.size() < kHeader + text) return std::nullopt;
  const uint32_t crc = ExtendCrc32c(Crc32c({from, 24}), {from + kHeader, text});
  if (Load<uint32_t>(from + 24) != crc) {
    return absl::DataLossError(
        "a control message's CRC32C does not fit: it was damaged on its way");
  }
  ControlMessage message;
  message.type = static_cast<ControlType>(Load<uint16_t>(from + 4));
  message.a = Load<uint64_t>(from + 8);
  message.b = Load<uint64_t>(from + 16);
  message.text.assign(buffer_, kHeader, text);
  buffer_.erase(0, kHeader + text);
  return message;
}

}  // namespace tributary::transport::internal
