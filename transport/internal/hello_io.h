// The connecting side of a hello, over any stream socket.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/link.h"
#include "tributary/v1/link.pb.h"

namespace tributary::transport::internal {

// Says `hello` on a connected, non-blocking socket and reads the answer: a refusal comes back as
// the peer's own status, something that is no Tributary link as FAILED_PRECONDITION.
absl::StatusOr<v1::LinkHelloReply> ExchangeHello(int fd, const v1::LinkHello& hello,
                                                 const Deadline& deadline);

// What the acceptor of a control socket answered, checked against what was offered:
// FAILED_PRECONDITION where the two sides cannot work together.
absl::Status CheckAnswer(const v1::LinkHello& theirs, const LinkOptions& ours,
                         absl::string_view transport = "");

}  // namespace tributary::transport::internal
