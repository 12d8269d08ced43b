// One recorded set of updates of mixed codecs and weights, trees to aggregate it in, and the one
// SHA-256 that all of them must end in: shared by the tests of the accumulator and of the links.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace tributary::aggregation::testing {

inline constexpr int kSameBitsUpdates = 26;
// Of the sums of RecordedSet, on every machine: its CPU has no say in it either.
inline constexpr char kSameBitsSha256[] =
    "791798adc3b2bf1f836e307b896c454184a43b31ed504e10b93d5a446983339f";

struct RecordedSet {
  LayoutPtr layout;
  std::vector<Recorded> recorded;
  std::vector<UpdatePtr> updates;
};
RecordedSet MakeRecordedSet();

// An aggregator: the updates and the aggregators below it.
struct Tree {
  std::vector<int> updates;
  std::vector<Tree> children;
};
// Each over all updates, dealt out in the given order, with its name.
std::vector<std::pair<std::string, Tree>> SameBitsTrees(const std::vector<int>& order);
std::vector<int> InOrder();  // 0, 1, ...

struct Aggregated {
  std::unique_ptr<ExactAccumulator> sum;
  std::string first_id;
};
// A partial sum on its way up a tier.
using Travel = std::function<std::shared_ptr<const PackedPartial>(const ExactAccumulator& sum,
                                                                  const std::string& first_id)>;
// Below each node first, then everything at it, in random order, by so many workers.
Aggregated Aggregate(const RecordedSet& set, const Tree& tree, int workers, PhiloxStream* random,
                     const Travel& travel = PackAll);

}  // namespace tributary::aggregation::testing
