// Chains, rules for tensors, and why some chains are refused.
#include "compression/policy.h"

#include "codec_testing.h"
#include "compression/internal/scalar.h"
#include "compression/internal/stage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

std::shared_ptr<const CodecPolicy> Policy(const std::string& spec) {
  auto policy = CodecPolicy::Parse(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

std::string NameFor(const CodecPolicy& policy, const std::string& tensor, uint64_t elements,
                    size_t dimensions) {
  return policy.For(tensor, elements, dimensions).codec->capabilities().name;
}

TEST(CodecPolicy, KeepsSmallAndOneDimensionalTensorsInFp32UnlessTold) {
  const auto usual = Policy("int4");
  EXPECT_EQ(NameFor(*usual, "w", 4096, 2), "int4");
  EXPECT_EQ(NameFor(*usual, "w", 4095, 2), "fp32");
  EXPECT_EQ(NameFor(*usual, "bias", 1 << 20, 1), "fp32");
  EXPECT_EQ(NameFor(*usual, "scalar", 1, 0), "fp32");
  const auto told = Policy("int4; small = fp16");
  EXPECT_EQ(NameFor(*told, "w", 4095, 2), "fp16");
  EXPECT_EQ(NameFor(*told, "bias", 1 << 20, 1), "fp16");
  EXPECT_EQ(NameFor(*told, "w", 4096, 2), "int4");
  // Codecs of a byte and more too; top-k across the model alone takes every tensor.
  EXPECT_EQ(NameFor(*Policy("int8"), "bias", 3, 1), "fp32");
  EXPECT_EQ(NameFor(*Policy("int8; small=int8"), "bias", 3, 1), "int8");
  EXPECT_EQ(NameFor(*Policy("topk(0.01, across=model)"), "bias", 3, 1), "topk");
}

TEST(CodecPolicy, TakesTheFirstRuleWhosePatternIsTheTensorsName) {
  const auto policy = Policy(
      "topk(0.01, values=ternary) | zstd; head.* = fp16; *.weight = int8(block=64) | ef;"
      "small = bf16");
  EXPECT_EQ(NameFor(*policy, "head.weight", 1 << 20, 2), "fp16");
  EXPECT_EQ(NameFor(*policy, "fc1.weight", 10, 2), "int8");
  EXPECT_TRUE(policy->For("fc1.weight", 10, 2).error_feedback);
  EXPECT_EQ(NameFor(*policy, "conv", 1 << 20, 4), "zstd");
  EXPECT_TRUE(policy->For("conv", 1 << 20, 4).error_feedback) << "topk's need";
  EXPECT_EQ(NameFor(*policy, "fc1.bias", 10, 1), "bf16");
  EXPECT_FALSE(policy->For("fc1.bias", 10, 1).error_feedback);
  EXPECT_TRUE(policy->error_feedback());
  EXPECT_FALSE(Policy("int8 | zstd")->error_feedback());
}

TEST(CodecPolicy, ReadsHowFeedbackGoes) {
  const auto policy = Policy(
      "topk(0.1, across=model) | ef(decay=0.9, momentum=0.5) | lz4; "
      "b = sign | ef21; c = topk(0.1); d = fp16");
  const TensorCodec& usual = policy->For("a", 10, 1);
  EXPECT_EQ(usual.codec->capabilities().name, "lz4") << "across=model takes small tensors too";
  EXPECT_TRUE(usual.error_feedback);
  EXPECT_EQ(usual.decay, 0.9f);
  EXPECT_EQ(usual.momentum, 0.5f);
  EXPECT_TRUE(policy->For("b", 10, 1).estimate);
  EXPECT_FALSE(policy->For("b", 10, 1).error_feedback);
  EXPECT_TRUE(policy->For("c", 10, 1).error_feedback);
  EXPECT_EQ(policy->For("c", 10, 1).decay, 1);
  EXPECT_FALSE(policy->For("d", 10, 1).keeps_state());
  EXPECT_TRUE(policy->estimates());
  EXPECT_TRUE(Policy("topk(0.1) | ef21")->error_feedback()) << "clients keep something";
  EXPECT_FALSE(Policy("topk(0.1)")->estimates());
}

TEST(CodecPolicy, RefusesImpossibleChainsWithTheReason) {
  const std::pair<const char*, const char*> rows[] = {
      {"int8 | int4", "quantise twice"},
      {"eden | topk(0.1)", "rotation"},
      {"topk(0.1) | eden", "rotation"},
      {"topk(0.1) | int8", "values=int8"},
      {"fp32 | ef", "loses nothing"},
      {"randk(0.1) | ef", "diverges"},
      {"ef | int8", "comes after a codec"},
      {"int8 | ef | ef", "given twice"},
      {"ef21 | int8", "comes after a codec"},
      {"int8 | ef | ef21", "exclude each other"},
      {"int8 | ef21(decay=0.5)", "not a parameter"},
      {"fp32 | ef21", "loses nothing"},
      {"fp32 | ef | zstd", "loses nothing"},
      {"randk(0.1) | ef21", "diverges"},
      {"sign(mode=vote) | ef21", "a vote"},
      {"topk(0.1, values=ternary, gain=2) | ef21", "overshoot"},
      {"topk(0.1, values=ternary, gain = 2) | ef21", "overshoot"},
      {"topk(0.1, values=ternary, gain\t=2) | ef21", "overshoot"},
      {"sign(mode=vote, step=auto)", "step=auto"},
      {"sign | ef(momentum=0.5)", "is for topk"},
      {"topk(0.1) | ef(momentum=1)", "to 0.999"},
      {"topk(0.1) | ef(decay=2)", "from 0 to 1"},
      {"topk(0.1) | ef(forget=1)", "not a parameter"},
      {"topk(0.1, gain=2)", "values=ternary"},
      {"topk(0.1, across=all)", "tensor, model"},
      {"topk(0.3, warmup=5)", "is not less"},
      {"topk(0.1, from=0.5)", "there is none"},
      {"eden | dct(28x28)", "undo each other"},
      {"randk(0.1) | dct(28x28)", "by chance"},
      {"fp32 | dct(28x28)", "nothing to gain"},
      {"topk(0.1) | dct", "as in dct(28x28)"},
      {"topk(0.1) | dct(28)", "as in dct(28x28)"},
      {"topk(0.1) | dct(0x28)", "as in dct(28x28)"},
      {"topk(0.1) | dct(1x1)", "as in dct(28x28)"},
      {"topk(0.1) | dct(4x300)", "from 1 to 256"},
      {"topk(0.1) | dct(4x4) | dct(4x4)", "dct is given twice"},
      {"int8 | zstd | lz4", "one of zstd and lz4"},
      {"int8 | gzip", "is not a stage"},
      {"sketch(0.1) | ef", "did not recover"},
      {"sketch(0.1) | zstd", "summed as they come"},
      {"topk(0.1) | zeros", "no zeros"},
      {"powersgd | zeros", "whole tensor"},
      {"int8 | zstd | zeros", "comes once, before"},
      {"int8 | zeros | zeros", "comes once"},
      {"powersgd | int8", "two codecs"},
      {"int8 | zstd(level=30)", "level=30"},
      {"int8 | lz4(level=1)", "not a parameter"},
      {"zstd", "not a codec for float tensors"},
      {"int8; small", "pattern = codec"},
      {"int8; = fp32", "pattern = codec"},
      {"int8; int8(block=64)", "pattern = codec"},
      {"int8; small = fp64", "fp64"}};
  for (const auto& [spec, why] : rows) {
    const auto policy = CodecPolicy::Parse(spec);
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(why)) << spec;
  }
}

// Each spec, and what it is with error feedback.
TEST(WithErrorFeedback, PutsEfBehindTheCodecAndBeforeTheStagesForBytes) {
  const std::pair<const char*, const char*> rows[] = {
      {"int8", "int8 | ef"},
      {"topk(0.01, values=ternary) | zstd", "topk(0.01, values=ternary) | ef | zstd"},
      {"int4 | zeros | zstd(level=3)", "int4 | ef | zeros | zstd(level=3)"},
      {"sign(mode=vote) | lz4", "sign(mode=vote) | ef | lz4"},
      {"randk(0.1, scaled=no)", "randk(0.1, scaled=no) | ef"},
      {"hq(step=auto)", "hq(step=auto) | ef"},
      {"topk(0.1) | dct(28x28)", "topk(0.1) | dct(28x28) | ef"},
      {"topk(0.1) | dct(28x28) | zstd", "topk(0.1) | dct(28x28) | ef | zstd"},
      {"topk(0.1) | zstd | dct(28x28)", "topk(0.1) | ef | zstd | dct(28x28)"},
      {" int8 |lz4", " int8 | ef |lz4"},
      {"int8|lz4 ", "int8 | ef|lz4 "}};
  for (const auto& [spec, want] : rows) {
    const auto with = WithErrorFeedback(spec);
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(*with, want);
    EXPECT_TRUE(Policy(*with)->For("w", 1 << 20, 2).error_feedback) << want;
    EXPECT_EQ(*WithErrorFeedback(*with), want) << "once more changes nothing";
  }
}

TEST(WithErrorFeedback, LeavesChainsThatHaveFeedbackAsTheyAre) {
  for (const char* spec :
       {"int8 | ef", "topk(0.1) | ef(decay=0.9) | zstd", "sign | ef21", "int8 | zstd | ef",
        "topk(0.1)|ef(decay=0.9, momentum=0.5)|lz4", "topk(0.1) | ef21 | dct(28x28)"}) {
    const auto with = WithErrorFeedback(spec);
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(*with, spec);
  }
}

TEST(WithErrorFeedback, IsForEachRuleThatLosesSomething) {
  const std::pair<const char*, const char*> rows[] = {
      {"topk(0.1) | zstd; small = fp16; head.* = fp32; conv* = sign | ef21; fc* = int8 | lz4",
       "topk(0.1) | ef | zstd; small = fp16 | ef; head.* = fp32; conv* = sign | ef21; "
       "fc* = int8 | ef | lz4"},
      {"fp32 | zstd; fc.* = int4(block=64);", "fp32 | zstd; fc.* = int4(block=64) | ef;"},
      {"fp32;small=int8|lz4 ; a=int4", "fp32;small=int8 | ef|lz4 ; a=int4 | ef"}};
  for (const auto& [spec, want] : rows) {
    const auto with = WithErrorFeedback(spec);
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(*with, want);
    EXPECT_TRUE(CodecPolicy::Parse(*with).ok()) << want;
  }
}

TEST(WithErrorFeedback, RefusesWhereItCannotBeOrHasNothingToDo) {
  const struct {
    const char* spec;
    std::vector<const char*> says;
  } rows[] = {
      {"fp32", {"codec \"fp32\": ", "loses nothing", "leave error_feedback out"}},
      {"fp32 | zstd; small = fp32", {"loses nothing", "leave error_feedback out"}},
      {"randk(0.1) | zstd",
       {"codec \"randk(0.1) | zstd\": ", "diverges", "use randk(..., scaled=no), or leave "}},
      {"sketch(0.1)", {"codec \"sketch(0.1)\": ", "did not recover", "leave error_feedback out"}},
      {"int8; head.* = randk(0.1)",
       {"codec \"randk(0.1)\": ", "diverges", "write ef into the chains that shall have it"}},
      {"int9", {"codec \"int9\": ", "is not a codec"}},
      {"int8 | ef | ef", {"given twice"}},
      {"int8; small", {"pattern = codec"}},
      {"int8; small = fp64", {"fp64"}},
      {"", {"is not a codec"}}};
  for (const auto& row : rows) {
    const auto with = WithErrorFeedback(row.spec);
    EXPECT_EQ(with.status().code(), absl::StatusCode::kInvalidArgument) << row.spec;
    for (const char* part : row.says) {
      EXPECT_THAT(std::string(with.status().message()), HasSubstr(part)) << row.spec;
    }
  }
}

TEST(CheckLinear, TakesWhatAddsUpWithoutBeingDecoded) {
  for (const char* spec :
       {"hq; small = hq", "hq(bits=4, step=auto); small = hq(bits=8)", "hq | ef; small = hq",
        "sign(mode=vote, step=2^-10); small = sign(mode=vote)", "hq | dct(28x28); small = hq",
        "randk(0.1); small = randk(0.5)", "sketch(0.1); small = hq; head.* = randk(0.1)"}) {
    EXPECT_EQ(CheckLinear(spec), absl::OkStatus()) << spec;
  }
}

TEST(CheckLinear, RefusesOthersWithTheChainTheReasonAndTheMend) {
  const std::string mend = "randk, hq, sketch, sign(mode=vote)";
  const struct {
    const char* spec;
    std::vector<std::string> says;
  } rows[] = {
      {"int8", {"codec \"int8\": int8's values do not add up", mend}},
      {"fp32", {"codec \"fp32\": fp32's values", mend}},
      {"sign; small = sign", {"codec \"sign\": sign's values", mend}},
      {"topk(0.01) | ef", {"codec \"topk(0.01) | ef\": topk's", mend}},
      {"eden | zstd", {"eden's values", mend}},
      {"powersgd; small = hq", {"powersgd's values", mend}},
      {"hq; small = hq; head.* = int4", {"codec \"int4\": int4's values", mend}},
      {"hq | zstd; small = hq", {"codec \"hq | zstd\": what zstd makes of hq's", "leave zstd out"}},
      {"hq | lz4; small = hq", {"leave lz4 out"}},
      {"hq | zeros; small = hq", {"leave zeros out"}},
      {"hq", {"codec \"hq\": tensors of one dimension", "4096", "stay fp32", "small = hq", mend}},
      {"hq; small = fp32", {"codec \"fp32\": fp32's values", mend}},
      {"int9", {"is not a codec"}},
      {"hq; small", {"pattern = codec"}},
      {"hq | ef | ef; small = hq", {"given twice"}}};
  for (const auto& row : rows) {
    const absl::Status status = CheckLinear(row.spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.spec;
    for (const std::string& part : row.says) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << row.spec;
    }
  }
}

// Of every codec it is what `tributary codecs` says.
TEST(CheckLinear, GoesByWhatEachCodecSaysOfItself) {
  for (const CodecCase& c : AllDecodedCases()) {
    const std::string spec = c.spec + "; small = hq";
    EXPECT_EQ(CheckLinear(spec).ok(), Make(c.spec)->capabilities().linear) << spec;
  }
}

TEST(Stage, IsKeptOnlyWhereItWins) {
  const auto codec = Make("fp32 | zstd");
  std::vector<float> zeros(10000), noise = RandomFloats(3, 10000);
  std::vector<uint8_t> out;
  auto form = codec->EncodeSegment(zeros, {}, &out);
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->id, CodecId::kZstd);
  EXPECT_LT(out.size(), 100u);
  for (float& v : noise) v = v * 1.2345f;
  out.clear();
  form = Make("int8 | lz4")->EncodeSegment(noise, {}, &out);
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->id, CodecId::kInt8);
  EXPECT_EQ(form->parameter, 128u);
  EXPECT_EQ(out, Encode(*Make("int8"), noise, {}));
}

