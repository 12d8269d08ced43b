// Reading a run's compression spec, and why chains are refused.
#include "compression/policy.h"

#include <fnmatch.h>

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
  if (feedback.given) why = WhyNoFeedback(codec);
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
