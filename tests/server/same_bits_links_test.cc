// Partial sums that went over a link, simulated or TCP, merge to the bits of one flat sum.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/tier_stream.h"
#include "tests/aggregation/testing.h"
#include "transport/sim.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

using aggregation::Grid;
using aggregation::testing::UpdatePtr;
constexpr int kUpdates = 24;
constexpr absl::Duration kPatience = absl::Seconds(60);

// 24 updates of mixed codecs and weights, every policy and dtype among the tensors.
std::vector<UpdatePtr> Updates(const aggregation::testing::LayoutPtr& layout) {
  const std::vector<std::vector<std::string>> codecs = {
      {"fp32"}, {"fp16"}, {"bf16"}, {"int8"}, {"int8(block=64)", "fp32"}};
  std::vector<UpdatePtr> updates;
  for (int i = 0; i < kUpdates; ++i) {
    auto deltas = aggregation::testing::RandomDeltas(*layout, 300 + i);
    // The smallest id, which FIRST tensors go by, is in the last rack.
    updates.push_back(aggregation::testing::Assemble(
        layout, Grid(),
        aggregation::testing::Record(*layout, codecs[i % codecs.size()],
                                     absl::StrCat("client-", 99 - i), 1 + i * 37, deltas)));
  }
  return updates;
}

class SameBitsLinksTest : public testing::TestWithParam<std::string> {
 protected:
  SameBitsLinksTest() {
    if (GetParam() == "tcp") {
      parent_ = transport::MakeTcpFabric();
      child_ = transport::MakeTcpFabric();
    } else {
      parent_ = transport::MakeSimFabric(network_, network_.AddNode());
      child_ = transport::MakeSimFabric(network_, network_.AddNode());
    }
  }
  // What arrives of a sum that is sent over a link of its own.
  aggregation::PackedPartial Travel(const aggregation::ExactAccumulator& sum,
                                    const std::string& first_id) {
    transport::LinkOptions options;
    options.slots = 2;
    auto listener = parent_->Listen(GetParam() == "tcp" ? "127.0.0.1:0" : "", options);
    EXPECT_TRUE(listener.ok()) << listener.status();
    const auto out = child_->Connect((*listener)->address(), options);
    const auto in = (*listener)->Accept(absl::Now() + kPatience);
    EXPECT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
    std::thread sender([&] {
      const absl::Status status = SendStream(
          **out, PartialStreamId(1), "header", sum.chunk_count(), kPatience,
          [&](uint64_t i, uint8_t* data) { return sum.PackChunk(i, data); }, [] { return false; });
      EXPECT_TRUE(status.ok()) << status;
    });
    aggregation::PackedPartial arrived{.first_id = first_id, .chunks = {}};
    StreamReader reader;
    while (arrived.chunks.size() < sum.chunk_count()) {
      const auto chunk = (*in)->Receive(absl::Now() + kPatience);
      EXPECT_TRUE(chunk.ok()) << chunk.status();
      if (!chunk.ok()) break;
      const auto got = reader.Feed(*chunk);
      EXPECT_TRUE(got.ok()) << got.status();
      if (got.ok() && *got == StreamReader::Got::kData)
        arrived.chunks.emplace_back(chunk->bytes().begin(), chunk->bytes().end());
    }
    sender.join();
    return arrived;
  }

  transport::SimNetwork network_;
  std::unique_ptr<transport::Fabric> parent_, child_;
};

TEST_P(SameBitsLinksTest, TwoTiersOverLinksAreTheFlatSumToTheBit) {
  const auto layout = aggregation::testing::MixedLayout();
  const std::vector<UpdatePtr> updates = Updates(layout);
  const auto flat = aggregation::testing::MakeAccumulator(layout, Grid());
  aggregation::testing::FoldAll(flat.get(), updates);

  const auto root = aggregation::testing::MakeAccumulator(layout, Grid());
  // Uneven racks.
  for (const auto& [begin, end] : {std::pair(0, 2), std::pair(2, 17), std::pair(17, kUpdates)}) {
    const auto rack = aggregation::testing::MakeAccumulator(layout, Grid());
    aggregation::testing::FoldAll(rack.get(), {updates.begin() + begin, updates.begin() + end});
    const auto arrived = Travel(*rack, updates[end - 1]->id());
    ASSERT_EQ(arrived.chunks.size(), root->chunk_count());
    for (uint64_t i = 0; i < arrived.chunks.size(); ++i) {
      ASSERT_TRUE(root->ValidateChunk(i, arrived.chunks[i]).ok());
      root->MergeChunk(i, arrived.chunks[i], arrived.first_id,
                       aggregation::testing::Everything(*root));
    }
  }
  EXPECT_EQ(aggregation::testing::DigestOf(*root), aggregation::testing::DigestOf(*flat));
}

INSTANTIATE_TEST_SUITE_P(Fabrics, SameBitsLinksTest, testing::Values("tcp", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::server
