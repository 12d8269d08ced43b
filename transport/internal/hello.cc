// Encodes, decodes and checks hellos.
#include "transport/internal/hello.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::transport::internal {
namespace {

constexpr absl::string_view kMagic = "TRIBLINK";
constexpr size_t kLinkIdBytes = 16;
constexpr size_t kMaxRefusalText = 1024;

bool LooksLikeHttp(absl::string_view bytes) {
  for (absl::string_view method : {"GET ", "POST ", "PUT ", "HEAD ", "OPTIONS ", "PRI * HTTP/"}) {
    if (absl::StartsWith(bytes, method)) return true;
  }
  return false;
}

template <typename T>
absl::Status InRange(absl::string_view field, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("link ", field, " is ", value, "; it must be ", least, " to ", most));
}

absl::Status OtherVersion(uint32_t theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat("the peer speaks version ", theirs, " of the link protocol, this side version ",
                   kHelloVersion, "; run the same release of tributary on both"));
}

void FillRandom(void* to, size_t bytes) {
  // Requests up to 256 bytes are never cut short once the kernel's pool is up.
  if (getrandom(to, bytes, 0) != static_cast<ssize_t>(bytes)) std::abort();
}

}  // namespace

absl::Status CheckLinkOptions(const LinkOptions& options) {
  RETURN_IF_ERROR(InRange<size_t>("chunk_bytes", options.chunk_bytes, 1, kMaxChunkBytes));
  RETURN_IF_ERROR(InRange<uint32_t>("slots", options.slots, 1, kMaxSlots));
  RETURN_IF_ERROR(InRange<uint32_t>("lanes", options.lanes, 1, kMaxLanes));
  RETURN_IF_ERROR(InRange<size_t>("name's length", options.name.size(), 0, kMaxNameBytes));
  RETURN_IF_ERROR(InRange<size_t>("hello's length", options.hello.size(), 0, kMaxApplicationHello));
  RETURN_IF_ERROR(InRange<int64_t>("heartbeat in ms", absl::ToInt64Milliseconds(options.heartbeat),
                                   1, 3'600'000));
  RETURN_IF_ERROR(InRange<int>("heartbeats_missed", options.heartbeats_missed, 1, 1000));
  if (options.connect_timeout <= absl::ZeroDuration() ||
      options.progress_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "link connect_timeout and progress_timeout must be longer than 0");
  }
  return absl::OkStatus();
}

std::string RandomLinkId() {
  std::string id(kLinkIdBytes, '\0');
  FillRandom(id.data(), id.size());
  return id;
}

uint64_t RandomEpoch() {
  uint64_t epoch = 0;
  FillRandom(&epoch, sizeof(epoch));
  return epoch;
}

v1::LinkHello ControlHello(const LinkOptions& options, std::string link_id, uint64_t epoch) {
  v1::LinkHello hello;
  hello.set_version(kHelloVersion);
  hello.set_link_id(std::move(link_id));
  hello.set_lanes(options.lanes);
  hello.set_chunk_bytes(options.chunk_bytes);
  hello.set_slots(options.slots);
  hello.set_epoch(epoch);
  hello.set_heartbeat_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options.heartbeat)));
  hello.set_name(options.name);
  hello.set_application(options.hello);
  return hello;
}

v1::LinkHello LaneHello(std::string link_id, uint32_t lane) {
  v1::LinkHello hello;
  hello.set_version(kHelloVersion);
  hello.set_link_id(std::move(link_id));
  hello.set_socket(lane + 1);
  return hello;
}

std::string Framed(const std::string& message) {
  std::string out(kMagic);
  for (int i = 0; i < 8; ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(message.size()) >> (8 * i)));
  }
  return out + message;
}

std::string EncodeHello(const v1::LinkHello& hello) { return Framed(hello.SerializeAsString()); }

std::string EncodeReply(const v1::LinkHelloReply& reply) {
  return Framed(reply.SerializeAsString());
}

std::string EncodeRefusal(const absl::Status& why) {
  v1::LinkHelloReply reply;
  reply.set_version(kHelloVersion);
  reply.set_code(static_cast<uint32_t>(why.code()));
  reply.set_message(std::string(why.message().substr(0, kMaxRefusalText)));
  return EncodeReply(reply);
}

