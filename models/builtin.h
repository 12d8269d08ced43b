// The built-in models without LibTorch: layouts and seeded initial weights, the same bits on every
// machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"

namespace tributary::models {

// A model: its layout and its tensor bytes (layout.model_bytes() of them, back to back,
// little-endian).
struct Model {
  std::shared_ptr<const aggregation::ModelLayout> layout;
  std::vector<uint8_t> bytes;
};

// "2nn" (784-200-200-10), "cnn" (2 conv 5x5 32/64, fc 512), "logreg" (784-10), "mlp-digits"
// (64-32-10), "mlp-fashion" (784-96-10), "resnet18", "resnet50" (ImageNet's, with BatchNorm
// buffers: their int64 counters have policy MAX, their running statistics MEAN), "synthetic:N" (one
// F32 tensor of N elements; for benches).
std::vector<std::string> BuiltinNames();
bool IsBuiltin(std::string_view name);

// NOT_FOUND names what is known. Weights by He/Glorot-uniform bounds as in torch's defaults (LeCun
// 1998; He et al., 2015), drawn from Philox under SeededHash(seed, "init", tensor name), element by
// element.
absl::StatusOr<std::shared_ptr<const aggregation::ModelLayout>> BuiltinLayout(
    std::string_view name);
absl::StatusOr<Model> BuiltinModel(std::string_view name, uint64_t seed);

}  // namespace tributary::models
