// One attempt at fetching a model: a server-streaming call of raw messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"
#include "client/internal/mailbox.h"
#include "grpcpp/channel.h"
#include "tributary/v1/client_service.pb.h"

namespace tributary::client::internal {

struct DownloadTarget {
  v1::DownloadRequest request;                             // its sha256 is what the model must have
  std::shared_ptr<const aggregation::ModelLayout> layout;  // nothing larger than its model is taken
};

struct Downloaded {
  std::vector<uint8_t> bytes;
  // With steps: the bytes are these, from the model that the request says is held, and whether they
  // lead to the one that was asked for, their taker finds out. Else they are that model.
  v1::DeltaChain chain;
};

// Blocks until the bytes are here and checked (order, length, CRC32C, of a whole model the
// SHA-256), the call has failed, or `interrupted` is true (CANCELLED). DATA_LOSS: what came is not
// what was asked for; asking again may help. `received_bytes` grows by the model bytes that came,
// used or not.
absl::StatusOr<Downloaded> Download(const std::shared_ptr<grpc::Channel>& channel,
                                    const DownloadTarget& target,
                                    const std::shared_ptr<Mailbox>& mailbox,
                                    const std::function<bool()>& interrupted,
                                    std::atomic<uint64_t>* received_bytes);

}  // namespace tributary::client::internal
