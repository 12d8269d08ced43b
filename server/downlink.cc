// Publishing models, and choosing steps.
#include "server/downlink.h"

#include <spdlog/spdlog.h>

#include <limits>
#include <utility>

#include "aggregation/model_delta.h"
#include "base/philox.h"
#include "base/status.h"

namespace tributary::server {

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Create(const CompressionConfig& config,
                                                             uint64_t seed) {
  auto publisher = std::unique_ptr<Publisher>(new Publisher());
  publisher->seed_ = seed;
  if (config.downlink == kNoDownlinkCodec) return publisher;
  ASSIGN_OR_RETURN(publisher->policy_, aggregation::ParseDownlinkCodec(config.downlink));
  publisher->codec_ = config.downlink;
  publisher->keep_steps_ = config.downlink_steps;
  return publisher;
}

std::shared_ptr<const ModelVersion> Publisher::Publish(std::shared_ptr<const ModelVersion> exact,
                                                       const ModelVersion& published) const {
  if (policy_ == nullptr) return exact;
  const aggregation::ModelLayout& layout = *exact->layout;
  const aggregation::EncodeKeys keys{SeededHash(seed_, "downlink", ""),
                                     SeededHash(seed_, "downlink mask", "")};
  const auto whole = [&](absl::string_view why) {
    spdlog::warn("model {} goes down whole: {}", exact->version, std::string(why));
    return exact;
  };
  if (exact->version > std::numeric_limits<uint32_t>::max()) return whole("its round is over 2^32");
  auto delta = aggregation::EncodeModelDelta(
      layout, *policy_, keys, static_cast<uint32_t>(exact->version), published.bytes, exact->bytes);
  if (!delta.ok()) return whole(delta.status().message());
  if (delta->size() >= exact->bytes.size()) return exact;
  std::vector<uint8_t> bytes = published.bytes;
  if (const absl::Status status = aggregation::ApplyModelDelta(layout, *delta, bytes);
      !status.ok()) {
    return whole(status.message());
  }
  auto step = std::make_shared<ModelStep>();
  step->version = exact->version;
  step->base_sha256 = published.sha256;
  step->sha256 = Sha256Of(bytes);
  step->bytes = *std::move(delta);
  ModelSteps steps =
      KeepSteps(published.steps, {std::move(step)}, keep_steps_, layout.model_bytes());
  return ModelVersion::Make(exact->version, exact->layout, std::move(bytes), std::move(steps),
                            keep_steps_);
}

std::span<const std::shared_ptr<const ModelStep>> StepsFrom(const ModelVersion& model,
                                                            const std::string& held_sha256) {
  const std::span<const std::shared_ptr<const ModelStep>> steps(model.steps);
  if (held_sha256.empty()) return {};
  for (size_t i = steps.size(); i-- > 0;) {
    if (steps[i]->base_sha256 == held_sha256) return steps.subspan(i);
  }
  return {};
}

uint64_t ChainBytes(std::span<const std::shared_ptr<const ModelStep>> steps) {
  uint64_t bytes = 0;
  for (const auto& step : steps) bytes += step->bytes.size();
  return bytes;
}

v1::DeltaChain ChainMessage(std::span<const std::shared_ptr<const ModelStep>> steps, bool names) {
  v1::DeltaChain chain;
  if (steps.empty()) return chain;
  chain.set_base_sha256(steps.front()->base_sha256);
  for (const auto& step : steps) {
    v1::ModelStep* out = chain.add_steps();
    out->set_bytes(step->bytes.size());
    if (!names) continue;
    out->set_version(step->version);
    out->set_sha256(step->sha256);
  }
  return chain;
}

ModelSteps KeepSteps(ModelSteps steps, const ModelSteps& more, uint32_t keep,
                     uint64_t model_bytes) {
  steps.insert(steps.end(), more.begin(), more.end());
  size_t first = steps.size();
  uint64_t bytes = 0;
  // From the newest back: a chain as large as the model is never sent.
  while (first > 0 && steps.size() - first < keep) {
    bytes += steps[first - 1]->bytes.size();
    if (bytes >= model_bytes) break;
    --first;
  }
  steps.erase(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(first));
  return steps;
}

SentBytes BytesToSend(const ModelVersion& model, const std::string& held_sha256) {
  const auto steps = StepsFrom(model, held_sha256);
  const uint64_t bytes = steps.empty() ? model.bytes.size() : ChainBytes(steps);
  return {bytes, model.bytes.size() - bytes};
}

SentBytes PutModel(const ModelVersion& model, const std::string& held_sha256, uint64_t most,
                   v1::Task* task) {
  const SentBytes bytes = BytesToSend(model, held_sha256);
  if (bytes.sent > most) return {};
  const auto steps = StepsFrom(model, held_sha256);
  if (steps.empty()) {
    task->set_model(model.bytes.data(), model.bytes.size());
  } else {
    *task->mutable_chain() = ChainMessage(steps, /*names=*/false);
    task->mutable_model()->reserve(bytes.sent);
    for (const auto& step : steps)
      task->mutable_model()->append(step->bytes.begin(), step->bytes.end());
  }
  return bytes;
}

}  // namespace tributary::server
