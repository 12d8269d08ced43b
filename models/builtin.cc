// The table of built-in models, and their seeded initial weights.
#include "models/builtin.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/philox.h"
#include "base/status.h"
#include "models/builtin_layout.h"

namespace tributary::models {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian");

void ModelBuilder::Uniform(const std::string& name, std::vector<uint64_t> shape, double bound) {
  tensors_.push_back({.spec = {.name = name, .shape = std::move(shape)}, .bound = bound});
}

void ModelBuilder::Constant(const std::string& name, std::vector<uint64_t> shape, double value) {
  tensors_.push_back({.spec = {.name = name, .shape = std::move(shape)}, .constant = value});
}

// torch draws these by kaiming_uniform_(a = sqrt(5)), whose bound is sqrt(6 / ((1 + 5) fan_in)).
void ModelBuilder::Linear(const std::string& name, uint64_t in, uint64_t out) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  Uniform(absl::StrCat(name, ".weight"), {out, in}, bound);
  Uniform(absl::StrCat(name, ".bias"), {out}, bound);
}

void ModelBuilder::Conv(const std::string& name, uint64_t in, uint64_t out, uint64_t kernel) {
  const double bound = 1 / std::sqrt(static_cast<double>(in * kernel * kernel));
  Uniform(absl::StrCat(name, ".weight"), {out, in, kernel, kernel}, bound);
  Uniform(absl::StrCat(name, ".bias"), {out}, bound);
}

// torchvision draws from a normal distribution. A normal needs log and cos, whose last bits differ
// between C libraries, so a uniform of the same variance stands in: its bound is sqrt(3) times the
// standard deviation.
void ModelBuilder::ResNetConv(const std::string& name, uint64_t in, uint64_t out, uint64_t kernel) {
  const double bound = std::sqrt(6 / static_cast<double>(out * kernel * kernel));
  Uniform(absl::StrCat(name, ".weight"), {out, in, kernel, kernel}, bound);
}

void ModelBuilder::BatchNorm(const std::string& name, uint64_t channels) {
  Constant(absl::StrCat(name, ".weight"), {channels}, 1);
  Constant(absl::StrCat(name, ".bias"), {channels}, 0);
  Constant(absl::StrCat(name, ".running_mean"), {channels}, 0);
  Constant(absl::StrCat(name, ".running_var"), {channels}, 1);
  Constant(absl::StrCat(name, ".num_batches_tracked"), {}, 0);
  tensors_.back().spec.dtype = DType::kI64;
  tensors_.back().spec.policy = Policy::kMax;
}

