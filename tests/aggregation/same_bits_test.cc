// One set of recorded updates gives the same bits whatever the tree, order, workers and kernel
// target, and they are those of an independent reference in Python integers
// (tests/reference/aggregate.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "same_bits.h"

namespace tributary::aggregation {
namespace {

using testing::Aggregate;
using testing::kSameBitsSha256;
using testing::kSameBitsUpdates;

class SameBitsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_ = new testing::RecordedSet(testing::MakeRecordedSet()); }
  static void TearDownTestSuite() { delete set_; }
  static testing::RecordedSet* set_;
};
testing::RecordedSet* SameBitsTest::set_ = nullptr;

TEST_F(SameBitsTest, WhateverTheTreeTheOrderTheWorkersAndTheKernelTarget) {
  int runs = 0;
  PhiloxStream random(7);
  std::vector<int> order = testing::InOrder();
  for (const std::string& target : compression::SupportedTargets()) {
    ASSERT_TRUE(compression::ForceTarget(target).ok());
    for (int i = 0; i < 20; ++i) {
      testing::Shuffle(&order, &random);
      const int workers = std::array{1, 2, 4}[i % 3];
      for (const auto& [name, tree] : testing::SameBitsTrees(order)) {
        ASSERT_EQ(testing::DigestOf(*Aggregate(*set_, tree, workers, &random).sum), kSameBitsSha256)
            << name << ", order " << i << ", " << workers << " workers, " << target;
        ++runs;
      }
    }
  }
  ASSERT_TRUE(compression::ForceTarget("").ok());
  std::cout << runs << " aggregations under "
            << absl::StrJoin(compression::SupportedTargets(), ", ") << ": " << kSameBitsSha256
            << "\n";
  for (const std::string target : {"AVX3", "AVX2"}) {
    const auto supported = compression::SupportedTargets();
    if (std::ranges::find(supported, target) == supported.end()) {
      std::cout << "not tried: kernel target " << target << ", which this CPU or build lacks\n";
    }
  }
}

TEST_F(SameBitsTest, OneUpdateAtATimeOrManyInAPass) {
  auto one_by_one = testing::MakeAccumulator(set_->layout, Grid());
  for (const auto& update : set_->updates) testing::FoldAll(one_by_one.get(), {update});
  EXPECT_EQ(testing::DigestOf(*one_by_one), kSameBitsSha256);
  auto at_once = testing::MakeAccumulator(set_->layout, Grid());
  testing::FoldAll(at_once.get(), set_->updates);
  EXPECT_EQ(testing::DigestOf(*at_once), kSameBitsSha256);
}

// The layout as JSON; names here need no escapes.
std::string LayoutJson(const ModelLayout& layout) {
  std::vector<std::string> tensors;
  for (const TensorSpec& t : layout.tensors()) {
    tensors.push_back(absl::StrCat("{\"name\":\"", t.name, "\",\"shape\":[",
                                   absl::StrJoin(t.shape, ","), "],\"dtype\":\"",
                                   std::string(DTypeName(t.dtype)), "\",\"policy\":\"",
                                   std::string(PolicyName(t.policy)), "\"}"));
  }
  return absl::StrCat("[", absl::StrJoin(tensors, ",\n"), "]");
}

TEST_F(SameBitsTest, AsAReferenceInPythonIntegersComputesThem) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "tributary-same-bits-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<std::string> updates;
  for (int i = 0; i < kSameBitsUpdates; ++i) {
    const testing::Recorded& r = set_->recorded[i];
    updates.push_back(
        absl::StrCat("{\"id\":\"", r.id, "\",\"weight\":", r.weight, ",\"file\":\"", i, ".bin\"}"));
    testing::WriteBytes(absl::StrCat(folder, "/", i, ".bin"), r.Bytes());
  }
  const std::string json = absl::StrCat("{\"fraction_bits\":", Grid().fraction_bits,
                                        ",\"tensors\":", LayoutJson(*set_->layout),
                                        ",\"updates\":[", absl::StrJoin(updates, ",\n"), "]}");
  const auto bytes = [](const std::string& s) {
    return ByteSpan(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  };
  testing::WriteBytes(folder + "/round.json", bytes(json));
  testing::WriteBytes(folder + "/hash.bin", bytes(set_->layout->hash()));
  PhiloxStream random(1);
  const auto trees = testing::SameBitsTrees(testing::InOrder());
  const testing::Aggregated result = Aggregate(*set_, trees.back().second, 2, &random);
  ASSERT_EQ(testing::DigestOf(*result.sum), kSameBitsSha256);
  const auto sums = result.sum->sums();
  testing::WriteBytes(folder + "/sums.bin",
                      {reinterpret_cast<const uint8_t*>(sums.data()), sums.size_bytes()});

  const std::string command = absl::StrCat("/usr/bin/python3 ", TRIBUTARY_SOURCE_DIR,
                                           "/tests/reference/aggregate.py ", folder);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tributary::aggregation
