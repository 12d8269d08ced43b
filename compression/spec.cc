// Reading codec specs.
#include "compression/internal/spec.h"

#include <bit>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tributary::compression {
namespace {

constexpr absl::string_view kKnown =
    "known are fp32, fp16, bf16, int8, int4, int2, sign, topk, randk, fp8, mxfp8, mxfp4, mxint8, "
    "eden, hq, powersgd, sketch; `tributary codecs` lists them with their parameters";

}  // namespace

absl::StatusOr<SpecStage> SpecStage::Parse(absl::string_view text, absl::string_view whole) {
  SpecStage stage;
  stage.whole_ = std::string(whole);
  absl::string_view name = absl::StripAsciiWhitespace(text);
  const size_t open = name.find('(');
  if (open != absl::string_view::npos) {
    absl::string_view arguments = name.substr(open + 1);
    if (!absl::ConsumeSuffix(&arguments, ")")) return stage.Bad("the closing ) is missing");
    name = absl::StripAsciiWhitespace(name.substr(0, open));
    for (const absl::string_view argument :
         absl::StrSplit(arguments, ',', absl::SkipWhitespace())) {
      const size_t equals = argument.find('=');
      const absl::string_view key =
          equals == absl::string_view::npos ? "" : argument.substr(0, equals);
      const absl::string_view value =
          equals == absl::string_view::npos ? argument : argument.substr(equals + 1);
      stage.arguments_.emplace_back(absl::StripAsciiWhitespace(key),
                                    absl::StripAsciiWhitespace(value));
    }
  }
  stage.name_ = std::string(name);
  return stage;
}

std::optional<std::string> SpecStage::TakePositional() { return Take(""); }

std::optional<std::string> SpecStage::Take(absl::string_view key) {
  for (auto it = arguments_.begin(); it != arguments_.end(); ++it) {
    if (it->first != key) continue;
    std::string value = std::move(it->second);
    arguments_.erase(it);
    return value;
  }
  return std::nullopt;
}

absl::StatusOr<int> SpecStage::TakeWord(absl::string_view key,
                                        std::vector<absl::string_view> words) {
  const std::optional<std::string> value = Take(key);
  if (!value.has_value()) return 0;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == *value) return static_cast<int>(i);
  }
  return Bad(absl::StrCat(key, "=", *value, " is not one of ", absl::StrJoin(words, ", ")));
}

absl::StatusOr<uint32_t> SpecStage::TakePowerOfTwo(absl::string_view key, uint32_t usual,
                                                   uint32_t least, uint32_t most) {
  ASSIGN_OR_RETURN(const uint32_t number, TakeNumber(key, usual, least, most));
  if (std::has_single_bit(number)) return number;
  return Bad(absl::StrCat(key, "=", number, " is not a power of two"));
}

absl::StatusOr<uint32_t> SpecStage::TakeNumber(absl::string_view key, uint32_t usual,
                                               uint32_t least, uint32_t most) {
  const std::optional<std::string> value = Take(key);
  if (!value.has_value()) return usual;
  uint32_t number = 0;
  if (absl::SimpleAtoi(*value, &number) && number >= least && number <= most) return number;
  return Bad(absl::StrCat(key, "=", *value, " is not a number from ", least, " to ", most));
}

absl::StatusOr<double> SpecStage::TakeDecimal(absl::string_view key, double usual, double least,
                                              double most) {
  const std::optional<std::string> value = Take(key);
  if (!value.has_value()) return usual;
  double number = 0;
  if (absl::SimpleAtod(*value, &number) && number >= least && number <= most) return number;
  return Bad(absl::StrCat(key, "=", *value, " is not a number from ", least, " to ", most));
}

absl::StatusOr<int> SpecStage::TakeStep(int usual, int most, bool agreed) {
  const std::optional<std::string> value = Take("step");
  // "auto": the root puts what it finds into the round's spec (compression/agreed.h).
  if (!value.has_value() || (agreed && *value == "auto")) return usual;
  absl::string_view exponent = *value;
  int number = 0;
  if (absl::ConsumePrefix(&exponent, "2^-") && absl::SimpleAtoi(exponent, &number) && number >= 0 &&
      number <= most) {
    return number;
  }
  return Bad(absl::StrCat("step=", *value, " is not 2^-0 to 2^-", most, ", as in step=2^-12"));
}

absl::StatusOr<double> SpecStage::TakeFraction(absl::string_view key, double usual, double most) {
  const std::optional<std::string> value = Take(key);
  double fraction = usual;
  if (!value.has_value()) return usual;
  if (absl::SimpleAtod(*value, &fraction) && fraction > 0 && fraction <= most) return fraction;
  return Bad(absl::StrCat(key, "=", *value, " is not a fraction above 0, up to ", most));
}

absl::StatusOr<double> SpecStage::TakeFraction(double most) {
  const std::optional<std::string> value = TakePositional();
  double fraction = 0;
  if (!value.has_value())
    return Bad(absl::StrCat(name_, " needs a fraction, as in ", name_, "(0.01)"));
  if (absl::SimpleAtod(*value, &fraction) && fraction > 0 && fraction <= most) return fraction;
  return Bad(absl::StrCat(*value, " is not a fraction above 0, up to ", most));
}

absl::Status SpecStage::Done() const {
  if (arguments_.empty()) return absl::OkStatus();
  const auto& [key, value] = arguments_.front();
  return Bad(
      absl::StrCat("\"", key, key.empty() ? "" : "=", value, "\" is not a parameter of ", name_));
}

absl::Status SpecStage::Bad(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("codec \"", whole_, "\": ", what, "; ", kKnown));
}

}  // namespace tributary::compression
