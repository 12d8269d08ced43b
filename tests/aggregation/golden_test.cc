// The golden files of tests/golden/aggregation, which a Python program wrote from
// docs/wire-format.md: this side writes the same bytes and reads the same values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "testing.h"

namespace tributary::aggregation {
namespace {

// As in tests/reference/aggregation_golden.py.
testing::LayoutPtr GoldenLayout() {
  return testing::MakeLayout({{"fc.weight", {3, 5}, DType::kF32, Policy::kMean},
                              {"fc.bias", {3}, DType::kBf16, Policy::kMean},
                              {"h\u00e4lfte", {4}, DType::kF16, Policy::kSum},
                              {"frozen", {2, 2}, DType::kF64, Policy::kSkip},
                              {"empty", {0}, DType::kF32, Policy::kMean},
                              {"steps", {}, DType::kI64, Policy::kMax}});
}

std::vector<int64_t> Int64s(const std::string& name) {
  const auto bytes = testing::ReadBytes(testing::GoldenPath(name));
  std::vector<int64_t> values(bytes.size() / 8);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(GoldenTest, LayoutHash) {
  const std::string hash = GoldenLayout()->hash();
  const auto golden = testing::ReadBytes(testing::GoldenPath("layout_hash.bin"));
  EXPECT_EQ(testing::Hex({reinterpret_cast<const uint8_t*>(hash.data()), hash.size()}),
            testing::Hex(golden));
}

TEST(GoldenTest, UpdateIsEncodedToTheSameBytes) {
  const auto layout = GoldenLayout();
  testing::GivenDeltas deltas(*layout);
  for (uint32_t t = 0; t < 3; ++t) {
    for (int i = 0; i < static_cast<int>(layout->TensorElements(t)); ++i) {
      deltas.floats[t].push_back(static_cast<float>((static_cast<int>(t) * 7 + i * 5) % 23 - 11) /
                                 32);
    }
  }
  deltas.ints[5] = {-41};
  const auto recorded = testing::Record(*layout, {"fp32", "bf16", "fp16"}, "c", 3, deltas);
  // Tensors 3 and 4 send nothing, so tensor t of the first three has codec t.
  EXPECT_EQ(testing::Hex(recorded.Bytes()),
            testing::Hex(testing::ReadBytes(testing::GoldenPath("update.bin"))));
}

TEST(GoldenTest, UpdateIsFoldedToTheSameSums) {
  const auto layout = GoldenLayout();
  const testing::Recorded golden{"c", 3, {testing::ReadBytes(testing::GoldenPath("update.bin"))}};
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(sum.get(), {testing::Assemble(layout, Grid(), golden)});
  EXPECT_TRUE(std::ranges::equal(sum->sums(), Int64s("update_sums.bin")));
}

TEST(GoldenTest, ChunkIsUnpackedToTheSameValuesAndPackedToTheSameBytes) {
  const auto layout = testing::MakeLayout({{"n", {1300}, DType::kI64, Policy::kSum}});
  const auto chunk = testing::ReadBytes(testing::GoldenPath("chunk.bin"));
  auto sum = testing::MakeAccumulator(layout, Grid());
  const absl::Status status = sum->ValidateChunk(0, chunk);
  ASSERT_TRUE(status.ok()) << status;
  sum->MergeChunk(0, chunk, "", testing::Everything(*sum));
  EXPECT_TRUE(std::ranges::equal(sum->sums(), Int64s("chunk_values.bin")));
  EXPECT_EQ(testing::Hex(testing::PackAll(*sum, "")->chunks[0]), testing::Hex(chunk));
}

}  // namespace
}  // namespace tributary::aggregation
