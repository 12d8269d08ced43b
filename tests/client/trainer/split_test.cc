// Splits: every example once, seeded, and equal to an independent implementation
// (tests/reference/splits.py wrote the expected parts).
#include "client/trainer/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>

#include "base/status.h"
#include "client/trainer/internal/dirichlet.h"

namespace tributary::client::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 10 classes in turn.
std::vector<uint8_t> Labels(size_t count) {
  std::vector<uint8_t> labels(count);
  for (size_t i = 0; i < count; ++i) labels[i] = static_cast<uint8_t>(i % 10);
  return labels;
}

// The labels of splits.py.
std::vector<uint8_t> ReferenceLabels(size_t count) {
  std::vector<uint8_t> labels(count);
  for (size_t i = 0; i < count; ++i) labels[i] = static_cast<uint8_t>(i * 7 % 3);
  return labels;
}

Parts Split(const std::vector<uint8_t>& labels, const SplitSpec& spec) {
  const auto parts = SplitTraining(labels, spec);
  EXPECT_TRUE(parts.ok()) << parts.status();
  return parts.ok() ? *parts : Parts();
}

void ExpectEachOnce(const Parts& parts, size_t count) {
  std::vector<uint32_t> all;
  for (const auto& part : parts) {
    EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<uint32_t> expected(count);
  std::iota(expected.begin(), expected.end(), 0u);
  EXPECT_EQ(all, expected);
}

size_t SmallestPart(const Parts& parts) {
  size_t smallest = SIZE_MAX;
  for (const auto& part : parts) smallest = std::min(smallest, part.size());
  return smallest;
}

size_t LargestPart(const Parts& parts) {
  size_t largest = 0;
  for (const auto& part : parts) largest = std::max(largest, part.size());
  return largest;
}

class EverySplit : public ::testing::TestWithParam<SplitSpec> {};

TEST_P(EverySplit, GivesEachExampleToExactlyOneClientAndEachClientSome) {
  for (const size_t count : {2000, 60000}) {
    const Parts parts = Split(Labels(count), GetParam());
    EXPECT_EQ(parts.size(), GetParam().clients);
    ExpectEachOnce(parts, count);
    EXPECT_GE(SmallestPart(parts), 1);
  }
}

TEST_P(EverySplit, DependsOnTheSeedAndOnNothingElse) {
  SplitSpec spec = GetParam();
  const Parts once = Split(Labels(2000), spec);
  EXPECT_EQ(Split(Labels(2000), spec), once);
  spec.seed += 1;
  EXPECT_NE(Split(Labels(2000), spec), once);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EverySplit,
    ::testing::Values(SplitSpec{.kind = SplitKind::kIid, .clients = 7},
                      SplitSpec{.kind = SplitKind::kIid, .clients = 1000},
                      SplitSpec{.kind = SplitKind::kShards, .clients = 100, .shards_per_client = 2},
                      SplitSpec{.kind = SplitKind::kDirichlet, .clients = 20, .alpha = 0.5},
                      SplitSpec{.kind = SplitKind::kDirichlet, .clients = 20, .alpha = 1000},
                      SplitSpec{.kind = SplitKind::kDirichlet, .clients = 1500, .alpha = 0.001}));

TEST(Split, EqualsTheIndependentImplementation) {
  std::map<std::string, Parts> wanted =
      nlohmann::json::parse(std::ifstream(TRIBUTARY_SOURCE_DIR "/tests/golden/splits/parts.json"));
  const auto expect = [&wanted](const std::string& name, const Parts& parts) {
    ASSERT_TRUE(wanted.contains(name)) << name;
    EXPECT_EQ(parts, wanted[name]) << name;
    wanted.erase(name);
  };
  const auto labels = ReferenceLabels(30);
  expect("iid", Split(ReferenceLabels(10), {.kind = SplitKind::kIid, .clients = 3, .seed = 42}));
  expect("test", *SplitTest(10, 4, 42));
  expect("shards",
         Split(ReferenceLabels(12),
               {.kind = SplitKind::kShards, .clients = 3, .seed = 42, .shards_per_client = 2}));
  const auto dirichlet = [&labels](uint32_t clients, double alpha) {
    return Split(labels,
                 {.kind = SplitKind::kDirichlet, .clients = clients, .seed = 42, .alpha = alpha});
  };
  expect("dirichlet 0.5", dirichlet(4, 0.5));
  expect("dirichlet 3", dirichlet(4, 3));
  // Four clients drew nothing, and take one each from the largest: 29, 28, 26, 25.
  const Parts few = dirichlet(6, 0.01);
  EXPECT_EQ(SmallestPart(few), 1u);
  expect("dirichlet 0.01", few);
  EXPECT_TRUE(wanted.empty()) << wanted.begin()->first << " is compared with nothing";
}

TEST(Split, IidPartsDifferByOneAtMost) {
  const Parts parts = Split(Labels(60000), {.kind = SplitKind::kIid, .clients = 7});
  EXPECT_EQ(SmallestPart(parts), 8571);  // 60000 / 7 = 8571.4
  EXPECT_EQ(LargestPart(parts), 8572);
}

TEST(Split, ShardsGiveEqualPartsOfFewLabels) {
  const auto labels = Labels(60000);
  const Parts parts =
      Split(labels, {.kind = SplitKind::kShards, .clients = 100, .shards_per_client = 2});
  for (const auto& part : parts) {
    EXPECT_EQ(part.size(), 600);
    std::set<uint8_t> seen;
    for (const uint32_t i : part) seen.insert(labels[i]);
    // A shard of 300 lies within one class of 6,000.
    EXPECT_LE(seen.size(), 2);
  }
}

TEST(Split, LargeAlphaIsNearlyEqualAndSmallAlphaIsNot) {
  const auto equal =
      Split(Labels(60000), {.kind = SplitKind::kDirichlet, .clients = 20, .alpha = 1e6});
  // Each class's share deviates by about 1e-3 of itself: six examples in 6,000 at the very most.
  EXPECT_NEAR(static_cast<double>(SmallestPart(equal)), 3000, 60);
  EXPECT_NEAR(static_cast<double>(LargestPart(equal)), 3000, 60);
  const auto unequal =
      Split(Labels(60000), {.kind = SplitKind::kDirichlet, .clients = 20, .alpha = 0.1});
  EXPECT_LT(SmallestPart(unequal), 1500);
  EXPECT_GT(LargestPart(unequal), 4500);
}

// Nearly all of them are given one by the few that have any.
TEST(Split, GivesEachOfAsManyClientsAsExamplesOne) {
  constexpr uint32_t kMany = 50'000;
  const Parts parts =
      Split(Labels(kMany), {.kind = SplitKind::kDirichlet, .clients = kMany, .alpha = 0.001});
  for (const auto& part : parts) ASSERT_EQ(part.size(), 1u);
  ExpectEachOnce(parts, kMany);
}

TEST(Split, RefusesWhatCannotBeCut) {
  const auto refusal = [](const SplitSpec& spec) {
    const auto parts = SplitTraining(Labels(20), spec);
    EXPECT_EQ(parts.status().code(), absl::StatusCode::kInvalidArgument);
    return Text(parts.status());
  };
  EXPECT_THAT(refusal({.clients = 21}), HasSubstr("20 training examples cannot be cut into 21"));
  EXPECT_THAT(refusal({.clients = 0}), HasSubstr("0 clients"));
  EXPECT_THAT(refusal({.kind = SplitKind::kShards, .clients = 4, .shards_per_client = 6}),
              HasSubstr("into 24 parts"));
  EXPECT_THAT(refusal({.kind = SplitKind::kShards, .clients = 4, .shards_per_client = 0}),
              HasSubstr("shards_per_client is 0"));
  for (const double alpha : {0.0, -1.0, 1e7, std::nan("")}) {
    EXPECT_THAT(refusal({.kind = SplitKind::kDirichlet, .clients = 2, .alpha = alpha}),
                HasSubstr("alpha"));
  }
  EXPECT_FALSE(SplitTest(10, 0, 1).ok());
  EXPECT_FALSE(SplitKindFromName("dirichelt").ok());
}

TEST(SplitTest, CutsAllExamplesAndMayLeavePartsEmpty) {
  const Parts parts = *SplitTest(10000, 20, 1);
  ExpectEachOnce(parts, 10000);
  EXPECT_EQ(SmallestPart(parts), 500);
  EXPECT_EQ(LargestPart(parts), 500);
  const Parts few = *SplitTest(3, 5, 1);
  ExpectEachOnce(few, 3);
  EXPECT_EQ(few.size(), 5);
}

TEST(Apportion, GivesTheLargestRemaindersTheRest) {
  // 10 * 1/3 each: 3 and a third, the one left over to the first of equals.
  EXPECT_THAT(Apportion(10, std::vector<uint64_t>{1, 1, 1}), ElementsAre(4, 3, 3));
  // 7 * (5, 3, 2) / 10 = 3.5, 2.1, 1.4.
  EXPECT_THAT(Apportion(7, std::vector<uint64_t>{5, 3, 2}), ElementsAre(4, 2, 1));
  // 5 * (0, 7, 1) / 8 = 0, 4.375, 0.625.
  EXPECT_THAT(Apportion(5, std::vector<uint64_t>{0, 7, 1}), ElementsAre(0, 4, 1));
  EXPECT_THAT(Apportion(0, std::vector<uint64_t>{1, 2}), ElementsAre(0, 0));
}

TEST(PortableMath, AgreesWithTheCLibrary) {
  for (int exponent = -1000; exponent <= 1000; exponent += 7) {
    for (const double m : {0.5, 0.6180339887, 0.70710678, 0.7072, 0.999999, 1.0}) {
      const double x = std::ldexp(m, exponent);
      EXPECT_NEAR(PortableLog(x), std::log(x), 1e-14 * std::max(1.0, std::abs(std::log(x))));
    }
  }
  for (double x = -700; x <= 700; x += 0.37) {
    EXPECT_NEAR(PortableExp(x) / std::exp(x), 1, 4e-13) << x;
  }
  EXPECT_EQ(PortableLog(1), 0);
  EXPECT_EQ(PortableExp(0), 1);
}

// The moments of a symmetric Dirichlet: mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1).
TEST(DrawShares, HasTheMomentsOfADirichletDistribution) {
  constexpr uint32_t kClients = 4;
  constexpr int kDraws = 20000;
  for (const double alpha : {0.1, 0.5, 1.0, 5.0}) {
    PhiloxStream random(17);
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const auto shares = DrawShares(alpha, kClients, &random);
      const double x = static_cast<double>(shares[2]) * 0x1p-20;
      sum += x;
      squares += x * x;
    }
    const double mean = sum / kDraws;
    const double variance = squares / kDraws - mean * mean;
    const double expected = 0.25 * 0.75 / (kClients * alpha + 1);
    EXPECT_NEAR(mean, 0.25, 5 * std::sqrt(expected / kDraws)) << alpha;
    EXPECT_NEAR(variance, expected, 0.05 * expected) << alpha;
  }
}

}  // namespace
}  // namespace tributary::client::trainer
