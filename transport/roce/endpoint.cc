// Encodes, decodes and checks set-up messages.
#include "transport/roce/endpoint.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"
#include "transport/roce/queue_pair.h"

namespace tributary::transport::roce {
namespace {

constexpr size_t kMaxText = 1024;

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the peer's RoCE endpoint is not usable: ", what,
                                          "; it breaks the link protocol"));
}

}  // namespace

std::string EncodeSetUp(const v1::RoceSetUp& message) {
  return internal::Framed(message.SerializeAsString());
}

std::string EncodeSetUpRefusal(const absl::Status& why) {
  v1::RoceSetUp message;
  message.set_code(static_cast<uint32_t>(why.code()));
  message.set_message(std::string(why.message().substr(0, kMaxText)));
  return EncodeSetUp(message);
}

absl::StatusOr<v1::RoceSetUp> DecodeSetUp(ByteSpan bytes) {
  v1::RoceSetUp message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("the peer's RoCE set-up message is not readable");
  }
  if (message.code() == 0) return message;
  const bool known = message.code() <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown,
      absl::StrCat("the peer cannot set up the link: ", message.message().substr(0, kMaxText)));
}

absl::Status CheckEndpoint(const v1::RoceEndpoint& theirs, bool infiniband, uint32_t queue_pairs,
                           uint32_t peer_slots) {
  if (theirs.gid().size() != 16) return Bad("its GID has not 16 bytes");
  if (theirs.lid() > 0xffff) return Bad("its LID is beyond 65535");
  if (!IsMtu(theirs.mtu())) return Bad(absl::StrCat("its MTU is ", theirs.mtu()));
  const auto pairs = static_cast<uint32_t>(theirs.queue_pair_size());
  if (pairs != queue_pairs || theirs.psn_size() != theirs.queue_pair_size()) {
    return Bad(
        absl::StrCat("it has ", pairs, " queue pairs where ", queue_pairs, " were agreed on"));
  }
  for (const uint32_t psn : theirs.psn()) {
    if (psn > 0xffffff) return Bad("a packet number is beyond 24 bits");
  }
  const auto slots = static_cast<uint32_t>(theirs.slot_address_size());
  if (slots == 0 || slots > peer_slots || theirs.slot_key_size() != theirs.slot_address_size()) {
    return Bad(absl::StrCat("it has ", slots, " slots, its hello said ", peer_slots));
  }
  if (theirs.grant_room() == 0) return Bad("it has no room for grants");
  if (theirs.infiniband() != infiniband) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer's port is on ", theirs.infiniband() ? "InfiniBand" : "Ethernet", ", ours on ",
        infiniband ? "InfiniBand" : "Ethernet", "; choose devices of one network"));
  }
  return absl::OkStatus();
}

}  // namespace tributary::transport::roce
