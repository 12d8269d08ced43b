// Sending models and putting them together.
#include "server/model_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/model_delta.h"
#include "base/status.h"

namespace tributary::server {
namespace {

uint64_t ChunksOf(uint64_t bytes) { return (bytes + kModelChunkBytes - 1) / kModelChunkBytes; }

// Copies out of pieces that lie one after another, forwards.
class Gather {
 public:
  explicit Gather(PiecedBytes bytes) : bytes_(std::move(bytes)), cursor_(bytes_) {}
  Gather(const Gather&) = delete;
  size_t Next(uint8_t* out, size_t most) {
    const size_t n = std::min(most, bytes_.size() - at_);
    cursor_.Read(out, n);
    at_ += n;
    return n;
  }

 private:
  PiecedBytes bytes_;
  ByteCursor cursor_;
  size_t at_ = 0;
};

}  // namespace

absl::Status SendModelStream(transport::Link& link, const ModelVersion& model,
                             const std::string& held_sha256, absl::Duration patience,
                             const std::function<bool()>& cancelled) {
  const auto steps = StepsFrom(model, held_sha256);
  PiecedBytes data;
  if (steps.empty()) data.Append(model.bytes);
  for (const auto& step : steps) data.Append(step->bytes);
  const uint64_t bytes = data.size();
  v1::ModelStreamHeader header;
  header.set_version(model.version);
  header.set_sha256(model.sha256);
  header.set_bytes(bytes);
  header.set_layout_hash(model.layout->hash());
  header.set_keep_steps(model.keep_steps);
  if (!steps.empty()) *header.mutable_chain() = ChainMessage(steps, /*names=*/true);
  Gather gather(std::move(data));
  return SendStream(
      link, ModelStreamId(model.version), header.SerializeAsString(), ChunksOf(bytes), patience,
      [&gather](uint64_t, uint8_t* out) { return gather.Next(out, kModelChunkBytes); }, cancelled);
}

absl::Status ModelReceiver::Begin(const aggregation::ModelLayout& layout,
                                  const StreamReader& reader) {
  if (!header_.ParseFromString(reader.header()) || header_.layout_hash() != layout.hash() ||
      reader.total() != ChunksOf(header_.bytes())) {
    return absl::InvalidArgumentError(
        "the parent's model stream does not fit the layout it told us");
  }
  const v1::DeltaChain& chain = header_.chain();
  const bool fits = chain.steps().empty() ? header_.bytes() == layout.model_bytes()
                                          : aggregation::ChainFits(layout, chain, header_.bytes());
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the parent's model stream has ", header_.bytes(), " bytes in ", chain.steps_size(),
        " steps, by the layout the model has ", layout.model_bytes()));
  }
  if (!chain.steps().empty() && chain.base_sha256() != held_sha256()) {
    return absl::DataLossError("the parent sends steps from a model that is not held");
  }
  bytes_.assign(header_.bytes(), 0);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ModelVersion>> ModelReceiver::Take(
    const std::shared_ptr<const aggregation::ModelLayout>& layout, const StreamReader& reader,
    StreamReader::Got got, transport::Chunk chunk) {
  if (got == StreamReader::Got::kMoreHeader) return nullptr;
  if (got == StreamReader::Got::kHeader) {
    if (const absl::Status status = Begin(*layout, reader); !status.ok()) {
      held_ = nullptr;
      return status;
    }
    if (reader.total() > 0) return nullptr;
  } else {
    const uint64_t at = reader.data_index() * kModelChunkBytes;
    if (chunk.size() != std::min(kModelChunkBytes, header_.bytes() - at)) {
      return absl::InvalidArgumentError(
          absl::StrCat("model chunk ", reader.data_index(), " has ", chunk.size(), " bytes"));
    }
    std::memcpy(bytes_.data() + at, chunk.data(), chunk.size());
    if (reader.data_index() + 1 < reader.total()) return nullptr;
  }
  chunk = transport::Chunk();  // its credit goes back before the hash is computed
  absl::StatusOr<std::shared_ptr<const ModelVersion>> model = Complete(layout);
  bytes_ = {};
  held_ = model.ok() ? *model : nullptr;
  return model;
}

absl::StatusOr<std::shared_ptr<const ModelVersion>> ModelReceiver::Complete(
    const std::shared_ptr<const aggregation::ModelLayout>& layout) {
  std::vector<uint8_t> bytes;
  ModelSteps steps;
  if (header_.chain().steps().empty()) {
    bytes = std::move(bytes_);
  } else {
    bytes = held_->bytes;
    ASSIGN_OR_RETURN(const ModelSteps more, TakeSteps(*layout, &bytes));
    steps = KeepSteps(held_->steps, more, header_.keep_steps(), layout->model_bytes());
  }
  auto model = ModelVersion::Make(header_.version(), layout, std::move(bytes), std::move(steps),
                                  header_.keep_steps());
  if (model->sha256 == header_.sha256()) return model;
  return absl::DataLossError(absl::StrCat(
      "model ", header_.version(), ": its SHA-256 is not what was announced",
      header_.chain().steps().empty() ? ""
                                      : ", after the steps from the model held; it is asked "
                                        "for whole"));
}

absl::StatusOr<ModelSteps> ModelReceiver::TakeSteps(const aggregation::ModelLayout& layout,
                                                    std::vector<uint8_t>* model) const {
  ModelSteps steps;
  std::string base = header_.chain().base_sha256();
  ByteSpan rest(bytes_);
  for (const v1::ModelStep& named : header_.chain().steps()) {
    auto step = std::make_shared<ModelStep>();
    step->version = named.version();
    step->base_sha256 = std::exchange(base, named.sha256());
    step->sha256 = named.sha256();
    const ByteSpan bytes = rest.first(named.bytes());
    rest = rest.subspan(named.bytes());
    step->bytes.assign(bytes.begin(), bytes.end());
    if (const absl::Status status = aggregation::ApplyModelDelta(layout, step->bytes, *model);
        !status.ok()) {
      return absl::DataLossError(absl::StrCat("model ", header_.version(), ": ", status.message(),
                                              "; it is asked for whole"));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace tributary::server
