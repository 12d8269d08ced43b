// Who takes part in a round: pure functions of the seed, the round and the client's id.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tributary::aggregation {

// Is this client in the round's cohort? Depends on nothing but (seed, round, id): the tree has no
// say. SeededHash(seed, "cohort", "<round>/<id>") < fraction * 2^64; nobody for 0 or NaN, everybody
// from 1 on.
bool InCohort(uint64_t seed, uint64_t round, const std::string& id, double fraction);

// Its place in line where a fixed count is chosen: the smallest come first. With h the hash above,
// -ln((h + 0.5) / 2^64) / preference: an exponential race, which draws without replacement with
// chances in the ratio of the preferences (Efraimidis and Spirakis, 2006). preference > 0.
double CohortKey(uint64_t seed, uint64_t round, const std::string& id, double preference);

// How many to ask where `count` are wanted: count * over_selection, rounded up, so that some may
// fail (Bonawitz et al., "Towards Federated Learning at Scale", 2019, asks 130 %).
uint64_t OverSelected(uint64_t count, double over_selection);

// Splits `count` in the ratio of `sizes` by largest remainder (ties to the earlier), none getting
// more than its size; adds up to min(count, sum of sizes).
std::vector<uint64_t> SplitCount(uint64_t count, const std::vector<uint64_t>& sizes);

// What an update of weight `units` that was trained on a model `staleness` rounds old weighs:
// units / sqrt(1 + staleness) (Nguyen et al., FedBuff, 2022), rounded once, half to even; at least
// one unit. A unit is 1/65,536 of an example where the grid has fractional weights.
int64_t StaleWeight(int64_t units, uint64_t staleness);

// One child's part of the weight `all` that a round may admit: what it is known to have (`mine` of
// `total`, in the same units), and of what is left half in the same proportion and half alike for
// each of `groups` children, so that one whose clients are still on their way has room for them.
// Where `total` is more than there is, its proportion of `all`. At least 1; the parts of a total
// never add up to more than `all` but for that 1.
uint64_t WeightShare(uint64_t all, uint64_t mine, uint64_t total, uint64_t groups);

}  // namespace tributary::aggregation