absl::StatusOr<size_t> DecodePrefix(ByteSpan prefix) {
  const absl::string_view text(reinterpret_cast<const char*>(prefix.data()), prefix.size());
  if (text.size() < kHelloPrefixBytes || !absl::StartsWith(text, kMagic)) {
    absl::string_view looks;
    if (LooksLikeHttp(text)) looks = "; it looks like HTTP";
    if (absl::StartsWith(text, "\x16\x03")) looks = "; it looks like TLS, which links do not speak";
    return absl::InvalidArgumentError(
        absl::StrCat("this is a port for Tributary links, and what came is no link hello (\"",
                     absl::CHexEscape(text.substr(0, 8)), "\"...)", looks));
  }
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= uint64_t{prefix[8 + i]} << (8 * i);
  if (length > kMaxHelloBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a link hello of ", length, " bytes was announced; at most ", kMaxHelloBytes, " are read"));
  }
  return static_cast<size_t>(length);
}

absl::StatusOr<v1::LinkHello> DecodeHello(ByteSpan message) {
  v1::LinkHello hello;
  if (!hello.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InvalidArgumentError("the link hello's message is not readable as LinkHello");
  }
  if (hello.version() != kHelloVersion) return OtherVersion(hello.version());
  if (hello.link_id().size() != kLinkIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the link id has ", hello.link_id().size(), " bytes instead of 16"));
  }
  if (hello.socket() > kMaxLanes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a socket numbered ", hello.socket(), "; a link has at most 16 lanes"));
  }
  if (hello.socket() == 0) RETURN_IF_ERROR(CheckControlHello(hello));
  return hello;
}

absl::StatusOr<v1::LinkHelloReply> DecodeReply(ByteSpan message) {
  v1::LinkHelloReply reply;
  if (!reply.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InvalidArgumentError("the answer to the link hello is not readable");
  }
  // Before its code: of another version's answer, only the version and the words mean what they do
  // here.
  if (reply.version() != kHelloVersion) {
    const absl::Status why = OtherVersion(reply.version());
    if (reply.message().empty()) return why;
    return absl::Status(
        why.code(),
        absl::StrCat(why.message(), "; it says: ", reply.message().substr(0, kMaxRefusalText)));
  }
  if (reply.code() != 0) {
    const bool known = reply.code() <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
    return absl::Status(
        known ? static_cast<absl::StatusCode>(reply.code()) : absl::StatusCode::kUnknown,
        absl::StrCat("the peer refused the link: ", reply.message().substr(0, kMaxRefusalText)));
  }
  return reply;
}

absl::Status CheckControlHello(const v1::LinkHello& hello) {
  RETURN_IF_ERROR(InRange<uint32_t>("lanes", hello.lanes(), 1, kMaxLanes));
  RETURN_IF_ERROR(InRange<uint64_t>("chunk_bytes", hello.chunk_bytes(), 1, kMaxChunkBytes));
  RETURN_IF_ERROR(InRange<uint32_t>("slots", hello.slots(), 1, kMaxSlots));
  RETURN_IF_ERROR(InRange<uint32_t>("heartbeat_ms", hello.heartbeat_ms(), 1, 3'600'000));
  RETURN_IF_ERROR(InRange<size_t>("name's length", hello.name().size(), 0, kMaxNameBytes));
  return InRange<size_t>("hello's length", hello.application().size(), 0, kMaxApplicationHello);
}

absl::Status CheckFit(const v1::LinkHello& theirs, const LinkOptions& ours,
                      absl::string_view transport) {
  if (theirs.transport() != transport) {
    const auto shown = [](absl::string_view name) {
      return absl::Utf8SafeCHexEscape(name.empty() ? "tcp" : name);
    };
    return absl::FailedPreconditionError(absl::StrCat(
        "\"", absl::Utf8SafeCHexEscape(theirs.name()), "\" speaks ", shown(theirs.transport()),
        ", \"", ours.name, "\" speaks ", shown(transport), "; set the same transport on both"));
  }
  if (theirs.chunk_bytes() == ours.chunk_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "\"", absl::Utf8SafeCHexEscape(theirs.name()), "\" has chunk_bytes = ", theirs.chunk_bytes(),
      ", \"", ours.name, "\" has ", ours.chunk_bytes, "; give both the same"));
}

std::string AnswerToGarbage(absl::string_view first_bytes, const absl::Status& why) {
  if (!LooksLikeHttp(first_bytes)) return EncodeRefusal(why);
  const std::string body = absl::StrCat(why.message(), "\n");
  return absl::StrCat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", body);
}

}  // namespace tributary::transport::internal
