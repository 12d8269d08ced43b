// Encoding a training result: what is not finite is refused by its tensor's name under every codec,
// and random numbers are each client's own.
#include "client/internal/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aggregation/grid.h"
#include "compression/policy.h"

namespace tributary::client::internal {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;
using ::testing::HasSubstr;
using ::testing::Not;

// Every codec with each of its kinds of values, and every stage.
const char* const kSpecs[] = {
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "int8(rounding=nearest)",
    "int4",
    "int2",
    "fp8",
    "fp8(format=e5m2)",
    "mxfp8",
    "mxfp8(format=e5m2)",
    "mxfp4",
    "mxint8",
    "sign",
    "sign(mode=vote, step=2^-10)",
    "eden(bits=1)",
    "eden(bits=4)",
    "hq(bits=8, step=2^-12)",
    "hq(bits=4, step=2^-8)",
    "randk(0.1)",
    "randk(0.1, scaled=no)",
    "powersgd(rank=2)",
    "sketch(0.2)",
    "sketch(0.5, rows=1)",
    "topk(0.01)",
    "topk(0.01, values=fp16)",
    "topk(0.01, values=int8)",
    "topk(0.01, values=ternary)",
    "topk(1)",
    "topk(0.01, across=model)",
    "topk(0.01, values=ternary, across=model, gain=1.5)",
    "topk(0.1, warmup=4, from=1)",
    "topk(0.01) | ef(decay=0.9, momentum=0.5)",
    "topk(0.01) | ef21",
    "int4 | ef",
    "int8 | zeros | zstd",
    "fp16 | lz4",
    "topk(0.01, values=ternary) | dct(8x8)",
    "int8 | dct(8x8)",
};

std::shared_ptr<const ModelLayout> Layout() {
  return *ModelLayout::Create({{"first.weight", {64, 80}, DType::kF32, Policy::kMean},
                               {"second.weight", {80, 64}, DType::kF32, Policy::kMean},
                               {"third.weight", {5200}, DType::kF16, Policy::kMean},
                               {"count", {2}, DType::kI64, Policy::kSum}});
}

TrainResult Deltas(const ModelLayout& layout) {
  TrainResult result;
  result.floats.resize(4);
  result.ints = {{}, {}, {}, {1, 2}};
  for (uint32_t t = 0; t < 3; ++t) {
    result.floats[t].resize(layout.TensorElements(t));
    for (size_t i = 0; i < result.floats[t].size(); ++i) {
      result.floats[t][i] = static_cast<float>((i * 37 + t * 11) % 101) / 1000 - 0.05f;
    }
  }
  return result;
}

absl::StatusOr<EncodedDelta> EncodeAs(const std::string& spec, TrainResult result,
                                      const std::string& id = "client", uint64_t round = 1,
                                      ResidualStore* residuals = nullptr) {
  const auto policy = compression::CodecPolicy::Parse(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  v1::RoundSpec task;
  task.set_round(round);
  task.set_seed(7);
  *task.mutable_grid() = aggregation::Grid().ToProto();
  ResidualStore none;
  return Encode(*Layout(), **policy, task, id, std::move(result),
                residuals == nullptr ? &none : residuals);
}

TEST(EncodeResult, RefusesWhatIsNotFiniteByItsTensorsNameUnderEveryCodec) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float bads[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  const auto layout = Layout();
  for (const char* spec : kSpecs) {
    // Of one dimension, a tensor is "small" where no rule takes it.
    const std::string codec = absl::StrCat(spec, "; third.* = ", spec);
    ASSERT_TRUE(EncodeAs(codec, Deltas(*layout)).ok()) << codec;
    for (uint32_t t = 0; t < 3; ++t) {
      const std::string name = layout->tensors()[t].name;
      for (const float bad : bads) {
        for (const size_t at : {size_t{0}, size_t{3001}, layout->TensorElements(t) - 1}) {
          TrainResult result = Deltas(*layout);
          result.floats[t][at] = bad;
          const auto encoded = EncodeAs(codec, std::move(result));
          ASSERT_FALSE(encoded.ok()) << codec << ": " << bad << " in " << name << " at " << at;
          EXPECT_EQ(encoded.status().code(), absl::StatusCode::kInvalidArgument) << codec;
          const std::string message(encoded.status().message());
          EXPECT_THAT(message, HasSubstr(absl::StrCat("\"", name, "\""))) << codec;
          for (uint32_t other = 0; other < 3; ++other) {
            if (other == t) continue;
            EXPECT_THAT(message, Not(HasSubstr(layout->tensors()[other].name))) << codec;
          }
        }
      }
    }
  }
}

// What EDEN's errors cancel by, and stochastic rounding's: another client's numbers are others.
TEST(EncodeResult, RandomNumbersAreEachClientsOwn) {
  const auto layout = Layout();
  const auto bytes = [&](const char* spec, const std::string& id, uint64_t round) {
    auto encoded = EncodeAs(spec, Deltas(*layout), id, round);
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    return *encoded->segments;
  };
  for (const char* spec : {"eden(bits=1)", "eden(bits=2)", "eden(bits=4)", "int8", "int4", "int2",
                           "hq(bits=8, step=2^-12)", "powersgd(rank=2)"}) {
    EXPECT_EQ(bytes(spec, "a", 1), bytes(spec, "a", 1)) << spec;
    EXPECT_NE(bytes(spec, "a", 1), bytes(spec, "b", 1)) << spec;
    EXPECT_NE(bytes(spec, "a", 1), bytes(spec, "a", 2)) << spec;
  }
  // Its places are all clients' own, or sums without decoding would be of different elements.
  for (const char* spec : {"randk(0.1)", "sketch(0.2)"}) {
    EXPECT_EQ(bytes(spec, "a", 1), bytes(spec, "b", 1)) << spec;
  }
  for (const char* spec : {"fp16", "sign", "topk(0.1, values=ternary)"}) {
    EXPECT_EQ(bytes(spec, "a", 1), bytes(spec, "b", 2)) << spec << " rounds by no numbers";
  }
}

}  // namespace
}  // namespace tributary::client::internal
