// The kernel bench runs and gives every documented figure; how fast is not a test's business.
#include "compression/kernel_bench.h"

#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

TEST(KernelBench, GivesEveryDocumentedFigureWithItsCeiling) {
  const std::vector<KernelFigure> figures =
      RunKernelBench({.update_bytes = uint64_t{1} << 12, .repetitions = 1});
  std::set<std::string> names;
  for (const KernelFigure& figure : figures) {
    names.insert(figure.name);
    EXPECT_GT(figure.value, 0) << figure.name;
    EXPECT_GT(figure.ceiling, 0) << figure.name;
    EXPECT_DOUBLE_EQ(figure.ratio, figure.value / figure.ceiling);
    EXPECT_EQ(figure.unit, figure.name.find(".encode.") == std::string::npos ? "GB/s" : "Gelem/s");
  }
  std::set<std::string> expected;
  for (const std::string kind : {"fold", "fold16", "validate", "encode"}) {
    for (const std::string codec :
         {"fp32", "fp16", "bf16", "int8", "int4", "int2", "sign", "fp8", "mxfp8", "mxfp4", "mxint8",
          "hq", "topk", "topk_ternary", "randk", "eden1", "eden4", "powersgd", "sketch"}) {
      expected.insert("kernels." + kind + "." + codec);
    }
  }
  EXPECT_EQ(names, expected);
}

}  // namespace
}  // namespace tributary::compression
