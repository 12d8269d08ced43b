// The hello of a link's sockets: its bytes, its checks, and what both sides conclude from it. Pure
// functions; whoever owns a socket (tcp now, the control socket of other backends) does the I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/link.h"
#include "tributary/v1/link.pb.h"

namespace tributary::transport::internal {

inline constexpr uint32_t kHelloVersion = 1;
inline constexpr size_t kHelloPrefixBytes = 16;
inline constexpr size_t kMaxApplicationHello = 64 * 1024;
// A hello is its application bytes and a little more; a longer one is refused before anything is
// allocated.
inline constexpr size_t kMaxHelloBytes = kMaxApplicationHello + 4096;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr uint32_t kMaxLanes = 16;
inline constexpr uint32_t kMaxSlots = 1024;
inline constexpr size_t kMaxChunkBytes = size_t{1} << 30;

// Whether `options` can be honoured; INVALID_ARGUMENT names the field, its value and its range.
absl::Status CheckLinkOptions(const LinkOptions& options);

// 128 bits from the kernel's generator, as the 16 bytes of a link_id; and 64 of them as an epoch.
std::string RandomLinkId();
uint64_t RandomEpoch();

// The hello of a control socket with these options.
v1::LinkHello ControlHello(const LinkOptions& options, std::string link_id, uint64_t epoch);
// The hello of data socket `lane`, from 0.
v1::LinkHello LaneHello(std::string link_id, uint32_t lane);

// `message` behind the 16 bytes that stand before each message of a set-up.
std::string Framed(const std::string& message);
std::string EncodeHello(const v1::LinkHello& hello);
std::string EncodeReply(const v1::LinkHelloReply& reply);
std::string EncodeRefusal(const absl::Status& why);

// The message's length, from the 16 bytes before it. INVALID_ARGUMENT for another magic (and names
// what it looks like: HTTP, TLS), or a length beyond kMaxHelloBytes.
absl::StatusOr<size_t> DecodePrefix(ByteSpan prefix);
// INVALID_ARGUMENT where the bytes are no hello or a field is out of range, FAILED_PRECONDITION for
// another version.
absl::StatusOr<v1::LinkHello> DecodeHello(ByteSpan message);
// The peer's refusal as a status with its code and words, or the reply. FAILED_PRECONDITION for
// another version's.
absl::StatusOr<v1::LinkHelloReply> DecodeReply(ByteSpan message);
// Range checks of a control hello, the acceptor's as well as the connecter's.
absl::Status CheckControlHello(const v1::LinkHello& hello);
// FAILED_PRECONDITION where the two sides cannot work together (their slots differ in size, or
// their transports; an empty one is known by its port).
absl::Status CheckFit(const v1::LinkHello& theirs, const LinkOptions& ours,
                      absl::string_view transport = "");

// What is answered to something that is no hello: HTTP is told in HTTP, all others by
// EncodeRefusal.
std::string AnswerToGarbage(absl::string_view first_bytes, const absl::Status& why);

}  // namespace tributary::transport::internal
