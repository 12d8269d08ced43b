// The layout's checks, offsets, tiles and hash.
#include "aggregation/layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aggregation/internal/text.h"
#include "base/checksum.h"
#include "base/status.h"
#include "compression/codec.h"

namespace tributary::aggregation {
namespace {

using internal::Quoted;
using internal::Text;

constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxRank = 64;
constexpr uint64_t kMaxModelBytes = uint64_t{1} << 62;
// Keeps the table of tiles under 256 MiB, whatever a peer says: 2 TiB of sums.
constexpr uint64_t kMaxElements = uint64_t{1} << 38;

struct DTypeRow {
  std::string_view name;
  size_t bytes;
  bool is_float;
};
constexpr std::array<DTypeRow, 9> kDTypes = {{{"", 0, false},
                                              {"F32", 4, true},
                                              {"F64", 8, true},
                                              {"F16", 2, true},
                                              {"BF16", 2, true},
                                              {"I64", 8, false},
                                              {"I32", 4, false},
                                              {"U8", 1, false},
                                              {"BOOL", 1, false}}};
constexpr std::array<std::string_view, 6> kPolicies = {"", "mean", "sum", "max", "first", "skip"};

const DTypeRow& Row(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

bool Known(DType dtype) {
  return dtype >= DType::kF32 && static_cast<size_t>(dtype) < kDTypes.size();
}
bool Known(Policy policy) {
  return policy >= Policy::kMean && static_cast<size_t>(policy) < kPolicies.size();
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

absl::StatusOr<uint64_t> CountElements(const TensorSpec& tensor) {
  uint64_t elements = 1;
  for (const uint64_t dim : tensor.shape) {
    // A 0 anywhere makes the tensor empty, so it is the product that is limited, zeros apart.
    if (dim != 0 && elements > kMaxModelBytes / dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name), ": shape ", ShapeText(tensor.shape),
                       " has more than 2^62 elements; no model is that large, check the shape"));
    }
    elements *= std::max<uint64_t>(dim, 1);
  }
  return std::ranges::find(tensor.shape, 0u) == tensor.shape.end() ? elements : 0;
}

absl::Status CheckTensor(const TensorSpec& tensor, size_t index) {
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", index, " has a name of ",
                                                   tensor.name.size(), " bytes; give it 1 to 512"));
  }
  if (tensor.shape.size() > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), " has ",
                                                   tensor.shape.size(),
                                                   " dimensions; at most 64 are allowed"));
  }
  if (!Known(tensor.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name),
                                                   " has unknown dtype number ",
                                                   static_cast<int>(tensor.dtype)));
  }
  if (!Known(tensor.policy)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), " has unknown policy number ",
                     static_cast<int>(tensor.policy), "; name mean, sum, max, first or skip"));
  }
  return absl::OkStatus();
}

void AppendU64(uint64_t value, std::string* out) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// The canonical text of docs/wire-format.md, "Layout hash".
std::string HashOf(const std::vector<TensorSpec>& tensors) {
  std::string text = "tributary layout 1\n";
  AppendU64(tensors.size(), &text);
  for (const TensorSpec& tensor : tensors) {
    AppendU64(tensor.name.size(), &text);
    text += tensor.name;
    text.push_back(static_cast<char>(tensor.dtype));
    text.push_back(static_cast<char>(tensor.policy));
    AppendU64(tensor.shape.size(), &text);
    for (const uint64_t dim : tensor.shape) AppendU64(dim, &text);
  }
  return Sha256Of({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

}  // namespace

size_t DTypeBytes(DType dtype) { return Row(dtype).bytes; }
bool IsFloat(DType dtype) { return Row(dtype).is_float; }
std::string_view DTypeName(DType dtype) { return Row(dtype).name; }
std::string_view PolicyName(Policy policy) { return kPolicies[static_cast<size_t>(policy)]; }

absl::StatusOr<std::shared_ptr<const ModelLayout>> ModelLayout::Create(
    std::vector<TensorSpec> tensors) {
  if (tensors.empty() || tensors.size() > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat("the layout has ", tensors.size(),
                                                   " tensors; a model has 1 to ", kMaxTensors));
  }
  std::shared_ptr<ModelLayout> layout(new ModelLayout());
  absl::flat_hash_set<std::string_view> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    RETURN_IF_ERROR(CheckTensor(tensor, i));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor name ", Quoted(tensor.name),
                                                     " appears twice; names must be unique"));
    }
    ASSIGN_OR_RETURN(const uint64_t elements, CountElements(tensor));
    RETURN_IF_ERROR(layout->Place(tensor, elements));
  }
  layout->hash_ = HashOf(tensors);
  layout->tensors_ = std::move(tensors);
  return std::shared_ptr<const ModelLayout>(std::move(layout));
}

