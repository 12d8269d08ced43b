// Reading a run's compression spec, and why chains are refused.
#include "compression/policy.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "compression/internal/block_format.h"
#include "compression/internal/spec.h"

namespace tributary::compression {
namespace {

absl::Status Refused(absl::string_view chain, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("codec \"", chain, "\": ", why));
}

// Why this codec cannot have error feedback; "" where it can. `leave`: what else to do.
std::string WhyNoFeedback(const Capabilities& codec, absl::string_view leave) {
  if (codec.id == CodecId::kFp32) {
    return absl::StrCat("fp32 loses nothing that ef could feed back; ", leave);
  }
  if (codec.id == CodecId::kRandK && !codec.needs_error_feedback) {
    return absl::StrCat(
        "ef with scaled values diverges: what is sent is larger than what there was; use "
        "randk(..., scaled=no), or ",
        leave);
  }
  if (codec.id == CodecId::kSketch) {
    return absl::StrCat("the root keeps what it did not recover of a sketch's sum; ", leave);
  }
  return "";
}

// Why this codec cannot have momentum correction; "" where it can.
std::string WhyNoMomentum(const Capabilities& codec) {
  if (codec.id == CodecId::kTopK) return "";
  return "momentum correction is for topk, which sends some elements and holds the others back; "
         "use ef without momentum, or [training] momentum";
}

// Why the differences that ef21 sends cannot be of this codec; "" where they can.
std::string WhyNoEstimate(const Codec& codec, absl::string_view front) {
  if (codec.capabilities().id == CodecId::kSign && (codec.parameter() & kVoteFlag) != 0) {
    return "ef21 needs a codec that sends less where there is less to send, and a vote is always "
           "a step; use sign | ef21";
  }
  std::string packed(front);
  std::erase_if(packed, [](char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); });
  if (packed.find("gain=") != std::string::npos) {
    return "ef21 sends differences to what was sent, which a gain would overshoot; leave gain out";
  }
  return "";
}

// What a chain says of feedback.
struct FeedbackStage {
  bool given = false;
  bool estimate = false;
  double decay = 1;
  double momentum = 0;
};

// "ef", "ef(...)" or "ef21".
absl::Status ReadFeedback(SpecStage* stage, FeedbackStage* feedback) {
  feedback->given = true;
  feedback->estimate = stage->name() == "ef21";
  if (!feedback->estimate) {
    ASSIGN_OR_RETURN(feedback->decay, stage->TakeDecimal("decay", 1, 0, 1));
    ASSIGN_OR_RETURN(feedback->momentum, stage->TakeDecimal("momentum", 0, 0, 0.999));
  }
  return stage->Done();
}

// "dct(28x28)".
absl::Status ReadPlanes(absl::string_view chain, SpecStage* stage, PlaneShape* planes) {
  if (planes->any()) return Refused(chain, "dct is given twice");
  const std::string text = stage->TakePositional().value_or("");
  const std::vector<absl::string_view> sides = absl::StrSplit(text, 'x');
  const auto side = [](absl::string_view s, uint32_t* out) {
    return absl::SimpleAtoi(s, out) && *out >= 1 && *out <= kMaxPlaneSide;
  };
  if (sides.size() != 2 || !side(sides[0], &planes->rows) || !side(sides[1], &planes->columns) ||
      planes->elements() < 2) {
    return Refused(chain,
                   absl::StrCat("dct needs the rows and columns of an image, each from 1 to ",
                                kMaxPlaneSide, ", as in dct(28x28)"));
  }
  return stage->Done();
}

// Why the coefficients of dct cannot go through this codec; "" where they can.
std::string WhyNoPlanes(const Capabilities& codec) {
  if (codec.id == CodecId::kEden) {
    return "eden's rotation spreads over all elements what dct gathers in a few: they undo each "
           "other";
  }
  if (codec.id == CodecId::kRandK) {
    return "randk chooses by chance, and dct gathers what is large: use topk";
  }
  if (codec.id == CodecId::kSketch) return "a sketch goes by places of its own; use topk with dct";
  if (codec.id == CodecId::kFp32) return "fp32 has nothing to gain from dct; leave dct out";
  return "";
}

