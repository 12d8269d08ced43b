// --probe-codecs' list: it has every codec that there is, and each of its specs encodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "client/trainer/internal/probe.h"
#include "compression/codec.h"

namespace tributary::client::trainer {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;

TEST(ProbedSpecs, HaveEveryCodecAndStage) {
  std::string all;
  for (const std::string& spec : ProbedSpecs()) all += spec + "\n";
  for (const compression::Capabilities& codec : compression::AllCodecs()) {
    if (codec.name == "int64") continue;  // of integer tensors
    const std::string name(codec.name);
    EXPECT_TRUE(std::ranges::any_of(ProbedSpecs(), [&](const std::string& spec) {
      return spec == name || spec.starts_with(name + "(") || spec.ends_with("| " + name);
    })) << name;
  }
  for (const char* kind : {"| zeros", "| zstd", "| lz4", "mode=vote", "scaled=no",
                           "fp8(format=e5m2)", "values=fp16", "values=int8", "values=ternary"}) {
    EXPECT_THAT(all, ::testing::HasSubstr(kind));
  }
}

TEST(ProbedSpecs, EachEncodesASmallUpdateWithAnErrorThatIsItsOwn) {
  const auto layout = *ModelLayout::Create({{"w", {64, 96}, DType::kF32, Policy::kMean},
                                            {"bias", {10}, DType::kF32, Policy::kMean},
                                            {"count", {1}, DType::kI64, Policy::kSum}});
  TrainResult update;
  update.floats.resize(3);
  update.ints = {{}, {}, {5}};
  for (uint32_t t = 0; t < 2; ++t) {
    update.floats[t].resize(layout->TensorElements(t));
    for (size_t i = 0; i < update.floats[t].size(); ++i) {
      update.floats[t][i] = 0.01f * std::sin(static_cast<float>(i * i % 1009 + t));
    }
  }
  const auto rows = ProbeUpdate(*layout, update, ProbedSpecs());
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), ProbedSpecs().size());
  for (size_t i = 0; i < rows->size(); ++i) {
    const ProbeRow& row = (*rows)[i];
    EXPECT_EQ(row.spec, ProbedSpecs()[i]);
    EXPECT_GT(row.bytes, 0u) << row.spec;
    EXPECT_NEAR(row.times_smaller, 4 * 6154.0 / static_cast<double>(row.bytes), 1e-9) << row.spec;
    EXPECT_TRUE(std::isfinite(row.nmse)) << row.spec;
    EXPECT_EQ(row.nmse == 0, row.spec == "fp32") << row.spec;
  }
}

}  // namespace
}  // namespace tributary::client::trainer
