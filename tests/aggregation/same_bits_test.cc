// One set of recorded updates gives the same bits whatever the tree, order, workers and kernel
// target, and they are those of an independent reference in Python integers
// (tests/reference/aggregate.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

constexpr int kUpdates = 26;
const Grid kGrid;

// An aggregator: the updates and the aggregators below it.
struct Tree {
  std::vector<int> updates;
  std::vector<Tree> children;
};

struct Aggregated {
  std::unique_ptr<ExactAccumulator> sum;
  std::string first_id;
  uint64_t weight = 0;
};

std::vector<int> Numbers(int begin, int end) {
  std::vector<int> numbers;
  for (int i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

// The trees, each over all updates in the given order.
std::vector<std::pair<std::string, Tree>> Trees(const std::vector<int>& order) {
  const auto take = [&](int begin, int end) {
    return std::vector<int>(order.begin() + begin, order.begin() + end);
  };
  return {
      {"flat", {take(0, kUpdates), {}}},
      {"two tiers, 1/5/20", {{}, {{take(0, 1), {}}, {take(1, 6), {}}, {take(6, kUpdates), {}}}}},
      {"two tiers and clients at the root",
       {take(0, 3), {{take(3, 4), {}}, {take(4, kUpdates), {}}}}},
      {"three tiers",
       {{},
        {{take(0, 2), {{take(2, 9), {}}, {take(9, 10), {}}}},
         {{}, {{take(10, 12), {}}, {take(12, 25), {}}}},
         {take(25, kUpdates), {}}}}}};
}

class SameBitsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    layout_ = new testing::LayoutPtr(testing::MixedLayout());
    recorded_ = new std::vector<testing::Recorded>();
    updates_ = new std::vector<testing::UpdatePtr>();
    const std::vector<std::vector<std::string>> codecs = {
        {"fp32"}, {"fp16"},           {"bf16"},
        {"int8"}, {"int8(block=64)"}, {"int8(rounding=nearest)", "fp32", "bf16"}};
    PhiloxStream random(2024);
    std::vector<int> names = Numbers(0, kUpdates);
    testing::Shuffle(&names, &random);  // the smallest id is not the first
    for (int i = 0; i < kUpdates; ++i) {
      auto deltas = testing::RandomDeltas(**layout_, 1000 + i);
      const auto weight = static_cast<int64_t>(1 + random.NextBelow(5000));
      recorded_->push_back(testing::Record(**layout_, codecs[i % codecs.size()],
                                           absl::StrCat("client-", names[i]), weight, deltas));
      updates_->push_back(testing::Assemble(*layout_, kGrid, recorded_->back(), i));
    }
  }
  static void TearDownTestSuite() {
    delete updates_;
    delete recorded_;
    delete layout_;
  }

  // Aggregates a tree: below each node first, then everything at it in random order by its workers.
  static Aggregated Aggregate(const Tree& tree, int workers, PhiloxStream* random) {
    Aggregated result{testing::MakeAccumulator(*layout_, kGrid), "", 0};
    FoldPool pool({workers, 4});
    pool.Target(result.sum.get());
    std::vector<std::function<void()>> work;
    std::set<std::string> ids;
    for (const int i : tree.updates) {
      ids.insert((*recorded_)[i].id);
      result.weight += (*recorded_)[i].weight;
      work.emplace_back([&pool, i] { pool.Fold((*updates_)[i], nullptr); });
    }
    for (const Tree& child : tree.children) {
      const Aggregated below = Aggregate(child, workers, random);
      ids.insert(below.first_id);
      result.weight += below.weight;
      const std::shared_ptr<const PackedPartial> packed =
          testing::PackAll(*below.sum, below.first_id);
      work.emplace_back([&pool, packed] { pool.Merge(packed, nullptr); });
    }
    testing::Shuffle(&work, random);
    for (const auto& hand_in : work) hand_in();
    pool.Wait();
    result.first_id = *ids.begin();
    return result;
  }

  static testing::LayoutPtr* layout_;
  static std::vector<testing::Recorded>* recorded_;
  static std::vector<testing::UpdatePtr>* updates_;
};
testing::LayoutPtr* SameBitsTest::layout_ = nullptr;
std::vector<testing::Recorded>* SameBitsTest::recorded_ = nullptr;
std::vector<testing::UpdatePtr>* SameBitsTest::updates_ = nullptr;

TEST_F(SameBitsTest, WhateverTheTreeTheOrderTheWorkersAndTheKernelTarget) {
  std::set<std::string> digests;
  int runs = 0;
  PhiloxStream random(7);
  std::vector<int> order = Numbers(0, kUpdates);
  for (const std::string& target : compression::SupportedTargets()) {
    ASSERT_TRUE(compression::ForceTarget(target).ok());
    for (int i = 0; i < 20; ++i) {
      testing::Shuffle(&order, &random);
      const int workers = std::array{1, 2, 4}[i % 3];
      for (const auto& [name, tree] : Trees(order)) {
        digests.insert(testing::DigestOf(*Aggregate(tree, workers, &random).sum));
        ASSERT_EQ(digests.size(), 1u)
            << name << ", order " << i << ", " << workers << " workers, " << target;
        ++runs;
      }
    }
  }
  ASSERT_TRUE(compression::ForceTarget("").ok());
  std::cout << runs << " aggregations under "
            << absl::StrJoin(compression::SupportedTargets(), ", ") << ": " << *digests.begin()
            << "\n";
  for (const std::string target : {"AVX3", "AVX2"}) {
    const auto supported = compression::SupportedTargets();
    if (std::ranges::find(supported, target) == supported.end()) {
      std::cout << "not tried: kernel target " << target << ", which this CPU or build lacks\n";
    }
  }
}

TEST_F(SameBitsTest, OneUpdateAtATimeOrManyInAPass) {
  auto one_by_one = testing::MakeAccumulator(*layout_, kGrid);
  for (const auto& update : *updates_) testing::FoldAll(one_by_one.get(), {update});
  auto at_once = testing::MakeAccumulator(*layout_, kGrid);
  testing::FoldAll(at_once.get(), *updates_);
  EXPECT_EQ(testing::DigestOf(*one_by_one), testing::DigestOf(*at_once));
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
  for (int i = 0; i < kUpdates; ++i) {
    const testing::Recorded& r = (*recorded_)[i];
    updates.push_back(
        absl::StrCat("{\"id\":\"", r.id, "\",\"weight\":", r.weight, ",\"file\":\"", i, ".bin\"}"));
    testing::WriteBytes(absl::StrCat(folder, "/", i, ".bin"), r.Bytes());
  }
  const std::string json = absl::StrCat("{\"fraction_bits\":", kGrid.fraction_bits,
                                        ",\"tensors\":", LayoutJson(**layout_), ",\"updates\":[",
                                        absl::StrJoin(updates, ",\n"), "]}");
  const auto bytes = [](const std::string& s) {
    return ByteSpan(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  };
  testing::WriteBytes(folder + "/round.json", bytes(json));
  testing::WriteBytes(folder + "/hash.bin", bytes((*layout_)->hash()));
  PhiloxStream random(1);
  const Aggregated result = Aggregate(Trees(Numbers(0, kUpdates))[3].second, 2, &random);
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