absl::StatusOr<TensorCodec> ParseChain(absl::string_view chain) {
  std::vector<absl::string_view> stages = absl::StrSplit(chain, '|');
  FeedbackStage feedback;
  PlaneShape planes;
  for (auto it = stages.begin(); it != stages.end();) {
    absl::StatusOr<SpecStage> stage = SpecStage::Parse(*it, chain);
    const bool planar = stage.ok() && stage->name() == "dct";
    if (!stage.ok() || (stage->name() != "ef" && stage->name() != "ef21" && !planar)) {
      ++it;  // MakeCodec says what is wrong with it
      continue;
    }
    if (it == stages.begin()) {
      return Refused(chain, absl::StrCat(stage->name(), " comes after a codec, as in \"sign | ",
                                         stage->name(), "\""));
    }
    if (feedback.given && !planar) {
      return Refused(chain, "ef is given twice, and ef and ef21 exclude each other");
    }
    RETURN_IF_ERROR(planar ? ReadPlanes(chain, &*stage, &planes)
                           : ReadFeedback(&*stage, &feedback));
    it = stages.erase(it);
  }
  TensorCodec result;
  const std::string rest = absl::StrJoin(stages, "|");
  const absl::string_view front = absl::StripAsciiWhitespace(stages.front());
  ASSIGN_OR_RETURN(result.codec, MakeCodec(rest));
  ASSIGN_OR_RETURN(const auto first, MakeCodec(std::string(front)));
  const Capabilities& codec = first->capabilities();
  std::string why;
  if (feedback.given) why = WhyNoFeedback(codec, "leave ef out");
  if (why.empty() && feedback.momentum > 0) why = WhyNoMomentum(codec);
  if (why.empty() && feedback.estimate) why = WhyNoEstimate(*first, front);
  if (why.empty() && planes.any()) why = WhyNoPlanes(codec);
  if (!why.empty()) return Refused(chain, why);
  result.planes = planes;
  result.estimate = feedback.estimate;
  result.error_feedback = !result.estimate && (feedback.given || codec.needs_error_feedback);
  result.decay = static_cast<float>(feedback.decay);
  result.momentum = static_cast<float>(feedback.momentum);
  return result;
}

// A spec's chains, views of its text. Pattern "": the chain at the front, else a rule's.
struct SpecPart {
  absl::string_view pattern, chain;
};

absl::StatusOr<std::vector<SpecPart>> SplitSpec(absl::string_view spec) {
  const std::vector<absl::string_view> texts = absl::StrSplit(spec, ';');
  std::vector<SpecPart> parts = {{"", texts[0]}};
  for (size_t i = 1; i < texts.size(); ++i) {
    const absl::string_view rule = absl::StripAsciiWhitespace(texts[i]);
    if (rule.empty()) continue;
    const size_t equals = rule.find('=');
    const absl::string_view pattern =
        absl::StripAsciiWhitespace(rule.substr(0, std::min(equals, rule.size())));
    if (equals == absl::string_view::npos || pattern.empty() ||
        pattern.find('(') != absl::string_view::npos) {
      return Refused(spec, absl::StrCat("the rule \"", rule,
                                        "\" is not \"pattern = codec\", as in \"small = fp16\""));
    }
    parts.push_back({pattern, absl::StripAsciiWhitespace(rule.substr(equals + 1))});
  }
  return parts;
}

// Where in a chain, which is a good one, ef goes: behind the codec and its dct, before the stages
// that work on bytes. Nothing where it has feedback already.
std::optional<size_t> PlaceForFeedback(absl::string_view chain) {
  size_t place = 0;
  bool bytes = false;
  for (const absl::string_view stage : absl::StrSplit(chain, '|')) {
    const std::string name = SpecStage::Parse(stage, chain).value().name();
    if (name == "ef" || name == "ef21") return std::nullopt;
    bytes = bytes || name == "zeros" || name == "zstd" || name == "lz4";
    const absl::string_view text = absl::StripTrailingAsciiWhitespace(stage);
    if (!bytes) place = static_cast<size_t>(text.data() + text.size() - chain.data());
  }
  return place;
}

// The codec of a good chain, without its stages.
absl::StatusOr<Capabilities> FrontOf(absl::string_view chain) {
  const absl::string_view front = absl::StripAsciiWhitespace(chain.substr(0, chain.find('|')));
  ASSIGN_OR_RETURN(const auto codec, MakeCodec(std::string(front)));
  return codec->capabilities();
}

