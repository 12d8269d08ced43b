// Promises of the model layout: what is refused, where things lie, what the hash covers.
#include "aggregation/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "aggregation/update.h"
#include "compression/codec.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;

absl::Status Refusal(std::vector<TensorSpec> tensors) {
  return ModelLayout::Create(std::move(tensors)).status();
}

TEST(LayoutTest, PlacesTensorsBackToBackAndLeavesSkipOutOfTheAggregate) {
  const auto layout = testing::MakeLayout({{"a", {2, 3}, DType::kF16, Policy::kMean},
                                           {"none", {0}, DType::kF64, Policy::kMean},
                                           {"skipped", {5}, DType::kF64, Policy::kSkip},
                                           {"scalar", {}, DType::kI64, Policy::kSum},
                                           {"b", {40000}, DType::kF32, Policy::kMean}});
  EXPECT_EQ(layout->model_bytes(), 12u + 0 + 40 + 8 + 160000);
  EXPECT_EQ(layout->elements(), 6u + 0 + 1 + 40000);
  EXPECT_EQ(layout->TensorByteOffset(3), 52u);
  EXPECT_EQ(layout->TensorElementOffset(3), 6u);
  EXPECT_EQ(layout->TensorElementOffset(4), 7u);
  ASSERT_EQ(layout->tiles().size(), 4u);  // a, scalar, b twice
  EXPECT_EQ(layout->FirstTileOf(4), 2u);
  const Tile& last = layout->tiles()[3];
  EXPECT_EQ(last.tensor, 4u);
  EXPECT_EQ(last.first, 32768u);
  EXPECT_EQ(last.count, 40000u - 32768);
  EXPECT_EQ(last.offset, 7u + 32768);
}

TEST(LayoutTest, CountsBeyondThirtyTwoBits) {
  const uint64_t n = (uint64_t{1} << 33) + 5;
  const auto layout =
      testing::MakeLayout({{"huge", {n}, DType::kF32, Policy::kMean},
                           {"skipped", {uint64_t{1} << 58}, DType::kF64, Policy::kSkip},
                           {"after", {3}, DType::kF32, Policy::kMean}});
  EXPECT_EQ(layout->elements(), 8589934600u);
  EXPECT_EQ(layout->TensorByteOffset(2), 34359738388u + 2305843009213693952u);
  EXPECT_EQ(layout->TensorElementOffset(2), 8589934597u);
  ASSERT_EQ(layout->tiles().size(), 262144u + 1 + 1);
  EXPECT_EQ(layout->tiles()[262144].first, 8589934592u);
  EXPECT_EQ(layout->tiles()[262144].count, 5u);
  EXPECT_EQ(layout->tiles()[262145].offset, 8589934597u);
  // 4 bytes an element and 32 + 24 a tile, and those of the small tensor.
  EXPECT_EQ(MaxEncodedBytes(*layout), 34359738388u + 262145u * 56 + 12 + 56);
}

TEST(LayoutTest, RefusesWhatIsNoModelNamingIt) {
  EXPECT_THAT(Refusal({}).message(), HasSubstr("0 tensors"));
  EXPECT_THAT(Refusal({{"", {1}}}).message(), HasSubstr("tensor 0 has a name of 0 bytes"));
  EXPECT_THAT(Refusal({{std::string(513, 'x'), {1}}}).message(), HasSubstr("513 bytes"));
  EXPECT_THAT(Refusal({{"w", {1}}, {"w", {2}}}).message(), HasSubstr("\"w\" appears twice"));
  EXPECT_THAT(Refusal({{"w", {1}, static_cast<DType>(0)}}).message(),
              HasSubstr("unknown dtype number 0"));
  EXPECT_THAT(Refusal({{"w", {1}, static_cast<DType>(9)}}).message(),
              HasSubstr("unknown dtype number 9"));
  EXPECT_THAT(Refusal({{"w", {1}, DType::kF32, static_cast<Policy>(6)}}).message(),
              HasSubstr("unknown policy number 6"));
  EXPECT_THAT(Refusal({{"w", std::vector<uint64_t>(65, 1)}}).message(), HasSubstr("65 dimensions"));
}

TEST(LayoutTest, RefusesSizesThatOverflow) {
  const uint64_t half = uint64_t{1} << 32;
  EXPECT_THAT(Refusal({{"w", {half, half}}}).message(), HasSubstr("more than 2^62 elements"));
  // Also behind a zero: the product of the others must still be one that exists.
  EXPECT_THAT(Refusal({{"w", {0, half, half}}}).message(), HasSubstr("more than 2^62 elements"));
  EXPECT_THAT(Refusal({{"w", {uint64_t{1} << 61}, DType::kF64, Policy::kSkip}}).message(),
              HasSubstr("past 2^62 bytes"));
  EXPECT_THAT(Refusal({{"a", {uint64_t{1} << 38}}, {"b", {1}}}).message(),
              HasSubstr("past 2^38 elements"));
}

TEST(LayoutTest, ReadsBackFromItsMessageWithTheSameHash) {
  const auto layout = testing::MixedLayout();
  const auto again = ModelLayout::FromProto(layout->ToProto());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->hash(), layout->hash());
  EXPECT_EQ((*again)->DescribeDifference(*layout), "no difference");
  v1::ModelLayout unknown = layout->ToProto();
  unknown.mutable_tensors(0)->set_dtype(static_cast<v1::DType>(257));  // 1 in its low byte
  EXPECT_FALSE(ModelLayout::FromProto(unknown).ok());
}

TEST(LayoutTest, HashChangesWithNameShapeDtypePolicyAndOrder) {
  const std::vector<TensorSpec> tensors = {{"a", {2, 3}}, {"b", {6}}};
  const std::string hash = testing::MakeLayout(tensors)->hash();
  EXPECT_EQ(hash.size(), 32u);
  std::vector<std::vector<TensorSpec>> others(5, tensors);
  others[0][0].name = "c";
  others[1][0].shape = {3, 2};
  others[2][0].dtype = DType::kBf16;
  others[3][0].policy = Policy::kSum;
  std::swap(others[4][0], others[4][1]);
  for (const auto& other : others) EXPECT_NE(testing::MakeLayout(other)->hash(), hash);
}

TEST(LayoutTest, DescribesTheFirstDifference) {
  const auto expected = testing::MakeLayout({{"fc1", {10, 784}}, {"fc2", {10}}});
  const auto describe = [&](std::vector<TensorSpec> tensors) {
    return testing::MakeLayout(std::move(tensors))->DescribeDifference(*expected);
  };
  EXPECT_EQ(describe({{"fc1", {200, 784}}, {"fc2", {10}}}),
            "tensor \"fc1\" has shape [200,784], expected [10,784]");
  EXPECT_EQ(describe({{"fc1", {10, 784}, DType::kF16}, {"fc2", {10}}}),
            "tensor \"fc1\" has dtype F16, expected F32");
  EXPECT_EQ(describe({{"fc1", {10, 784}}, {"fc2", {10}, DType::kF32, Policy::kMax}}),
            "tensor \"fc2\" has policy max, expected mean");
  EXPECT_EQ(describe({{"fc1", {10, 784}}}), "tensor \"fc2\" is missing");
  EXPECT_EQ(describe({{"fc1", {10, 784}}, {"fc2", {10}}, {"fc3", {1}}}),
            "tensor \"fc3\" is not expected");
  EXPECT_EQ(describe({{"fc1", {10, 784}}, {"fcX", {10}}}),
            "tensor 1 is named \"fcX\", expected \"fc2\"");
}

}  // namespace
}  // namespace tributary::aggregation