// A payload that claims `plain` bytes within, of a codec.
std::vector<uint8_t> Claim(uint16_t codec, uint32_t plain, std::vector<uint8_t> body) {
  std::vector<uint8_t> payload(kStageHeadBytes);
  StoreLe(codec, payload.data());
  StoreLe(plain, payload.data() + 8);
  payload.insert(payload.end(), body.begin(), body.end());
  return payload;
}

TEST(Stage, RefusesBombsNestingAndDamageBeforeItAllocates) {
  for (const char* spec : {"fp32 | zstd", "fp32 | lz4"}) {
    const auto codec = Make(spec);
    const auto verdict = [&](const std::vector<uint8_t>& payload) {
      return std::string(codec->Validate(PiecedBytes(ByteSpan(payload)), 4, 4096).message());
    };
    EXPECT_THAT(verdict(Claim(2, 0xFFFFFFFF, {0, 1, 2, 3})), HasSubstr("over the limits"));
    EXPECT_THAT(verdict(Claim(2, 1 << 20, {0, 1, 2, 3})), HasSubstr("over the limits"));
    EXPECT_THAT(verdict(Claim(2, 16, {9, 9, 9, 9})), HasSubstr("do not decompress"));
    EXPECT_THAT(verdict(Claim(17, 16, {0, 1, 2, 3})), HasSubstr("stage within a stage"));
    EXPECT_THAT(verdict(Claim(18, 16, {0, 1, 2, 3})), HasSubstr("stage within a stage"));
    EXPECT_THAT(verdict(Claim(99, 16, {0, 1, 2, 3})), HasSubstr("segment codec 99"));
    std::vector<uint8_t> good = Encode(*codec, std::vector<float>{1, 2, 3, 4});
    EXPECT_EQ(verdict(good), "");
    good[2] = 1;
    EXPECT_THAT(verdict(good), HasSubstr("bytes 2 and 3"));
  }
}

}  // namespace
}  // namespace tributary::compression
