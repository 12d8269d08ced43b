// The way down: which model clients are given, and how: whole, or as steps from one that they hold.
//
// The root keeps two models. The exact one, M, is what updates are applied to. The published one,
// P, is what everybody below trains from; it follows M by what the codec can say:
//   P[r] = P[r-1] + decode(encode(M[r] - P[r-1]))
// so that whatever a step has lost is part of the next one's difference (error feedback; Tang et
// al., "DoubleSqueeze", 2019). All who take the steps have P's bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "compression/policy.h"
#include "server/config.h"
#include "server/model_version.h"
#include "tributary/v1/client_service.pb.h"
#include "tributary/v1/model.pb.h"

namespace tributary::server {

// Makes published models. Immutable, thread-safe.
class Publisher {
 public:
  // INVALID_ARGUMENT where the codec cannot go down.
  static absl::StatusOr<std::unique_ptr<Publisher>> Create(const CompressionConfig& config,
                                                           uint64_t seed);
  // The spec that tasks carry: "" where models go down whole.
  const std::string& codec() const { return codec_; }
  // What is published for `exact` after `published`, of the same layout. `exact` itself, without
  // steps, where there is no codec, where the step would be no smaller than the model, or where the
  // codec cannot hold the difference (which is logged): the way down then starts afresh from there.
  std::shared_ptr<const ModelVersion> Publish(std::shared_ptr<const ModelVersion> exact,
                                              const ModelVersion& published) const;

 private:
  Publisher() = default;
  std::string codec_;
  std::shared_ptr<const compression::CodecPolicy> policy_;  // null: none
  uint32_t keep_steps_ = 0;
  uint64_t seed_ = 0;
};

// The fewest of the model's steps that lead to it from the one that is held; empty: send it whole.
std::span<const std::shared_ptr<const ModelStep>> StepsFrom(const ModelVersion& model,
                                                            const std::string& held_sha256);

// Of a chain of steps; `names`: with versions and hashes, as aggregators need them.
uint64_t ChainBytes(std::span<const std::shared_ptr<const ModelStep>> steps);
v1::DeltaChain ChainMessage(std::span<const std::shared_ptr<const ModelStep>> steps, bool names);

// `steps` and then `more`, without the oldest that are beyond the limits: of number, and as many
// bytes as the model has.
ModelSteps KeepSteps(ModelSteps steps, const ModelSteps& more, uint32_t keep, uint64_t model_bytes);

// Bytes of models that were sent, and how many fewer that is than whole models have.
struct SentBytes {
  uint64_t sent = 0;
  uint64_t saved = 0;
};

// What sending it to who holds that model takes.
SentBytes BytesToSend(const ModelVersion& model, const std::string& held_sha256);

// Puts the model into a client's task, as steps from what it holds where there are some, if that is
// not more than `most` bytes: else the client downloads it.
SentBytes PutModel(const ModelVersion& model, const std::string& held_sha256, uint64_t most,
                   v1::Task* task);

}  // namespace tributary::server
