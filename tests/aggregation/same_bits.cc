// The recorded set, the trees, and aggregating along one.
#include "same_bits.h"

#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation::testing {

std::vector<int> InOrder() {
  std::vector<int> numbers(kSameBitsUpdates);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

RecordedSet MakeRecordedSet() {
  RecordedSet set{MixedLayout(), {}, {}};
  const std::vector<std::vector<std::string>> codecs = {
      {"fp32"}, {"fp16"},           {"bf16"},
      {"int8"}, {"int8(block=64)"}, {"int8(rounding=nearest)", "fp32", "bf16"}};
  PhiloxStream random(2024);
  std::vector<int> names = InOrder();
  Shuffle(&names, &random);  // the smallest id is not the first
  for (int i = 0; i < kSameBitsUpdates; ++i) {
    auto deltas = RandomDeltas(*set.layout, 1000 + i);
    const auto weight = static_cast<int64_t>(1 + random.NextBelow(5000));
    set.recorded.push_back(Record(*set.layout, codecs[i % codecs.size()],
                                  absl::StrCat("client-", names[i]), weight, deltas));
    set.updates.push_back(Assemble(set.layout, Grid(), set.recorded.back(), i));
  }
  return set;
}

std::vector<std::pair<std::string, Tree>> SameBitsTrees(const std::vector<int>& order) {
  constexpr int kAll = kSameBitsUpdates;
  const auto take = [&](int begin, int end) {
    return std::vector<int>(order.begin() + begin, order.begin() + end);
  };
  Tree pairs;
  for (int i = 0; i < kAll; i += 2) pairs.children.push_back({take(i, i + 2), {}});
  return {
      {"flat", {take(0, kAll), {}}},
      {"two tiers, 2/2/...", std::move(pairs)},
      {"two tiers, 1/5/20", {{}, {{take(0, 1), {}}, {take(1, 6), {}}, {take(6, kAll), {}}}}},
      {"two tiers and clients at the root", {take(0, 3), {{take(3, 4), {}}, {take(4, kAll), {}}}}},
      {"three tiers",
       {{},
        {{take(0, 2), {{take(2, 9), {}}, {take(9, 10), {}}}},
         {{}, {{take(10, 12), {}}, {take(12, 25), {}}}},
         {take(25, kAll), {}}}}}};
}

Aggregated Aggregate(const RecordedSet& set, const Tree& tree, int workers, PhiloxStream* random,
                     const Travel& travel) {
  Aggregated result{MakeAccumulator(set.layout, Grid()), ""};
  FoldPool pool({workers, 4});
  pool.Target(result.sum.get());
  std::vector<std::function<void()>> work;
  std::set<std::string> ids;
  for (const int i : tree.updates) {
    ids.insert(set.recorded[i].id);
    work.emplace_back([&pool, &set, i] { pool.Fold(set.updates[i], nullptr); });
  }
  for (const Tree& child : tree.children) {
    const Aggregated below = Aggregate(set, child, workers, random, travel);
    ids.insert(below.first_id);
    work.emplace_back(
        [&pool, packed = travel(*below.sum, below.first_id)] { pool.Merge(packed, nullptr); });
  }
  Shuffle(&work, random);
  for (const auto& hand_in : work) hand_in();
  pool.Wait();
  result.first_id = *ids.begin();
  return result;
}

}  // namespace tributary::aggregation::testing