std::string LinearCodecs() {
  std::vector<std::string> names;
  for (const Capabilities& codec : AllCodecs()) {
    if (codec.linear && codec.id != CodecId::kRawInt64) names.push_back(codec.name);
  }
  names.push_back("sign(mode=vote)");  // of sign's modes only this one
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::Status CheckLinear(std::string_view text) {
  const absl::string_view spec(text.data(), text.size());
  ASSIGN_OR_RETURN(const std::vector<SpecPart> parts, SplitSpec(spec));
  bool small = false;
  for (const SpecPart& part : parts) {
    ASSIGN_OR_RETURN(const TensorCodec whole, ParseChain(part.chain));
    ASSIGN_OR_RETURN(const Capabilities codec, FrontOf(part.chain));
    small = small || part.pattern == "small";
    if (!codec.linear) {
      return Refused(part.chain, absl::StrCat(codec.name,
                                              "'s values do not add up without being decoded; use "
                                              "one of ",
                                              LinearCodecs()));
    }
    const std::string& stage = whole.codec->capabilities().name;
    if (!whole.codec->capabilities().linear) {
      return Refused(part.chain, absl::StrCat("what ", stage, " makes of ", codec.name,
                                              "'s values does not add up; leave ", stage, " out"));
    }
  }
  ASSIGN_OR_RETURN(const Capabilities codec, FrontOf(parts.front().chain));
  if (small || codec.minimum_elements == 0) return absl::OkStatus();
  return Refused(
      spec, absl::StrCat("tensors of one dimension or with fewer than ", codec.minimum_elements,
                         " elements stay fp32, whose values do not add up without being "
                         "decoded; add a rule for them, \"small = ",
                         codec.name, "\", with one of ", LinearCodecs()));
}

absl::StatusOr<std::string> WithErrorFeedback(std::string_view text) {
  const absl::string_view spec(text.data(), text.size());
  ASSIGN_OR_RETURN(const std::vector<SpecPart> parts, SplitSpec(spec));
  const char* const mend =
      parts.size() == 1
          ? "leave error_feedback out"
          : "leave error_feedback out, and write ef into the chains that shall have it";
  std::string result;
  size_t copied = 0;
  bool any = false;
  for (const SpecPart& part : parts) {
    RETURN_IF_ERROR(ParseChain(part.chain).status());
    const std::optional<size_t> place = PlaceForFeedback(part.chain);
    ASSIGN_OR_RETURN(const Capabilities codec, FrontOf(part.chain));
    const bool exact = codec.id == CodecId::kFp32;
    any = any || !exact;
    if (!place.has_value() || exact) continue;
    const std::string why = WhyNoFeedback(codec, mend);
    if (!why.empty()) return Refused(part.chain, why);
    const size_t at = static_cast<size_t>(part.chain.data() - spec.data()) + *place;
    absl::StrAppend(&result, spec.substr(copied, at - copied), " | ef");
    copied = at;
  }
  if (!any) {
    ASSIGN_OR_RETURN(const Capabilities codec, FrontOf(parts.front().chain));
    return Refused(spec, WhyNoFeedback(codec, "leave error_feedback out"));
  }
  return absl::StrCat(result, spec.substr(copied));
}

absl::StatusOr<std::shared_ptr<const CodecPolicy>> CodecPolicy::Parse(std::string_view text) {
  const absl::string_view spec(text.data(), text.size());
  auto policy = std::make_shared<CodecPolicy>();
  ASSIGN_OR_RETURN(const std::vector<SpecPart> parts, SplitSpec(spec));
  policy->small_.codec = MakeCodec("fp32").value();
  for (const auto& [pattern, chain] : parts) {
    ASSIGN_OR_RETURN(TensorCodec codec, ParseChain(chain));
    if (pattern.empty()) {
      policy->usual_ = std::move(codec);
    } else if (pattern == "small") {
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
  // fp32, and top-k over a whole model, take every tensor unless a rule for small ones is given.
  const uint64_t codec_minimum = usual_.codec->capabilities().minimum_elements;
  const uint64_t minimum = small_given_ ? kSmallTensorElements : codec_minimum;
  const bool small = minimum > 0 && (elements < minimum || dimensions <= 1);
  return small ? small_ : usual_;
}

template <class Is>
bool CodecPolicy::Any(Is is) const {
  bool any = is(usual_) || is(small_);
  for (const Rule& rule : rules_) any = any || is(rule.codec);
  return any;
}

bool CodecPolicy::error_feedback() const {
  return Any([](const TensorCodec& codec) { return codec.keeps_state(); });
}

bool CodecPolicy::transforms() const {
  return Any([](const TensorCodec& codec) { return codec.planes.any(); });
}

bool CodecPolicy::estimates() const {
  return Any([](const TensorCodec& codec) { return codec.estimate; });
}

}  // namespace tributary::compression