namespace {

std::vector<TensorInit> TwoNn() {
  ModelBuilder model;
  model.Linear("fc1", 784, 200);
  model.Linear("fc2", 200, 200);
  model.Linear("fc3", 200, 10);
  return std::move(model).Take();
}

std::vector<TensorInit> Cnn() {
  ModelBuilder model;
  model.Conv("conv1", 1, 32, 5);   // 28x28, padding 2, then pooled to 14x14
  model.Conv("conv2", 32, 64, 5);  // then pooled to 7x7
  model.Linear("fc1", 64 * 7 * 7, 512);
  model.Linear("fc2", 512, 10);
  return std::move(model).Take();
}

std::vector<TensorInit> LogReg() {
  ModelBuilder model;
  model.Linear("fc", 784, 10);
  return std::move(model).Take();
}

std::vector<TensorInit> MlpDigits() {
  ModelBuilder model;
  model.Linear("fc1", 64, 32);
  model.Linear("fc2", 32, 10);
  return std::move(model).Take();
}

std::vector<TensorInit> MlpFashion() {
  ModelBuilder model;
  model.Linear("fc1", 784, 96);
  model.Linear("fc2", 96, 10);
  return std::move(model).Take();
}

struct Builtin {
  const char* name;
  std::vector<TensorInit> (*make)();
};
constexpr Builtin kBuiltins[] = {{"2nn", TwoNn},
                                 {"cnn", Cnn},
                                 {"logreg", LogReg},
                                 {"mlp-digits", MlpDigits},
                                 {"mlp-fashion", MlpFashion},
                                 {"resnet18", ResNet18},
                                 {"resnet50", ResNet50}};

constexpr std::string_view kSynthetic = "synthetic:";
constexpr uint64_t kMaxSynthetic = uint64_t{1} << 40;  // a layout's limit of elements

// N of "synthetic:N"; nothing for any other name.
std::optional<uint64_t> SyntheticElements(std::string_view name) {
  if (!name.starts_with(kSynthetic)) return std::nullopt;
  const std::string digits(name.substr(kSynthetic.size()));
  const bool plain = digits.find_first_not_of("0123456789") == std::string::npos;
  uint64_t n = 0;
  if (!plain || !absl::SimpleAtoi(digits, &n) || n == 0 || n > kMaxSynthetic) return std::nullopt;
  return n;
}

absl::StatusOr<std::vector<TensorInit>> Tensors(std::string_view name) {
  for (const Builtin& builtin : kBuiltins) {
    if (name == builtin.name) return builtin.make();
  }
  if (const std::optional<uint64_t> n = SyntheticElements(name)) {
    ModelBuilder model;
    model.Uniform("weight", {*n}, 0.0625);
    return std::move(model).Take();
  }
  return absl::NotFoundError(absl::StrCat("no built-in model \"", std::string(name),
                                          "\"; known are ", absl::StrJoin(BuiltinNames(), ", "),
                                          " and synthetic:N (N from 1 to 2^40 elements)"));
}

absl::StatusOr<std::shared_ptr<const ModelLayout>> LayoutOf(
    const std::vector<TensorInit>& tensors) {
  std::vector<aggregation::TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TensorInit& tensor : tensors) specs.push_back(tensor.spec);
  return ModelLayout::Create(std::move(specs));
}

// Element i is float((2 u - 1) bound), u the i-th double of the tensor's Philox stream: exact IEEE
// operations only, so that every machine draws the same bits.
void FillF32(const TensorInit& tensor, uint64_t elements, uint64_t seed, uint8_t* out) {
  PhiloxStream stream(SeededHash(seed, "init", tensor.spec.name));
  for (uint64_t i = 0; i < elements; ++i) {
    const double value =
        tensor.bound > 0 ? (2 * stream.NextDouble() - 1) * tensor.bound : tensor.constant;
    const float element = static_cast<float>(value);
    std::memcpy(out + i * sizeof(float), &element, sizeof(float));
  }
}

}  // namespace

std::vector<std::string> BuiltinNames() {
  std::vector<std::string> names;
  for (const Builtin& builtin : kBuiltins) names.emplace_back(builtin.name);
  return names;
}

bool IsBuiltin(std::string_view name) {
  for (const Builtin& builtin : kBuiltins) {
    if (name == builtin.name) return true;
  }
  return SyntheticElements(name).has_value();
}

absl::StatusOr<std::shared_ptr<const ModelLayout>> BuiltinLayout(std::string_view name) {
  ASSIGN_OR_RETURN(const std::vector<TensorInit> tensors, Tensors(name));
  return LayoutOf(tensors);
}

absl::StatusOr<Model> BuiltinModel(std::string_view name, uint64_t seed) {
  ASSIGN_OR_RETURN(const std::vector<TensorInit> tensors, Tensors(name));
  Model model;
  ASSIGN_OR_RETURN(model.layout, LayoutOf(tensors));
  model.bytes.resize(model.layout->model_bytes());  // the int64 counters are 0 by this
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].spec.dtype != DType::kF32) continue;
    FillF32(tensors[t], model.layout->TensorElements(t), seed,
            model.bytes.data() + model.layout->TensorByteOffset(t));
  }
  return model;
}

}  // namespace tributary::models
