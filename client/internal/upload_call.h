// One attempt at sending one update: a client-streaming call of raw messages.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/internal/framing.h"
#include "client/internal/mailbox.h"
#include "grpcpp/channel.h"
#include "tributary/v1/client_service.pb.h"

namespace tributary::client::internal {

struct UploadAttempt {
  absl::StatusOr<v1::UploadResponse> response;  // the call's own error where it has none
  uint64_t sent_bytes = 0;                      // segment bytes written, whatever became of them
};

// Blocks until the aggregator has answered, the call has failed, or `interrupted` is true (then the
// call is cancelled, and the error is CANCELLED). One message is in flight at a time: the
// aggregator holds the sender by not reading.
UploadAttempt Upload(const std::shared_ptr<grpc::Channel>& channel, const v1::UploadHeader& header,
                     const EncodedDelta& delta, const std::shared_ptr<Mailbox>& mailbox,
                     const std::function<bool()>& interrupted);

}  // namespace tributary::client::internal
