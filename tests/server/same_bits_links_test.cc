// Partial sums that went over a link, simulated or TCP, merge to the bits of one flat sum.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>

#include "compression/codec.h"
#include "server/tier_stream.h"
#include "tests/aggregation/same_bits.h"
#include "transport/sim.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

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
  std::shared_ptr<const aggregation::PackedPartial> Travel(const aggregation::ExactAccumulator& sum,
                                                           const std::string& first_id) {
    transport::LinkOptions options;
    options.slots = 2;
    auto listener = parent_->Listen(GetParam() == "tcp" ? "127.0.0.1:0" : "", options);
    EXPECT_TRUE(listener.ok()) << listener.status();
    const auto out = child_->Connect((*listener)->address(), options);
    const auto in = (*listener)->Accept(Deadline::After(kPatience));
    EXPECT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
    std::thread sender([&] {
      const absl::Status status = SendStream(
          **out, PartialStreamId(1), "header", sum.chunk_count(), kPatience,
          [&](uint64_t i, uint8_t* data) { return sum.PackChunk(i, data); }, [] { return false; });
      EXPECT_TRUE(status.ok()) << status;
    });
    auto arrived = std::make_shared<aggregation::PackedPartial>();
    arrived->first_id = first_id;
    StreamReader reader;
    while (arrived->chunks.size() < sum.chunk_count()) {
      const auto chunk = (*in)->Receive(Deadline::After(kPatience));
      EXPECT_TRUE(chunk.ok()) << chunk.status();
      if (!chunk.ok()) break;
      const auto got = reader.Feed(*chunk);
      EXPECT_TRUE(got.ok()) << got.status();
      if (got.ok() && *got == StreamReader::Got::kData)
        arrived->chunks.emplace_back(chunk->bytes().begin(), chunk->bytes().end());
    }
    sender.join();
    EXPECT_EQ(arrived->chunks.size(), sum.chunk_count());
    for (uint64_t i = 0; i < arrived->chunks.size(); ++i) {
      EXPECT_TRUE(sum.ValidateChunk(i, arrived->chunks[i]).ok());
    }
    return arrived;
  }

  transport::SimNetwork network_;
  std::unique_ptr<transport::Fabric> parent_, child_;
};

// The set, the trees and the SHA-256 of tests/aggregation/same_bits_test.cc, every partial sum over
// a link of its own; the kernel targets take turns.
TEST_P(SameBitsLinksTest, WhateverTheTreeTheOrderAndTheWorkersTheSumIsTheOneOfAllTests) {
  const auto set = aggregation::testing::MakeRecordedSet();
  const auto targets = compression::SupportedTargets();
  PhiloxStream random(8);
  std::vector<int> order = aggregation::testing::InOrder();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(compression::ForceTarget(targets[i % targets.size()]).ok());
    aggregation::testing::Shuffle(&order, &random);
    const int workers = std::array{1, 2, 4}[i % 3];
    for (const auto& [name, tree] : aggregation::testing::SameBitsTrees(order)) {
      const auto result = aggregation::testing::Aggregate(
          set, tree, workers, &random,
          [this](const auto& sum, const std::string& first_id) { return Travel(sum, first_id); });
      ASSERT_EQ(aggregation::testing::DigestOf(*result.sum), aggregation::testing::kSameBitsSha256)
          << name << ", order " << i << ", " << workers << " workers, "
          << targets[i % targets.size()];
    }
  }
  ASSERT_TRUE(compression::ForceTarget("").ok());
}

INSTANTIATE_TEST_SUITE_P(Fabrics, SameBitsLinksTest, testing::Values("tcp", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::server
