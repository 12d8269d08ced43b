// One version of the global model, as every tier serves it. Immutable once made, shared by all
// downloads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aggregation/layout.h"
#include "base/checksum.h"

namespace tributary::server {

struct ModelVersion {
  uint64_t version = 0;
  std::string sha256;  // of bytes; 32 raw bytes
  uint32_t crc32c = 0;
  std::vector<uint8_t> bytes;
  std::shared_ptr<const aggregation::ModelLayout> layout;

  static std::shared_ptr<const ModelVersion> Make(
      uint64_t version, std::shared_ptr<const aggregation::ModelLayout> layout,
      std::vector<uint8_t> bytes) {
    auto model = std::make_shared<ModelVersion>();
    model->version = version;
    model->sha256 = Sha256Of(bytes);
    model->crc32c = Crc32c(bytes);
    model->bytes = std::move(bytes);
    model->layout = std::move(layout);
    return model;
  }
};

// Where gRPC threads find the current model. Thread-safe.
class ModelShelf {
 public:
  void Put(std::shared_ptr<const ModelVersion> model) {
    std::lock_guard lock(mu_);
    current_ = std::move(model);
  }
  std::shared_ptr<const ModelVersion> Current() const {
    std::lock_guard lock(mu_);
    return current_;
  }

 private:
  mutable std::mutex mu_;
  std::shared_ptr<const ModelVersion> current_;  // guarded by mu_
};

}  // namespace tributary::server
