// Sketched tensors through the assembler, the sum and the root's recovery.
#include "aggregation/sketches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "aggregation/update.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 77;
constexpr uint64_t kElements = 80'000;
constexpr char kCodec[] = "sketch(0.1, recover=0.02)";

testing::LayoutPtr Layout() {
  return testing::MakeLayout(
      {{"w", {80, 1000}, DType::kF32, Policy::kMean}, {"bias", {10}, DType::kF32, Policy::kMean}});
}

std::shared_ptr<const SketchedTensors> Sketched(const ModelLayout& layout,
                                                const std::string& codec = kCodec) {
  auto sketched = SketchedTensors::Create(layout, codec, kSeed);
  EXPECT_TRUE(sketched.ok()) << sketched.status();
  return *std::move(sketched);
}

// An update whose tensor 0 is `w`, encoded as a client does.
testing::Recorded Encoded(const ModelLayout& layout, const std::string& codec,
                          const std::vector<float>& w, int64_t weight, uint64_t seed = kSeed) {
  const auto policy = compression::CodecPolicy::Parse(codec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  testing::GivenDeltas deltas = testing::RandomDeltas(layout, 1);
  deltas.floats[0] = w;
  testing::Recorded recorded;
  recorded.id = "c";
  recorded.weight = weight;
  const EncodeKeys keys{1, SeededHash(seed, "mask", "")};
  const absl::Status status =
      EncodeUpdate(layout, **policy, keys, 1, deltas, [&](std::vector<uint8_t> segment) {
        recorded.segments.push_back(std::move(segment));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return recorded;
}

testing::UpdatePtr Assembled(const testing::LayoutPtr& layout, const testing::Recorded& recorded,
                             std::shared_ptr<const SketchedTensors> sketched,
                             std::string* why = nullptr) {
  UpdateAssembler assembler(layout, Grid(), recorded.id, recorded.weight, recorded.size());
  assembler.Expect(std::move(sketched));
  std::vector<uint8_t> all;
  for (const auto& segment : recorded.segments)
    all.insert(all.end(), segment.begin(), segment.end());
  const auto owner = std::make_shared<std::vector<uint8_t>>(std::move(all));
  assembler.Add(PiecedBytes(ByteSpan(*owner)), owner);
  auto update = assembler.Finish(owner->size(), Crc32c(*owner));
  if (why != nullptr) *why = assembler.refusal().reason + ": " + assembler.refusal().message;
  return update;
}

TEST(Sketches, OnlyWhatTheRoundWantsIsTaken) {
  const auto layout = Layout();
  const std::vector<float> w(kElements, 0.25f);
  const auto why = [&](const std::string& sent, const std::string& wanted, uint64_t seed = kSeed) {
    std::string text;
    Assembled(layout, Encoded(*layout, sent, w, 3, seed), Sketched(*layout, wanted), &text);
    return text;
  };
  EXPECT_EQ(why(kCodec, kCodec), ": ");
  EXPECT_THAT(why(kCodec, "fp32"), HasSubstr("codec: "));
  EXPECT_THAT(why(kCodec, "fp32"), HasSubstr("has none of"));
  EXPECT_THAT(why("fp32", kCodec), HasSubstr("not a sketch"));
  EXPECT_THAT(why("sketch(0.2)", kCodec), HasSubstr("a sketch of parameter"));
  EXPECT_THAT(why(kCodec, kCodec, kSeed + 1), HasSubstr("another key"));
}

TEST(Sketches, OfTensorsThatAreNotMeansAreRefused) {
  const auto layout = testing::MakeLayout({{"w", {80, 1000}, DType::kF32, Policy::kMax}});
  const auto sketched = SketchedTensors::Create(*layout, kCodec, kSeed);
  EXPECT_EQ(sketched.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(sketched.status().message()), HasSubstr("\"w\""));
  EXPECT_EQ(*SketchedTensors::Create(*layout, "int8", kSeed), nullptr);
}

TEST(Sketches, OfTwoRacksGiveTheHeavyElementsOfTheWeightedMean) {
  const auto layout = Layout();
  const auto sketched = Sketched(*layout);
  const Grid grid;
  auto racks = std::vector<std::unique_ptr<ExactAccumulator>>();
  auto root = testing::MakeAccumulator(layout, grid);
  std::vector<double> mean(kElements);
  uint64_t weight = 0;
  for (int rack = 0; rack < 2; ++rack) {
    auto sum = testing::MakeAccumulator(layout, grid);
    for (int client = 0; client < 4; ++client) {
      const int64_t w = 5 + 3 * client + rack;
      std::vector<float> x(kElements);
      // Two in ten thousand are large, the same at all clients; signs alternate.
      for (uint64_t i = 3; i < kElements; i += 5000)
        x[i] = (i / 5000 % 2 ? 1.f : -1.f) * (1 + client);
      x[static_cast<size_t>(1000 * client + rack)] += 1e-3f;
      for (uint64_t i = 0; i < kElements; ++i) mean[i] += static_cast<double>(w) * x[i];
      weight += static_cast<uint64_t>(w);
      const auto update = Assembled(layout, Encoded(*layout, kCodec, x, w), sketched);
      ASSERT_NE(update, nullptr);
      const EncodedUpdate* one = update.get();
      sum->Fold({&one, 1}, testing::Everything(*sum));
    }
    // What a rack sends up: packed cells.
    std::vector<uint8_t> packed(kMaxPackedChunkBytes);
    const size_t bytes = sum->PackChunk(0, packed.data());
    ASSERT_TRUE(root->ValidateChunk(0, ByteSpan(packed).first(bytes)).ok());
    root->MergeChunk(0, ByteSpan(packed).first(bytes), "", testing::Everything(*root));
  }
  const std::vector<int64_t> bias(root->sums().begin() + kElements, root->sums().end());
  SketchRecovery recovery(layout, sketched);
  recovery.Recover(grid, weight, root.get());
  int nonzero = 0;
  for (uint64_t i = 0; i < kElements; ++i) {
    nonzero += root->sums()[i] != 0 ? 1 : 0;
    if (i % 5000 == 3) {
      EXPECT_NEAR(GridMean(root->sums()[i], weight, 30), mean[i] / static_cast<double>(weight),
                  0.01)
          << i;
    }
  }
  EXPECT_LE(nonzero, 1600) << "recover = 0.02";
  EXPECT_TRUE(std::equal(bias.begin(), bias.end(), root->sums().begin() + kElements))
      << "what is not sketched stays";
}

// Gradient steps on |w - target|^2 / 2: what a round does not find comes with a later one.
TEST(Sketches, WhatIsNotFoundInOneRoundComesInLaterOnes) {
  const auto layout = Layout();
  const std::string codec = "sketch(0.3, recover=0.00125)";
  const auto sketched = Sketched(*layout, codec);
  const Grid grid;
  PhiloxStream random(4);
  std::vector<float> target(kElements), w(kElements);
  // Sparse, and more than a round finds (100): 400 of them.
  for (uint64_t i = 0; i < kElements; i += 200) {
    target[i] = static_cast<float>(random.NextDouble() * 2 - 1);
  }
  SketchRecovery recovery(layout, sketched);
  const auto distance = [&] {
    double sum = 0;
    for (uint64_t i = 0; i < kElements; ++i) sum += std::pow(double{target[i]} - w[i], 2);
    return sum;
  };
  const double before = distance();
  auto sum = testing::MakeAccumulator(layout, grid);
  for (int round = 0; round < 60; ++round) {
    std::vector<float> step(kElements);
    for (uint64_t i = 0; i < kElements; ++i) step[i] = 0.2f * (target[i] - w[i]);
    sum->Reset();
    const auto update = Assembled(layout, Encoded(*layout, codec, step, 10), sketched);
    ASSERT_NE(update, nullptr);
    const EncodedUpdate* one = update.get();
    sum->Fold({&one, 1}, testing::Everything(*sum));
    recovery.Recover(grid, 10, sum.get());
    recovery.Commit();
    for (uint64_t i = 0; i < kElements; ++i) {
      w[i] += static_cast<float>(GridMean(sum->sums()[i], 10, 30));
    }
  }
  EXPECT_LE(distance(), 0.05 * before);
}

TEST(Sketches, ARoundThatDoesNotCountLeavesNoTraceAndARestartGoesOn) {
  const auto layout = Layout();
  const auto sketched = Sketched(*layout);
  const Grid grid;
  const auto round = [&](SketchRecovery* recovery, uint64_t seed) {
    auto sum = testing::MakeAccumulator(layout, grid);
    const auto deltas = testing::RandomDeltas(*layout, seed);
    const auto update = Assembled(layout, Encoded(*layout, kCodec, deltas.floats[0], 10), sketched);
    const EncodedUpdate* one = update.get();
    sum->Fold({&one, 1}, testing::Everything(*sum));
    recovery->Recover(grid, 10, sum.get());
    return std::vector<int64_t>(sum->sums().begin(), sum->sums().end());
  };
  SketchRecovery steady(layout, sketched), shaken(layout, sketched);
  round(&steady, 1);
  steady.Commit();
  const auto expected = round(&steady, 3);

  round(&shaken, 1);
  shaken.Commit();
  const std::string saved = shaken.State();
  round(&shaken, 2);  // lost
  EXPECT_NE(shaken.State(), saved);
  EXPECT_EQ(round(&shaken, 3), expected);

  SketchRecovery restarted(layout, sketched);
  ASSERT_TRUE(restarted.Restore(saved).ok());
  EXPECT_EQ(round(&restarted, 3), expected);
  EXPECT_EQ(restarted.Restore(saved.substr(8)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(round(&restarted, 4), expected);
}

}  // namespace
}  // namespace tributary::aggregation
