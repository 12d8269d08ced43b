// Trains one update and encodes it with every codec.
#include "client/trainer/internal/probe.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "aggregation/update.h"
#include "base/status.h"
#include "client/trainer/dataset.h"
#include "client/trainer/split.h"
#include "client/trainer/trainer.h"
#include "compression/codec.h"
#include "compression/policy.h"
#include "compression/segment.h"
#include "models/builtin.h"

namespace tributary::client::trainer {
namespace {

class UpdateSource final : public aggregation::DeltaSource {
 public:
  explicit UpdateSource(const TrainResult& update) : update_(update) {}
  absl::StatusOr<std::span<const float>> Floats(uint32_t t) override { return update_.floats[t]; }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t t) override { return update_.ints[t]; }

 private:
  const TrainResult& update_;
};

// Adds a segment's squared error to `error`.
absl::Status AddError(const TrainResult& update, const std::vector<uint8_t>& segment,
                      double* error) {
  const PiecedBytes bytes{ByteSpan(segment)};
  ByteCursor cursor(bytes);
  ASSIGN_OR_RETURN(const auto header, compression::ReadSegmentHeader(&cursor));
  if (header.codec == static_cast<uint16_t>(compression::CodecId::kRawInt64)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto codec, compression::CodecFromHeader(header.codec, header.parameter));
  const PiecedBytes payload{ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)};
  std::vector<float> decoded(header.count);
  codec->Decode(payload, decoded);
  const float* x = update.floats[header.tensor].data() + header.first;
  for (uint64_t i = 0; i < header.count; ++i) {
    const double lost = static_cast<double>(x[i]) - static_cast<double>(decoded[i]);
    *error += lost * lost;
  }
  return absl::OkStatus();
}

absl::StatusOr<ProbeRow> ProbeOne(const aggregation::ModelLayout& layout, const TrainResult& update,
                                  const std::string& spec) {
  ASSIGN_OR_RETURN(const auto policy, compression::CodecPolicy::Parse(spec));
  ProbeRow row{.spec = spec, .error_feedback = policy->error_feedback()};
  double squares = 0, elements = 0, best = std::numeric_limits<double>::infinity();
  for (const std::vector<float>& tensor : update.floats) {
    elements += static_cast<double>(tensor.size());
    for (const float v : tensor) squares += static_cast<double>(v) * static_cast<double>(v);
  }
  UpdateSource source(update);
  std::vector<std::vector<uint8_t>> segments;
  for (int repetition = 0; repetition < 3; ++repetition) {
    segments.clear();
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(aggregation::EncodeUpdate(layout, *policy, {1, 2}, 1, source,
                                              [&](std::vector<uint8_t> segment) {
                                                segments.push_back(std::move(segment));
                                                return absl::OkStatus();
                                              }));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  double error = 0;
  for (const std::vector<uint8_t>& segment : segments) {
    row.bytes += segment.size();
    RETURN_IF_ERROR(AddError(update, segment, &error));
  }
  row.times_smaller = 4 * elements / static_cast<double>(row.bytes);
  row.nmse = squares > 0 ? error / squares : 0;
  row.encode_ns = best * 1e9 / elements;
  return row;
}

absl::StatusOr<TrainResult> TrainOnce(const ClientConfig& config, const models::Model& model) {
  ASSIGN_OR_RETURN(const auto pool, NetworkPool::Create(config.model, 1));
  ASSIGN_OR_RETURN(const ImageFormat format, FormatOf(config.dataset));
  RETURN_IF_ERROR(pool->CheckInput(format));
  ASSIGN_OR_RETURN(const Dataset dataset, LoadDataset(config.dataset, config.directory));
  ASSIGN_OR_RETURN(const Parts parts, SplitTraining(dataset.train.labels, config.split));
  TorchTrainer::Data data{.format = dataset.format,
                          .train = Gather(dataset.train, dataset.format, parts[config.index]),
                          .test = {}};
  ASSIGN_OR_RETURN(auto trainer, TorchTrainer::Create(pool, config.id, std::move(data)));
  TrainTask task;
  task.layout = model.layout;
  task.base = std::make_shared<const std::vector<uint8_t>>(model.bytes);
  task.spec.set_run("probe");
  task.spec.set_round(1);
  task.spec.set_seed(config.split.seed);
  return trainer->Train(task, [] { return false; });
}

}  // namespace

