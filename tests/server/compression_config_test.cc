// [compression] linear: codecs that do not add up without being decoded are refused with place,
// reason and mend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/config.h"

namespace tributary::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// [compression] begins in line 8.
absl::StatusOr<Config> Parse(const std::string& compression) {
  return ParseConfig(
      absl::StrCat("[node]\nname = \"r\"\n[run]\nname = \"r\"\nmodel = \"logreg\"\n[checkpoint]\n"
                   "directory = \"checkpoints\"\n[compression]\n",
                   compression, "\n"),
      "c.toml");
}
std::string Findings(const std::string& compression) {
  const auto config = Parse(compression);
  return config.ok() ? "" : Text(config.status());
}

TEST(LinearConfig, TakesCodecsThatAddUpAndIsOffUnlessTold) {
  const auto linear = Parse("codec = \"hq(bits=4, step=auto); small = hq\"\nlinear = true");
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_TRUE(linear->compression.linear);
  EXPECT_EQ(Findings("codec = \"sign(mode=vote); small = hq\"\nlinear = true"), "");
  EXPECT_EQ(Findings("codec = \"randk(0.1); small = randk(0.5)\"\nlinear = true"), "");
  EXPECT_EQ(Findings("codec = \"sketch(0.5, recover=0.05); small = sketch(0.5)\"\nlinear = true"),
            "");
  EXPECT_EQ(Findings("codec = \"hq; small = hq\"\nerror_feedback = true\nlinear = true"), "");
  const auto usual = Parse("codec = \"int8\"");
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_FALSE(usual->compression.linear);
  EXPECT_EQ(Findings("codec = \"int8\"\nlinear = false"), "");
}

TEST(LinearConfig, RefusesOthersByCodecKeyAndMend) {
  const auto refused = [](const std::string& codec) {
    const std::string findings = Findings("codec = \"" + codec + "\"\nlinear = true");
    EXPECT_THAT(findings, AllOf(HasSubstr("c.toml:10:10: [compression] linear: codec \""),
                                HasSubstr("or leave linear out"), Not(HasSubstr("\n"))))
        << codec;
    return findings;
  };
  for (const char* codec : {"fp32", "fp16", "bf16", "int8", "int4", "int2", "fp8", "mxfp8", "mxfp4",
                            "mxint8", "eden", "sign", "powersgd", "topk(0.01)"}) {
    EXPECT_THAT(refused(codec), AllOf(HasSubstr(absl::StrCat("codec \"", codec, "\"")),
                                      HasSubstr("randk, hq, sketch, sign(mode=vote)")));
  }
  EXPECT_THAT(refused("hq; small = hq; fc.* = int4"), HasSubstr("codec \"int4\""));
  EXPECT_THAT(refused("hq | zstd; small = hq"), HasSubstr("leave zstd out"));
  EXPECT_THAT(refused("hq"), AllOf(HasSubstr("stay fp32"), HasSubstr("small = hq")));
  // A codec that is none is one finding, and that of codec.
  const std::string none = Findings("codec = \"int9\"\nlinear = true");
  EXPECT_THAT(none, AllOf(HasSubstr("c.toml:9:9: "), Not(HasSubstr("linear"))));
  EXPECT_THAT(Findings("codec = \"hq\"\nlinear = 1"),
              HasSubstr("[compression] linear must be true or false"));
}

}  // namespace
}  // namespace tributary::server
