// Codecs by name (configs) and by number (segment headers).
#include <bit>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "compression/codec.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/int8.h"
#include "compression/internal/runs.h"

namespace tributary::compression {
namespace {

constexpr absl::string_view kKnown =
    "known are fp32, fp16, bf16, int8, int8(block=N), int8(rounding=nearest|stochastic)";

bool IsBlock(uint64_t n) { return n >= kInt8MinBlock && n <= kMaxBlock && std::has_single_bit(n); }

absl::Status Bad(absl::string_view spec, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("codec \"", spec, "\": ", what, "; ", kKnown));
}

absl::StatusOr<std::shared_ptr<const Codec>> ParseInt8(absl::string_view spec,
                                                       absl::string_view arguments) {
  uint32_t block = kInt8DefaultBlock;
  Int8Rounding rounding = Int8Rounding::kStochastic;
  for (absl::string_view argument : absl::StrSplit(arguments, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
    const absl::string_view value = absl::StripAsciiWhitespace(pair.second);
    if (key == "block") {
      if (!absl::SimpleAtoi(value, &block) || !IsBlock(block)) {
        return Bad(spec, absl::StrCat("block ", value, " is not a power of two from ",
                                      kInt8MinBlock, " to ", kMaxBlock));
      }
    } else if (key == "rounding" && value == "nearest") {
      rounding = Int8Rounding::kNearest;
    } else if (key == "rounding" && value == "stochastic") {
      rounding = Int8Rounding::kStochastic;
    } else {
      return Bad(spec, absl::StrCat("\"", argument, "\" is not a parameter of int8"));
    }
  }
  return MakeInt8(block, rounding);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(std::string_view text) {
  // Debian builds Abseil with a string_view of its own.
  const absl::string_view spec(text.data(), text.size());
  absl::string_view name = absl::StripAsciiWhitespace(spec);
  absl::string_view arguments;
  const size_t open = name.find('(');
  if (open != absl::string_view::npos) {
    arguments = name.substr(open + 1);
    if (!absl::ConsumeSuffix(&arguments, ")")) return Bad(spec, "the closing ) is missing");
    name = absl::StripAsciiWhitespace(name.substr(0, open));
  }
  if (name == "int8") return ParseInt8(spec, arguments);
  const bool plain = name == "fp32" || name == "fp16" || name == "bf16";
  if (!plain) return Bad(spec, absl::StrCat("\"", name, "\" is not a codec for float tensors"));
  if (open != absl::string_view::npos) return Bad(spec, absl::StrCat(name, " takes no parameters"));
  if (name == "fp32") return MakeFp32();
  if (name == "fp16") return MakeFp16();
  return MakeBf16();
}

absl::StatusOr<std::shared_ptr<const Codec>> CodecFromHeader(uint16_t id, uint32_t parameter) {
  if (id == static_cast<uint16_t>(CodecId::kInt8)) {
    if (IsBlock(parameter)) return MakeInt8(parameter, Int8Rounding::kStochastic);
    return absl::InvalidArgumentError(
        absl::StrCat("segment codec 5 (int8): parameter ", parameter,
                     " is not a block length, a power of two from ", kInt8MinBlock, " to ",
                     kMaxBlock, "; the header is damaged or of another release"));
  }
  std::shared_ptr<const Codec> codec;
  if (id == static_cast<uint16_t>(CodecId::kFp32)) codec = MakeFp32();
  if (id == static_cast<uint16_t>(CodecId::kFp16)) codec = MakeFp16();
  if (id == static_cast<uint16_t>(CodecId::kBf16)) codec = MakeBf16();
  if (codec == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment codec ", id,
        " is not a float codec; known are 2 (fp32), 3 (fp16), 4 (bf16), 5 (int8): the header is "
        "damaged or of another release"));
  }
  if (parameter != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment codec ", id, " (", codec->capabilities().name, "): parameter ",
                     parameter, " must be 0; the header is damaged or of another release"));
  }
  return codec;
}

std::vector<Capabilities> AllCodecs() {
  return {{.id = CodecId::kRawInt64,
           .name = "int64",
           .linear = true,
           .unbiased = true,
           .needs_error_feedback = false,
           .deterministic = true,
           .minimum_elements = 0},
          MakeFp32()->capabilities(),
          MakeFp16()->capabilities(),
          MakeBf16()->capabilities(),
          MakeInt8(kInt8DefaultBlock, Int8Rounding::kStochastic)->capabilities()};
}

}  // namespace tributary::compression
