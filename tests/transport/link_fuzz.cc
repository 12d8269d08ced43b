// Fuzz target: any bytes as what a peer says on a link's sockets before and while it works: hellos,
// answers and RoCE set-up messages behind their prefixes, control messages, chunk headers. What is
// accepted must be within the ranges that transport/README.md and link.proto give.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "transport/internal/frame.h"
#include "transport/internal/hello.h"
#include "transport/roce/endpoint.h"

namespace {

using tributary::ByteSpan;
namespace internal = tributary::transport::internal;
namespace roce = tributary::transport::roce;
namespace v1 = tributary::v1;

void Require(bool holds) {
  if (!holds) std::abort();
}

ByteSpan Span(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void TryHello(ByteSpan message) {
  const auto hello = internal::DecodeHello(message);
  if (!hello.ok()) return;
  Require(hello->version() == 1 && hello->link_id().size() == 16);
  if (!internal::CheckControlHello(*hello).ok()) return;
  Require(hello->lanes() >= 1 && hello->lanes() <= 16 && hello->slots() >= 1 &&
          hello->slots() <= 1024 && hello->chunk_bytes() >= 1 &&
          hello->chunk_bytes() <= uint64_t{1} << 30 && hello->name().size() <= 256 &&
          hello->application().size() <= 65536);
  // What it means survives being written again.
  const std::string again = internal::EncodeHello(*hello);
  const auto back = internal::DecodeHello(Span(again.substr(internal::kHelloPrefixBytes)));
  Require(back.ok() && back->link_id() == hello->link_id() && back->epoch() == hello->epoch() &&
          back->application() == hello->application());
}

void TrySetUp(ByteSpan message) {
  const auto set_up = roce::DecodeSetUp(message);
  if (!set_up.ok() || !set_up->has_endpoint()) return;
  const v1::RoceEndpoint& endpoint = set_up->endpoint();
  constexpr uint32_t kPairs = 2;
  constexpr uint32_t kSlots = 8;
  for (const bool infiniband : {false, true}) {
    if (!roce::CheckEndpoint(endpoint, infiniband, kPairs, kSlots).ok()) continue;
    const uint32_t mtu = endpoint.mtu();
    Require(endpoint.gid().size() == 16 && endpoint.lid() <= 0xffff &&
            endpoint.infiniband() == infiniband && endpoint.grant_room() > 0);
    Require(mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096);
    Require(endpoint.queue_pair_size() == kPairs && endpoint.psn_size() == kPairs);
    Require(endpoint.slot_address_size() >= 1 && endpoint.slot_address_size() <= int{kSlots} &&
            endpoint.slot_key_size() == endpoint.slot_address_size());
  }
}

// As a socket's reader takes it apart: prefix, message, prefix, message.
void ReadMessages(ByteSpan bytes) {
  size_t at = 0;
  while (bytes.size() - at >= internal::kHelloPrefixBytes) {
    const auto length = internal::DecodePrefix(bytes.subspan(at, internal::kHelloPrefixBytes));
    if (!length.ok()) {
      const std::string first(reinterpret_cast<const char*>(bytes.data() + at),
                              internal::kHelloPrefixBytes);
      Require(!internal::AnswerToGarbage(first, length.status()).empty());
      return;
    }
    Require(*length <= internal::kMaxHelloBytes);  // before anything is allocated
    at += internal::kHelloPrefixBytes;
    const ByteSpan message = bytes.subspan(at, std::min(*length, bytes.size() - at));
    at += message.size();
    TryHello(message);
    (void)internal::DecodeReply(message);
    TrySetUp(message);
  }
}

// In pieces, as a socket brings them; whole or cut, the same messages come out.
size_t ReadControl(ByteSpan bytes, size_t piece) {
  internal::ControlReader reader;
  size_t messages = 0;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Append(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    while (true) {
      const auto message = reader.Next();
      if (!message.ok()) return messages;
      if (!message->has_value()) break;
      Require((*message)->text.size() <= internal::ControlMessage::kMaxText);
      ++messages;
    }
  }
  return messages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan bytes(data, size);
  ReadMessages(bytes);
  Require(ReadControl(bytes, 1) == ReadControl(bytes, std::max<size_t>(1, size)));
  internal::ChunkHeaderBytes header;
  if (size >= header.size()) {
    std::memcpy(header.data(), data, header.size());
    const auto parsed = internal::DecodeChunkHeader(header);
    if (parsed.ok()) Require(internal::EncodeChunkHeader(*parsed) == header);
  }
  return 0;
}
