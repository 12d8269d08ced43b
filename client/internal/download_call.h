// One attempt at fetching a model: a server-streaming call of raw messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/internal/mailbox.h"
#include "grpcpp/channel.h"
#include "tributary/v1/client_service.pb.h"

namespace tributary::client::internal {

struct DownloadTarget {
  v1::DownloadRequest request;  // its sha256 is what the bytes must have
  uint64_t model_bytes = 0;     // by the layout: nothing larger is taken in
  std::string layout_hash;
};

// Blocks until the model is here and checked (order, length, CRC32C, SHA-256), the call has failed,
// or `interrupted` is true (CANCELLED). DATA_LOSS: what came is not what was asked for; asking
// again may help. `received_bytes` grows by the model bytes that came, used or not.
absl::StatusOr<std::vector<uint8_t>> Download(const std::shared_ptr<grpc::Channel>& channel,
                                              const DownloadTarget& target,
                                              const std::shared_ptr<Mailbox>& mailbox,
                                              const std::function<bool()>& interrupted,
                                              std::atomic<uint64_t>* received_bytes);

}  // namespace tributary::client::internal
