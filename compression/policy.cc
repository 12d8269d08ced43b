// Reading a run's compression spec, and why chains are refused.
#include "compression/policy.h"

#include <fnmatch.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tributary::compression {
namespace {

absl::Status Refused(absl::string_view chain, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("codec \"", chain, "\": ", why));
}

// Why this codec cannot have error feedback; "" where it can.
std::string WhyNoFeedback(const Capabilities& codec) {
  if (codec.id == CodecId::kFp32) return "fp32 loses nothing that ef could feed back; leave ef out";
  if (codec.id == CodecId::kRandK && !codec.needs_error_feedback) {
    return "ef with scaled values diverges: what is sent is larger than what there was; use "
           "randk(..., scaled=no) | ef, or randk without ef";
  }
  if (codec.id == CodecId::kSketch) {
    return "the root keeps what it did not recover of a sketch's sum; leave ef out";
  }
  return "";
}

absl::StatusOr<TensorCodec> ParseChain(absl::string_view chain) {
  std::vector<absl::string_view> stages = absl::StrSplit(chain, '|');
  bool feedback = false;
  for (auto it = stages.begin(); it != stages.end();) {
    const absl::string_view stage = absl::StripAsciiWhitespace(*it);
    if (stage == "ef21") {
      return Refused(chain,
                     "ef21 needs each client's last estimate at the server, which is not kept; use "
                     "ef");
    }
    if (stage != "ef") {
      ++it;
      continue;
    }
    if (it == stages.begin()) return Refused(chain, "ef comes after a codec, as in \"sign | ef\"");
    if (feedback) return Refused(chain, "ef is given twice");
    feedback = true;
    it = stages.erase(it);
  }
  TensorCodec result;
  const std::string rest = absl::StrJoin(stages, "|");
  ASSIGN_OR_RETURN(result.codec, MakeCodec(rest));
  const Capabilities& codec = result.codec->capabilities();
  if (feedback) {
    if (const std::string why = WhyNoFeedback(codec); !why.empty()) return Refused(chain, why);
  }
  result.error_feedback = feedback || codec.needs_error_feedback;
  return result;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CodecPolicy>> CodecPolicy::Parse(std::string_view text) {
  const absl::string_view spec(text.data(), text.size());
  auto policy = std::make_shared<CodecPolicy>();
  const std::vector<absl::string_view> parts = absl::StrSplit(spec, ';');
  ASSIGN_OR_RETURN(policy->usual_, ParseChain(parts[0]));
  policy->small_.codec = MakeCodec("fp32").value();
  for (size_t i = 1; i < parts.size(); ++i) {
    const absl::string_view rule = absl::StripAsciiWhitespace(parts[i]);
    if (rule.empty()) continue;
    const size_t equals = rule.find('=');
    const absl::string_view pattern =
        absl::StripAsciiWhitespace(rule.substr(0, std::min(equals, rule.size())));
    if (equals == absl::string_view::npos || pattern.empty() ||
        pattern.find('(') != absl::string_view::npos) {
      return Refused(spec, absl::StrCat("the rule \"", rule,
                                        "\" is not \"pattern = codec\", as in \"small = fp16\""));
    }
    ASSIGN_OR_RETURN(TensorCodec codec,
                     ParseChain(absl::StripAsciiWhitespace(rule.substr(equals + 1))));
    if (pattern == "small") {
      policy->small_ = std::move(codec);
      policy->small_given_ = true;
    } else {
      policy->rules_.push_back({std::string(pattern), std::move(codec)});
    }
  }
  return policy;
}

std::shared_ptr<const CodecPolicy> CodecPolicy::Uniform(std::shared_ptr<const Codec> codec) {
  auto policy = std::make_shared<CodecPolicy>();
  policy->usual_.error_feedback = codec->capabilities().needs_error_feedback;
  policy->usual_.codec = std::move(codec);
  policy->small_ = policy->usual_;
  return policy;
}

const TensorCodec& CodecPolicy::For(std::string_view name, uint64_t elements,
                                    size_t dimensions) const {
  const std::string text(name);
  for (const Rule& rule : rules_) {
    if (fnmatch(rule.pattern.c_str(), text.c_str(), 0) == 0) return rule.codec;
  }
  // Codecs without a minimum do well on every tensor, unless a rule for small ones says otherwise.
  const uint64_t codec_minimum = usual_.codec->capabilities().minimum_elements;
  const uint64_t minimum = small_given_ ? kSmallTensorElements : codec_minimum;
  const bool small = minimum > 0 && (elements < minimum || dimensions <= 1);
  return small ? small_ : usual_;
}

bool CodecPolicy::error_feedback() const {
  bool any = usual_.error_feedback || small_.error_feedback;
  for (const Rule& rule : rules_) any = any || rule.codec.error_feedback;
  return any;
}

}  // namespace tributary::compression
