// The JSON header of a safetensors file, written and parsed.
#include "models/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tributary::models {
namespace {

using aggregation::DType;
using aggregation::Policy;
using nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBf16,
                             DType::kI64, DType::kI32, DType::kU8,  DType::kBool};

absl::StatusOr<std::string> Quote(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("the string ", json(text).dump(-1, ' ', true, json::error_handler_t::replace),
                     " is not UTF-8, which a safetensors header must be; rename it"));
  }
}

absl::Status Wrong(const std::string& tensor, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor, "\" ", what));
}

std::optional<DType> DTypeNamed(const std::string& name) {
  for (const DType dtype : kDTypes) {
    if (name == aggregation::DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

absl::Status CheckMetadata(const json& metadata) {
  if (!metadata.is_object()) return absl::InvalidArgumentError("__metadata__ is not an object");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("__metadata__ \"", key, "\" is not a string, as the format asks"));
    }
  }
  return absl::OkStatus();
}

// The bytes a shape takes; nothing where they do not fit 64 bits. An empty tensor has 0 whatever
// its other dimensions, so zeros are looked for first.
std::optional<uint64_t> ShapeBytes(const std::vector<uint64_t>& shape, DType dtype) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t bytes = aggregation::DTypeBytes(dtype);
  for (const uint64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::StatusOr<std::vector<uint64_t>> Unsigneds(const std::string& tensor, const json& entry,
                                                const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) {
    return Wrong(tensor, absl::StrCat("has no array \"", key, "\""));
  }
  std::vector<uint64_t> out;
  for (const json& number : *found) {
    if (!number.is_number_unsigned()) {
      return Wrong(tensor, absl::StrCat("has a \"", key,
                                        "\" entry that is not a whole number of 0 or more"));
    }
    out.push_back(number.get<uint64_t>());
  }
  return out;
}

absl::StatusOr<HeaderEntry> ParseEntry(const std::string& name, const json& entry) {
  if (!entry.is_object()) return Wrong(name, "is not described by an object");
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return Wrong(name, absl::StrCat("has the unknown property \"", key, "\""));
    }
  }
  const auto dtype_name = entry.find("dtype");
  if (dtype_name == entry.end() || !dtype_name->is_string())
    return Wrong(name, "has no string \"dtype\"");
  const std::optional<DType> dtype = DTypeNamed(dtype_name->get<std::string>());
  if (!dtype.has_value()) {
    return Wrong(name, absl::StrCat("has dtype \"", dtype_name->get<std::string>(),
                                    "\"; known are F32, F64, F16, BF16, I64, I32, U8, BOOL"));
  }
  HeaderEntry out;
  out.spec.name = name;
  out.spec.dtype = *dtype;
  out.spec.policy = aggregation::IsFloat(*dtype) ? Policy::kMean : Policy::kMax;
  ASSIGN_OR_RETURN(out.spec.shape, Unsigneds(name, entry, "shape"));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> offsets, Unsigneds(name, entry, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return Wrong(name, "has data_offsets that are not [begin, end] with begin <= end");
  }
  out.begin = offsets[0];
  out.end = offsets[1];
  const std::optional<uint64_t> bytes = ShapeBytes(out.spec.shape, *dtype);
  if (bytes != out.end - out.begin) {
    return Wrong(name, absl::StrCat("has ", out.end - out.begin, " bytes of data, but ",
                                    std::string(aggregation::DTypeName(*dtype)), " of shape [",
                                    absl::StrJoin(out.spec.shape, ","), "] takes ",
                                    bytes ? absl::StrCat(*bytes) : "more than 2^64"));
  }
  return out;
}

absl::Status CheckCoverage(const std::vector<HeaderEntry>& entries, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin != at) {
      return Wrong(entry.spec.name, absl::StrCat("starts at byte ", entry.begin, " of the data, ",
                                                 entry.begin < at ? "overlapping the one"
                                                                  : "leaving a gap after the one",
                                                 " before, which ends at ", at));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header describes ", at,
                                                   " bytes of tensors, the file holds ", data_bytes,
                                                   at > data_bytes ? "; it was cut short" : ""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakeHeader(const aggregation::ModelLayout& layout,
                                       const std::map<std::string, std::string>& metadata) {
  std::string out(8, '\0');
  out += '{';
  if (!metadata.empty()) {
    absl::StrAppend(&out, "\"", kMetadata, "\":{");
    for (const auto& [key, value] : metadata) {
      ASSIGN_OR_RETURN(const std::string quoted_key, Quote(key));
      ASSIGN_OR_RETURN(const std::string quoted_value, Quote(value));
      absl::StrAppend(&out, out.back() == '{' ? "" : ",", quoted_key, ":", quoted_value);
    }
    out += '}';
  }
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const aggregation::TensorSpec& spec = layout.tensors()[t];
    if (spec.name == kMetadata)
      return Wrong(spec.name, "has the name that safetensors keeps for metadata");
    ASSIGN_OR_RETURN(const std::string name, Quote(spec.name));
    const uint64_t begin = layout.TensorByteOffset(t);
    const uint64_t end = begin + layout.TensorElements(t) * aggregation::DTypeBytes(spec.dtype);
    absl::StrAppend(&out, out.back() == '{' ? "" : ",", name, ":{\"dtype\":\"",
                    std::string(aggregation::DTypeName(spec.dtype)), "\",\"shape\":[");
    absl::StrAppend(&out, absl::StrJoin(spec.shape, ","), "],\"data_offsets\":[", begin, ",", end,
                    "]}");
  }
  out += '}';
  out.append((8 - out.size() % 8) % 8, ' ');
  const uint64_t length = out.size() - 8;
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header has ", length, " bytes, the format allows ", kMaxHeaderBytes));
  }
  std::memcpy(out.data(), &length, 8);
  return out;
}

absl::StatusOr<std::vector<HeaderEntry>> ParseHeader(std::string_view text, uint64_t data_bytes) {
  // The parsed object is sorted by name: the order of the names as written, which alone tells the
  // order of empty tensors, and their repetitions are taken from the parser.
  std::unordered_map<std::string, uint64_t> order;
  std::string repeated;
  const auto on_event = [&](int depth, json::parse_event_t event, json& value) {
    if (depth != 1 || event != json::parse_event_t::key) return true;
    const std::string& name = value.get_ref<const std::string&>();
    if (!order.emplace(name, order.size()).second) repeated = name;
    return true;
  };
  if (text.empty() || text.front() != '{')
    return absl::InvalidArgumentError("the header does not start with '{'");
  const json root = json::parse(text.begin(), text.end(), on_event, false);
  if (!root.is_object()) return absl::InvalidArgumentError("the header is not a JSON object");
  if (!repeated.empty()) return Wrong(repeated, "stands in the header twice");

  std::vector<HeaderEntry> entries;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadata) {
      RETURN_IF_ERROR(CheckMetadata(value));
      continue;
    }
    ASSIGN_OR_RETURN(HeaderEntry entry, ParseEntry(name, value));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [&](const HeaderEntry& a, const HeaderEntry& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    if (a.end != b.end) return a.end < b.end;
    return order.at(a.spec.name) < order.at(b.spec.name);
  });
  RETURN_IF_ERROR(CheckCoverage(entries, data_bytes));
  return entries;
}

}  // namespace tributary::models
