// Models down a link: whole, or as steps from the one that the child holds (docs/wire-format.md,
// "Streams between tiers").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/downlink.h"
#include "server/model_version.h"
#include "server/tier_stream.h"
#include "transport/link.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

// Sends the model, as steps where some lead to it from `held_sha256` ("": the child holds none, or
// takes no steps). `patience` and `cancelled` as in SendStream.
absl::Status SendModelStream(transport::Link& link, const ModelVersion& model,
                             const std::string& held_sha256, absl::Duration patience,
                             const std::function<bool()>& cancelled);

// Puts models together at the child, from one link after another. Not thread-safe.
class ModelReceiver {
 public:
  // Takes what `reader` has just been fed. The model, where it is whole and has the hash that was
  // announced; else null. INVALID_ARGUMENT: not a stream of such a model. DATA_LOSS: what came does
  // not make the model that was announced; nothing is held then, so that the next comes whole.
  absl::StatusOr<std::shared_ptr<const ModelVersion>> Take(
      const std::shared_ptr<const aggregation::ModelLayout>& layout, const StreamReader& reader,
      StreamReader::Got got, transport::Chunk chunk);
  // Of the model that steps can be taken from; "": none.
  std::string held_sha256() const { return held_ == nullptr ? "" : held_->sha256; }

 private:
  absl::Status Begin(const aggregation::ModelLayout& layout, const StreamReader& reader);
  absl::StatusOr<std::shared_ptr<const ModelVersion>> Complete(
      const std::shared_ptr<const aggregation::ModelLayout>& layout);
  absl::StatusOr<ModelSteps> TakeSteps(const aggregation::ModelLayout& layout,
                                       std::vector<uint8_t>* model) const;

  v1::ModelStreamHeader header_;
  std::vector<uint8_t> bytes_;
  std::shared_ptr<const ModelVersion> held_;
};

}  // namespace tributary::server
