// The step that a round agrees on for hq.
#include "compression/agreed.h"

#include <cmath>

#include "codec_testing.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

TEST(AgreedStep, ReplacesAutoInEachHqAndNothingElse) {
  struct Row {
    const char* spec;
    double largest;
    const char* expected;
  };
  const Row rows[] = {
      // 127 2^-12 = 0.031 is twice 0.015; 7 2^-7 = 0.0547 of 0.02.
      {"hq(step=auto)", 0.015, "hq(step=2^-12)"},
      {"hq(step=auto)", 0.016, "hq(step=2^-11)"},
      {"hq(bits=4, step=auto)", 0.02, "hq(bits=4, step=2^-7)"},
      {"hq(step = auto, bits=4)", 0.02, "hq(step = 2^-7, bits=4)"},
      {"fp32; w* = hq(step=auto) | zstd; v = hq(bits=4,step=auto)", 0.02,
       "fp32; w* = hq(step=2^-11) | zstd; v = hq(bits=4,step=2^-7)"},
      {"hq (step=auto)", 0.02, "hq (step=2^-11)"},
      {"hq\t(bits = 4,\n step\t=\tauto )", 0.02, "hq\t(bits = 4,\n step\t=\t2^-7 )"},
      {"hq(bits=8, step=2^-9)", 0.5, "hq(bits=8, step=2^-9)"},
      {"hq", 0.5, "hq"},
      {"int8; auto = fp32", 0.5, "int8; auto = fp32"},
      {"hq(step=auto)", 1e9, "hq(step=2^-0)"},
      {"hq(step=auto)", 1e-30, "hq(step=2^-60)"},
      {"hq(step=auto)", 0, "hq(step=2^-12)"}};
  for (const Row& row : rows) {
    EXPECT_EQ(WithAgreedStep(row.spec, row.largest), row.expected);
    EXPECT_EQ(WantsAgreedStep(row.spec),
              std::string(row.spec).find("step") != std::string::npos &&
                  std::string(row.spec).find("auto") != std::string::npos);
  }
  EXPECT_EQ(WithAgreedStep("hq(step=auto)", std::nullopt), "hq(step=2^-12)");
}

TEST(AgreedStep, IsTheSmallestOfWhichTheLevelsReachTwiceTheLargest) {
  for (const double largest : {1e-4, 0.01, 0.015625, 0.3, 1.7}) {
    for (const int levels : {127, 7}) {
      const std::string spec =
          WithAgreedStep(levels == 7 ? "hq(bits=4, step=auto)" : "hq(bits=8, step=auto)", largest);
      const int s = std::stoi(spec.substr(spec.find("2^-") + 3));
      EXPECT_GT(s, 0);
      EXPECT_GE(std::ldexp(levels, -s), 2 * largest) << spec;
      EXPECT_LT(std::ldexp(levels, -s - 1), 2 * largest) << spec;
      EXPECT_TRUE(MakeCodec(spec).ok());
    }
  }
}

}  // namespace
}  // namespace tributary::compression
