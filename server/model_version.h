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

// How one version is reached from the one before (docs/wire-format.md, "Model delta").
struct ModelStep {
  uint64_t version = 0;     // of the model that it leads to
  std::string base_sha256;  // of the model that it is taken from
  std::string sha256;       // of the one that it leads to
  std::vector<uint8_t> bytes;
};
using ModelSteps = std::vector<std::shared_ptr<const ModelStep>>;

struct ModelVersion {
  uint64_t version = 0;
  std::string sha256;  // of bytes; 32 raw bytes
  uint32_t crc32c = 0;
  std::vector<uint8_t> bytes;
  std::shared_ptr<const aggregation::ModelLayout> layout;
  // The last steps that led here, the oldest first, each from where the one before leads; all
  // together fewer bytes than the model. Kept: at most `keep_steps`, by every tier.
  ModelSteps steps;
  uint32_t keep_steps = 0;

  static std::shared_ptr<const ModelVersion> Make(
      uint64_t version, std::shared_ptr<const aggregation::ModelLayout> layout,
      std::vector<uint8_t> bytes, ModelSteps steps = {}, uint32_t keep_steps = 0) {
    auto model = std::make_shared<ModelVersion>();
    model->version = version;
    model->sha256 = Sha256Of(bytes);
    model->crc32c = Crc32c(bytes);
    model->bytes = std::move(bytes);
    model->layout = std::move(layout);
    model->steps = std::move(steps);
    model->keep_steps = keep_steps;
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