const std::vector<std::string>& ProbedSpecs() {
  static const auto* specs = new std::vector<std::string>{"fp32",
                                                          "fp16",
                                                          "bf16",
                                                          "int8",
                                                          "int8 | zstd",
                                                          "int8 | lz4",
                                                          "int8 | zeros",
                                                          "int4",
                                                          "int2",
                                                          "sign",
                                                          "sign(mode=vote, step=2^-10)",
                                                          "fp8",
                                                          "fp8(format=e5m2)",
                                                          "mxfp8",
                                                          "mxfp8(format=e5m2)",
                                                          "mxfp4",
                                                          "mxint8",
                                                          "eden(bits=1)",
                                                          "eden(bits=2)",
                                                          "eden(bits=3)",
                                                          "eden(bits=4)",
                                                          "hq(bits=8, step=2^-14)",
                                                          "hq(bits=4, step=2^-10)",
                                                          "randk(0.01)",
                                                          "randk(0.01, scaled=no)",
                                                          "powersgd(rank=1)",
                                                          "powersgd(rank=4)",
                                                          "sketch(0.1)",
                                                          "topk(0.1)",
                                                          "topk(0.01)",
                                                          "topk(0.01, values=fp16)",
                                                          "topk(0.01, values=int8)",
                                                          "topk(0.01, values=ternary)",
                                                          "topk(0.001, values=ternary)"};
  return *specs;
}

absl::StatusOr<std::vector<ProbeRow>> ProbeUpdate(const aggregation::ModelLayout& layout,
                                                  const TrainResult& update,
                                                  const std::vector<std::string>& specs) {
  std::vector<ProbeRow> rows;
  for (const std::string& spec : specs) {
    ASSIGN_OR_RETURN(ProbeRow row, ProbeOne(layout, update, spec));
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status ProbeCodecs(const ClientConfig& config) {
  ASSIGN_OR_RETURN(const models::Model model,
                   models::BuiltinModel(config.model, config.split.seed));
  ASSIGN_OR_RETURN(const TrainResult update, TrainOnce(config, model));
  ASSIGN_OR_RETURN(const auto rows, ProbeUpdate(*model.layout, update, ProbedSpecs()));
  uint64_t all = 0, small = 0;
  for (uint32_t t = 0; t < model.layout->tensors().size(); ++t) {
    const aggregation::TensorSpec& tensor = model.layout->tensors()[t];
    if (!aggregation::IsFloat(tensor.dtype)) continue;
    const uint64_t elements = model.layout->TensorElements(t);
    all += elements;
    if (tensor.shape.size() <= 1 || elements < compression::kSmallTensorElements) small += elements;
  }
  std::printf(
      "%s, %s: one local epoch on %lld examples\n"
      "%llu of %llu parameters are in tensors of one dimension or under %llu elements and stay "
      "fp32;\n\"CODEC; small = CODEC\" takes them, too\n\n",
      config.model.c_str(), config.dataset.c_str(), static_cast<long long>(update.weight),
      static_cast<unsigned long long>(small), static_cast<unsigned long long>(all),
      static_cast<unsigned long long>(compression::kSmallTensorElements));
  std::printf("%-28s %12s %9s %11s %11s  %s\n", "codec", "bytes", "smaller", "NMSE", "encode",
              "error feedback");
  for (const ProbeRow& row : rows) {
    std::printf("%-28s %12llu %8.1fx %11.3e %8.2f ns  %s\n", row.spec.c_str(),
                static_cast<unsigned long long>(row.bytes), row.times_smaller, row.nmse,
                row.encode_ns, row.error_feedback ? "yes: what is lost comes later" : "");
  }
  return absl::OkStatus();
}

}  // namespace tributary::client::trainer
