// The kernel bench runs and gives every documented figure; how fast is not a test's business.
#include "compression/kernel_bench.h"

#include <cmath>
#include <map>
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
    const std::string kind = figure.name.substr(8, figure.name.rfind('.') - 8);
    const std::map<std::string, std::string> units = {
        {"encode", "Gelem/s"}, {"together", "times"}, {"nonzero", "ns"}, {"nonzero16", "ns"}};
    EXPECT_EQ(figure.unit, units.contains(kind) ? units.at(kind) : "GB/s") << figure.name;
    // An element of fp32 is four bytes.
    const bool by_element = kind == "fold" || kind == "fold16" || kind == "encode";
    EXPECT_EQ(figure.ns_an_element > 0, by_element) << figure.name;
    if (figure.name.ends_with(".fp32") && by_element) {
      EXPECT_NEAR(figure.value * figure.ns_an_element, kind == "encode" ? 1 : 4, 1e-9);
    }
  }
  std::set<std::string> expected;
  for (const std::string kind : {"fold", "fold16", "together", "validate", "encode"}) {
    for (const std::string codec :
         {"fp32",  "fp16",  "bf16",     "int8",      "int4",       "int2",         "sign",
          "vote",  "fp8",   "fp8_e5m2", "mxfp8",     "mxfp8_e5m2", "mxfp4",        "mxint8",
          "hq",    "hq4",   "topk",     "topk_fp16", "topk_int8",  "topk_ternary", "randk",
          "eden1", "eden2", "eden3",    "eden4",     "powersgd",   "sketch"}) {
      expected.insert("kernels." + kind + "." + codec);
    }
  }
  for (const std::string codec : {"topk", "topk_fp16", "topk_int8", "topk_ternary"}) {
    expected.insert({"kernels.nonzero." + codec, "kernels.nonzero16." + codec});
  }
  for (const std::string kind : {"fold", "fold16", "validate", "encode"}) {
    expected.insert("kernels." + kind + ".int4_zstd");
    expected.insert("kernels." + kind + ".topk_ternary_zstd");
  }
  EXPECT_EQ(names, expected);
}

}  // namespace
}  // namespace tributary::compression
