// The model layout: named tensors in a fixed order, how each is combined, and where each lies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tributary/v1/model.pb.h"

namespace tributary::aggregation {

enum class DType : uint8_t {
  kF32 = 1,
  kF64,
  kF16,
  kBf16,
  kI64,
  kI32,
  kU8,
  kBool
};                                                                     // as in model.proto
enum class Policy : uint8_t { kMean = 1, kSum, kMax, kFirst, kSkip };  // as in model.proto

size_t DTypeBytes(DType dtype);
bool IsFloat(DType dtype);
std::string_view DTypeName(DType dtype);     // safetensors' names: "F32", "I64", ...
std::string_view PolicyName(Policy policy);  // "mean", "sum", "max", "first", "skip"

struct TensorSpec {
  std::string name;
  std::vector<uint64_t> shape;  // empty: a scalar
  DType dtype = DType::kF32;
  Policy policy = Policy::kMean;
};

// A stretch of one tensor that is folded at once: at most compression::kTileElements elements.
struct Tile {
  uint32_t tensor = 0;
  uint64_t first = 0;  // within the tensor
  uint64_t count = 0;
  uint64_t offset = 0;  // of its first element in the aggregate's flat element space
};

// A range of the flat element space: all tensors' elements, one tensor after another.
struct ElementRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Immutable, thread-safe.
class ModelLayout {
 public:
  // INVALID_ARGUMENT: no tensor or over 1,000,000; an empty, repeated or too long (512 bytes) name;
  // an unknown dtype or policy; over 64 dimensions, 2^62 bytes of model or 2^38 elements of
  // aggregate.
  static absl::StatusOr<std::shared_ptr<const ModelLayout>> Create(std::vector<TensorSpec> tensors);
  static absl::StatusOr<std::shared_ptr<const ModelLayout>> FromProto(const v1::ModelLayout& proto);
  v1::ModelLayout ToProto() const;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  uint64_t TensorElements(uint32_t tensor) const { return tensor_elements_[tensor]; }

  // The model: all tensors' bytes back to back, in order, little-endian, without padding.
  uint64_t model_bytes() const { return model_bytes_; }
  uint64_t TensorByteOffset(uint32_t tensor) const { return byte_offsets_[tensor]; }

  // The aggregate: one int64 for each element of each tensor that is not SKIP, back to back, in
  // order.
  uint64_t elements() const { return elements_; }
  uint64_t TensorElementOffset(uint32_t tensor) const { return element_offsets_[tensor]; }
  const std::vector<Tile>& tiles() const {
    return tiles_;
  }  // ascending in offset, covering all elements
  uint32_t FirstTileOf(uint32_t tensor) const { return first_tiles_[tensor]; }

  // SHA-256 (32 bytes) of names, shapes, dtypes and policies; how: docs/wire-format.md.
  const std::string& hash() const { return hash_; }
  // What differs first, for error messages: `tensor "fc1.weight" has shape [200,784], expected
  // [10,784]`.
  std::string DescribeDifference(const ModelLayout& other) const;

 private:
  ModelLayout() = default;
  absl::Status Place(const TensorSpec& tensor, uint64_t elements);  // after those placed before
  std::vector<TensorSpec> tensors_;
  std::vector<uint64_t> tensor_elements_, byte_offsets_, element_offsets_;
  std::vector<uint32_t> first_tiles_;
  std::vector<Tile> tiles_;
  uint64_t model_bytes_ = 0;
  uint64_t elements_ = 0;
  std::string hash_;
};

}  // namespace tributary::aggregation