absl::Status ModelLayout::Place(const TensorSpec& tensor, uint64_t elements) {
  const uint64_t width = DTypeBytes(tensor.dtype);
  const bool sent = tensor.policy != Policy::kSkip;
  if (elements > (kMaxModelBytes - model_bytes_) / width) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quoted(tensor.name), " takes the model past 2^62 bytes; check its shape"));
  }
  if (sent && elements > kMaxElements - elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), " takes the aggregate past 2^38 elements (",
                     elements, " more on ", elements_, "); check its shape"));
  }
  const auto index = static_cast<uint32_t>(tensor_elements_.size());
  tensor_elements_.push_back(elements);
  byte_offsets_.push_back(model_bytes_);
  element_offsets_.push_back(elements_);
  first_tiles_.push_back(static_cast<uint32_t>(tiles_.size()));
  model_bytes_ += elements * width;
  if (!sent) return absl::OkStatus();
  for (uint64_t first = 0; first < elements; first += compression::kTileElements) {
    const uint64_t count = std::min(compression::kTileElements, elements - first);
    tiles_.push_back({index, first, count, elements_ + first});
  }
  elements_ += elements;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ModelLayout>> ModelLayout::FromProto(
    const v1::ModelLayout& proto) {
  std::vector<TensorSpec> tensors;
  tensors.reserve(proto.tensors_size());
  for (const v1::Tensor& tensor : proto.tensors()) {
    // Numbers that do not fit become 0, which Create refuses.
    const int dtype = v1::DType_IsValid(tensor.dtype()) ? tensor.dtype() : 0;
    const int policy = v1::Policy_IsValid(tensor.policy()) ? tensor.policy() : 0;
    tensors.push_back({tensor.name(),
                       {tensor.shape().begin(), tensor.shape().end()},
                       static_cast<DType>(dtype),
                       static_cast<Policy>(policy)});
  }
  return Create(std::move(tensors));
}

v1::ModelLayout ModelLayout::ToProto() const {
  v1::ModelLayout proto;
  for (const TensorSpec& tensor : tensors_) {
    v1::Tensor* out = proto.add_tensors();
    out->set_name(tensor.name);
    out->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    out->set_dtype(static_cast<v1::DType>(tensor.dtype));
    out->set_policy(static_cast<v1::Policy>(tensor.policy));
  }
  return proto;
}

std::string ModelLayout::DescribeDifference(const ModelLayout& other) const {
  const size_t common = std::min(tensors_.size(), other.tensors_.size());
  for (size_t i = 0; i < common; ++i) {
    const TensorSpec& have = tensors_[i];
    const TensorSpec& want = other.tensors_[i];
    const std::string subject = absl::StrCat("tensor ", Quoted(have.name));
    if (have.name != want.name) {
      return absl::StrCat("tensor ", i, " is named ", Quoted(have.name), ", expected ",
                          Quoted(want.name));
    }
    if (have.shape != want.shape) {
      return absl::StrCat(subject, " has shape ", ShapeText(have.shape), ", expected ",
                          ShapeText(want.shape));
    }
    if (have.dtype != want.dtype) {
      return absl::StrCat(subject, " has dtype ", Text(DTypeName(have.dtype)), ", expected ",
                          Text(DTypeName(want.dtype)));
    }
    if (have.policy != want.policy) {
      return absl::StrCat(subject, " has policy ", Text(PolicyName(have.policy)), ", expected ",
                          Text(PolicyName(want.policy)));
    }
  }
  if (tensors_.size() > common) {
    return absl::StrCat("tensor ", Quoted(tensors_[common].name), " is not expected");
  }
  if (other.tensors_.size() > common) {
    return absl::StrCat("tensor ", Quoted(other.tensors_[common].name), " is missing");
  }
  return "no difference";
}

}  // namespace tributary::aggregation
