// Private to models/: the JSON header of a safetensors file, written and parsed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"

namespace tributary::models {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit

struct HeaderEntry {
  aggregation::TensorSpec spec;  // with the default policy of its dtype
  uint64_t begin = 0;            // of its bytes, from the data's start
  uint64_t end = 0;
};

// The first bytes of the file: the header's length (8 bytes, little-endian) and the header, padded
// with spaces so that the data starts on a multiple of 8. INVALID_ARGUMENT: a name or a metadata
// value that is not UTF-8 (JSON cannot carry it), a tensor named "__metadata__", too long a header.
absl::StatusOr<std::string> MakeHeader(const aggregation::ModelLayout& layout,
                                       const std::map<std::string, std::string>& metadata);

// Parses the JSON of a file whose data part has `data_bytes` bytes. The entries, in data order,
// cover the data without gap or overlap; else INVALID_ARGUMENT says what is wrong.
absl::StatusOr<std::vector<HeaderEntry>> ParseHeader(std::string_view json, uint64_t data_bytes);

}  // namespace tributary::models
