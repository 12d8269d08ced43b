// The safetensors file format (huggingface/safetensors, format of 2022): 8-byte header length,
// JSON, data.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/builtin.h"

namespace tributary::models {

// Writes the model to `path` (truncating it) and fsyncs it. `metadata` becomes "__metadata__".
// Streams: no copy of the model is made. Errors name the path and errno's text.
absl::Status WriteSafetensors(const std::string& path, const aggregation::ModelLayout& layout,
                              std::span<const uint8_t> bytes,
                              const std::map<std::string, std::string>& metadata);

// Reads a file. Tensors are put in the file's data order; policies are the defaults: floats MEAN,
// integers MAX. INVALID_ARGUMENT for anything that is not a well-formed file of known dtypes:
// lengths are checked before memory is taken.
absl::StatusOr<Model> ReadSafetensors(const std::string& path);

// The layout alone: the header is read, the tensors are not.
absl::StatusOr<std::shared_ptr<const aggregation::ModelLayout>> ReadSafetensorsLayout(
    const std::string& path);

// As ReadSafetensors, but into a given layout: every tensor must be there with its shape and dtype,
// and no other.
absl::StatusOr<Model> ReadSafetensorsAs(const std::string& path,
                                        std::shared_ptr<const aggregation::ModelLayout> layout);

}  // namespace tributary::models
