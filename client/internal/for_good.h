// Which errors of a call are worth another try.
#pragma once

#include "absl/status/status.h"

namespace tributary::client::internal {

// Whether the same request would meet this error again: the peer has read it and said no.
inline bool ForGood(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

}  // namespace tributary::client::internal
